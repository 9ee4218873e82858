"""Why a gradient does not train its own weight: what reads it, whose gradient moves it, and what is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ... import sources
from ...explanation import Reason, on_line, parameter
from ...findings import Culprit, Finding, Location
from ...probes.gradient.frozen_in_step import frozen_in_step
from ...probes.holding.holders import lines_run
from ...probes.recorded.watch import Op, Watch, name_of, tensors_in
from ...record.tracing import find_line, line_of, returns
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.optimizers import gradient_aliases, optimizers_of
from ...text.wording import counted, names_text
from ...verdicts import suspicious, violated

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ...runs.training.crossed import Crossed
    from ...runs.training.forgetting import Forgetting
    from ...runs.training.kept_gradients import KeptGradient
    from ...subject import Subject


class _Readers(Watch):
    """Follows what is computed from weights: the first call that makes a number of one, and the first that raised."""

    def __init__(self, model: nn.Module, names: list[str]) -> None:
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
    why = _one_number(names, number)
    if refused is not None:
        why = _refused(refused, why.because)
    else:
        why = _switched(subject, names) or _bypassed(subject) or why
    return violated(
        "weight-untaught",
        f"the data do not train {names_text(names)}: "
        f"{'its gradient has' if len(names) == 1 else 'their gradients have'} one direction for any batch",
        culprits=[*why.culprits, *(parameter(subject, n, "trained by no data") for n in names[:8])],
        location=why.place,
        observed="each half of the batch, and other inputs, give the same gradient times a number; "
        "those of other weights turn",
        cause=why.cause,
        because=why.because,
        fix=why.fix,
        evidence={"parameters": names},
    )


def _one_number(names: list[str], number: Op | None) -> Reason:
    them = "it" if len(names) == 1 else "them"
    said = "" if number is None else f"{number.name} reads {them} and gives one number; "
    return Reason(
        place=None if number is None else number.location,
        cause=f"the data reach {them} through one number only",
        because=f"{said}gradients of different samples that are multiples of each other say nothing of the samples",
        fix=f"compute the output with {names_text(names)}",
    )


def _refused(refused: Op, because: str) -> Reason:
    return Reason(
        place=refused.location,
        cause=f"{refused.name} raised, somebody caught the exception, and the forward went on without it",
        because=because,
        fix=f"correct the call{on_line(refused.location)}, and let its exception pass",
        culprits=(Culprit("call", refused.name, "raised, and was caught", refused.location),),
    )


def _switched(subject: Subject, names: list[str]) -> Reason | None:
    """Ask whether a forward switches the gradients of all of them off, which are on again after it."""
    with subject.pristine(train=True, seeded=True) as model:
        try:
            seen = frozen_in_step(lambda: subject.call(model, subject.batch().clone()), model)
        except SubjectError:
            return None
        found = [seen.freezing(n) for n in names if model.get_parameter(n).requires_grad]
    off = found[0] if found and all(found) else None
    if off is None:
        return None
    line = on_line(off.location)
    return Reason(
        place=off.location,
        cause=f"requires_grad is switched off{line} for what is computed with {names_text(names)}",
        because=f"requires_grad of {off.names[0]} is False there, and True before and after the forward",
        fix=f"do not change requires_grad{line}",
        culprits=(Culprit("call", "requires_grad_", "switches gradients off", off.location),),
    )


def _bypassed(subject: Subject) -> Reason | None:
    """Ask whether a module is called by a ``__call__`` of its own, and its ``forward`` does not run."""
    with subject.pristine(train=True, seeded=True) as model:
        found = returns(lambda: subject.call(model, subject.batch().clone()))
        owners = [(one, one.frame.f_locals.get("self")) for one in found]
        ran = {id(own) for one, own in owners if one.frame.f_code.co_name == "forward"}
        for one, own in owners:
            code = one.frame.f_code
            if code.co_name == "__call__" and isinstance(own, nn.Module) and id(own) not in ran:
                kind, place = type(own).__name__, line_of(code, one.line)
                return Reason(
                    place=place,
                    cause=f"{kind}.__call__ returns on line {place.line}, and {kind}.forward does not run",
                    because="no call of forward was seen on this module; its hooks do not run either",
                    fix="delete __call__, or return super().__call__(...) from it",
                    culprits=(Culprit("call", f"{kind}.__call__", "skips forward", place),),
                )
    return None


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


def of_other_weights(subject: Subject) -> Finding:
    """Explain a step whose loss and gradients are the same whatever the model's weights are."""
    place = sources.of_object(subject.contract.train_step)
    return violated(
        "gradient-of-other-weights",
        "the training step computes its loss and its gradients from other weights than the model's",
        culprits=[Culprit("function", "train_step", "does not heed the model's weights", place)],
        location=place,
        observed="with all weights changed before a step, it returns the same loss and leaves the same "
        "gradients, bit by bit",
        cause="the loss is that of a copy of the model, or of outputs that were computed before",
        because="only the weights differed between the two steps",
        fix="compute the loss with the model whose weights the optimizer holds, in each step",
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


def gradient_kept(subject: Subject, found: KeptGradient) -> Finding:
    """Explain an entry of an optimizer's state that is the gradient itself, not a copy of it."""
    name, key = next(iter(found.keys.items()))
    place = _keeping_line(subject, name) or sources.of_object(found.optimizer.step)
    return (violated if found.decides else suspicious)(
        "gradient-in-state",
        f"{key} in the state of {found.optimizer.__name__} is the memory of the gradient"
        + (": the next backward pass overwrites it" if found.decides else ""),
        culprits=[
            Culprit("optimizer", key, "shares its memory with the gradient", place),
            *(Culprit("parameter", each, f"its gradient is its {key}") for each in list(found.keys)[:3]),
        ],
        location=place,
        observed=f"after a step, the state of {counted(len(found.keys), 'parameter')} and the gradient share "
        "their memory, which they did not before it",
        cause=f"{key} is assigned without a copy, and gradients keep their memory: zero_grad(set_to_none=False) "
        "and backward write to it"
        if found.decides
        else f"{key} is assigned without a copy: it is right only as long as zero_grad frees each gradient "
        "(set_to_none=True)",
        because=f"with a copy of each {key} put in its place after the first step, the second one "
        + ("leads to other weights" if found.decides else "leads to the same weights so far"),
        fix=f"keep a copy{on_line(place)}: .clone()",
        evidence={"parameters": list(found.keys)[:32], "key": key},
    )  # fmt: skip


def _keeping_line(subject: Subject, name: str) -> Location | None:
    """Return the line of the first step after which a parameter's state holds its gradient."""
    made: list[Any] = []

    def keeps(_frame: FrameType, event: str, _line: int) -> bool:
        return event != "call" and bool(made) and name in gradient_aliases(model, made)

    def run() -> None:
        optimizer = subject.make_optimizer(model)
        made.extend(optimizers_of(optimizer))
        clear_gradients(model)
        subject.train_step(model, optimizer, subject.batch().clone())

    with subject.pristine(steps=True, train=True, seeded=True) as model:
        return find_line(run, keeps)
