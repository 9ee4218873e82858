"""Why a gradient does not train its own weight: what reads it, whose gradient moves it, and what is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ... import sources
from ...explanation import on_line, parameter
from ...findings import Culprit, Finding, Location
from ...probes.holding.holders import lines_run
from ...probes.recorded.watch import Op, Watch, name_of, tensors_in
from ...subject.errors import SubjectError
from ...text.wording import names_text
from ...verdicts import violated

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...runs.training.crossed import Crossed
    from ...runs.training.forgetting import Forgetting
    from ...subject import Subject


class _Readers(Watch):
    """Follows what is computed from weights: the first call that makes a number of one, and the first that raised."""

    def __init__(self, model: torch.nn.Module, names: list[str]) -> None:
        super().__init__(model)
        self._from = {id(model.get_parameter(name)) for name in names}
        self._kept: list[Tensor] = []  # an id is reused once its tensor is gone
        self.number: Op | None = None
        self.refused: Op | None = None

    def before(self, func: Callable[..., Any], args: Any, kwargs: Any) -> bool:
        """Say whether a call reads what is computed from the weights."""
        return any(id(t) in self._from for t in tensors_in((args, kwargs)))

    def after(
        self, func: Callable[..., Any], args: Any, kwargs: Any, result: Any, token: Any
    ) -> None:
        """See one call."""
        if not token:
            return
        for made in tensors_in(result):
            if made.requires_grad:
                self._from.add(id(made))
                self._kept.append(made)
                if made.numel() == 1 and self.number is None:
                    self.number = self.op(name_of(func))

    def raised(self, func: Callable[..., Any], token: Any) -> None:
        """Note a call that raised; where the run goes on, somebody caught it."""
        if token and self.refused is None:
            self.refused = self.op(name_of(func))


def untaught(subject: Subject, names: list[str]) -> Finding:
    """Explain weights whose gradient is a multiple of one matrix, whatever the data are."""
    number, refused = _readers(subject, names)
    one = len(names) == 1
    place = next((op.location for op in (refused, number) if op is not None), None)
    cause = f"the data reach {'it' if one else 'them'} through one number only"
    because = (
        "gradients of different samples that are multiples of each other say nothing of the samples"
    )
    fix = f"compute the output with {names_text(names)}"
    if number is not None:
        because = f"{number.name} reads {'it' if one else 'them'} and gives one number; {because}"
    if refused is not None:
        cause = f"{refused.name} raised, somebody caught the exception, and the forward went on without it"
        fix = f"correct the call{on_line(refused.location)}, and let its exception pass"
    culprits = [parameter(subject, name, "trained by no data") for name in names[:8]]
    if refused is not None:
        culprits.insert(
            0, Culprit("call", refused.name, "raised, and was caught", refused.location)
        )
    return violated(
        "weight-untaught",
        f"the data do not train {names_text(names)}: {'its gradient has' if one else 'their gradients have'} "
        "one direction for any batch",
        culprits=culprits,
        location=place,
        observed="each half of the batch, and other inputs, give the same gradient times a number; "
        "those of other weights turn",
        cause=cause,
        because=because,
        fix=fix,
        evidence={"parameters": names},
    )


def _readers(subject: Subject, names: list[str]) -> tuple[Op | None, Op | None]:
    """Return the call that makes a number of a weight, and the first call of the forward that raised."""
    with subject.pristine(train=True, seeded=True) as model, torch.enable_grad():
        seen = _Readers(model, names)
        try:
            with seen:
                subject.call(model, subject.batch().clone())
        except SubjectError:
            return None, None
    return seen.number, seen.refused


def crossed(subject: Subject, found: Crossed) -> Finding:
    """Explain parameters that a step moves by the gradients of others of their shape."""
    name, kind, step = found.names[0], found.optimizer, subject.contract.train_step
    what = f"{kind.__name__}.step" if kind is not None else "the training step"
    place = sources.of_object(kind.step if kind is not None else step)
    if kind is None:
        place = sources.search(step, r"\.grad\s*=[^=]") or place
    by = found.by or "other parameters of its shape"
    count = (
        f" (at least {len(found.names)} parameters are moved so)" if len(found.names) > 1 else ""
    )
    return violated(
        "gradient-of-another",
        f"{what} moves {name} by the gradient of {by}{count}",
        culprits=[parameter(subject, n, "follows another gradient") for n in found.names[:8]],
        location=place,
        observed=f"when the sign of the gradient of {by} is reversed and nothing else changes, {name} "
        "gets other values",
        cause="the step assigns gradients to parameters in a different order than it took them, or by shape"
        if kind is None
        else "parameters of the same shape share optimizer state, or one parameter's gradient is applied to another",
        because=f"when the sign of its own gradient is reversed, {name} gets "
        + ("other values too" if found.own else "the same values")
        + "; a norm over all gradients does not depend on their signs",
        fix="keep the state of each parameter in self.state[p]"
        if kind is not None
        else "collect gradients and parameters in the same loop, or match them by name",
        evidence={"parameters": found.names, "by": found.by},
    )


def forgets(subject: Subject, found: Forgetting) -> Finding:
    """Explain an optimizer with a momentum whose step depends on no earlier gradient."""
    name, kind = type(found.optimizer).__name__, type(found.optimizer)
    with subject.pristine(steps=True):
        made = _made_again(found.optimizer, found.kept)
    place = made or sources.of_object(kind.step)
    kept = names_text(list(found.kept)) if found.kept else ""
    cause = (
        f"{kept} of each parameter {'is' if len(found.kept) == 1 else 'are'} set anew in each step"
        if made is not None
        else f"{name}.step does not use {kept or 'any state'} of the step before"
    )
    return violated(
        "momentum-lost",
        f"{name} has {found.option}, and its step does not depend on earlier gradients",
        culprits=[Culprit("optimizer", name, found.option, place)]
        + [Culprit("optimizer", key, "does not last", made) for key in found.kept],
        location=place,
        observed="after other gradients in the three steps before, the fourth step from the same values is "
        "bit-equal",
        cause=cause,
        because="an average over steps makes the fourth step follow the first three gradients",
        fix=f"set {kept} only where self.state[p] does not hold it yet"
        if made is not None
        else "keep the average in self.state[p], and read it in the next step",
        evidence={"kept": list(found.kept), "option": found.option},
    )


def _lines_of_a_step(optimizer: torch.optim.Optimizer) -> set[tuple[str, int]]:
    for group in optimizer.param_groups:
        for p in group["params"]:
            p.grad = torch.zeros_like(p)
    with lines_run() as ran:
        optimizer.step()
    return ran


def _made_again(optimizer: torch.optim.Optimizer, kept: tuple[str, ...]) -> Location | None:
    """Return the line that gives a state its first value, where a later step runs it again."""
    ran = _lines_of_a_step(optimizer)
    pattern = "|".join(rf"\[[\"']{key}[\"']\]\s*=[^=]" for key in kept)
    places = sources.matches(type(optimizer), pattern) if kept else []
    return next((place for place in places if (place.file, place.line) in ran), None)


def uncounted(subject: Subject, optimizer: torch.optim.Optimizer, name: str) -> Finding:
    """Explain an optimizer that reads a number of steps which stays what it was."""
    kind = type(optimizer)
    rebound = sources.matches(kind, rf"\b{name}\s*=\s*{name}\s*\+")
    with subject.pristine(steps=True):
        ran = _lines_of_a_step(optimizer)
    local = next((place for place in rebound if (place.file, place.line) in ran), None)
    read = sources.search(kind, rf"[\"\']{name}[\"\']")
    place = local or read or sources.of_object(kind.step)
    return violated(
        "steps-not-counted",
        f"{kind.__name__} keeps the number of its steps in {name}, and never changes it",
        culprits=[Culprit("optimizer", name, "does not grow", place)],
        observed=f"{name} is the same after 4 steps and after 8",
        cause=f"{name} = {name} + ... gives the local name another value, and leaves the state as it is"
        if local is not None
        else f"nothing writes to {name} from step to step",
        because=f"with a greater {name} the update differs: what is corrected by it, such as the bias of "
        "moving averages, stays as in the first step",
        fix=f"write it back, as self.state[p][{name!r}] += 1",
        evidence={"name": name},
    )
