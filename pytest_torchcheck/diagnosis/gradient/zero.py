"""Why a gradient is exactly zero, and what an optimizer makes of zeros."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import listed, parameter
from ...findings import Culprit, Finding
from ...lean import dataclass
from ...loop.checkpoints import STEPS
from ...objects import trees
from ...objects.trees import dense
from ...probes.gradient.provenance import find_cut, find_zero_gradients
from ...probes.positions.doubled import find_doubled, where_parted
from ...probes.recorded.watch import Watch
from ...runs.again import forward_and_loss
from ...runs.liveness.closed_gates import closed_gate
from ...runs.looks import REDRAWS
from ...state import seed_everything
from ...subject.errors import SubjectError
from ...subject.gradients import clear_gradients
from ...subject.optimizers import optimizers_of
from ...text.wording import names_text
from ...verdicts import violated
from ..loss.bounds import initialisation_line
from ..training.zeroing_lines import zeroing_lines
from .cuts import CAUSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...findings import Location
    from ...probes.gradient.provenance import GraphCut
    from ...probes.gradient.zeros import ZeroGradient
    from ...subject import Subject


def place_of(cut: GraphCut | None) -> tuple[Any, ...]:
    """Return what parameters that are cut at the same place have in common."""
    if cut is None:
        return ("unknown", None)
    if cut.kind == "never-used":
        return (cut.kind, None)
    return (cut.kind, cut.region or cut.location)  # a block without gradients is one cause


def looks() -> int:
    """Return how many other batches and seeds were tried before a gradient counts as zero."""
    return len(REDRAWS)


def zero(
    subject: Subject, names: list[str], total: int, *, rounding: list[str]
) -> Iterator[Finding]:
    """Explain parameters whose gradient is exactly zero, or rounding noise of zero."""
    parameters = subject.named_parameters()
    groups, found = _grouped(subject, names, parameters)
    for group in groups.values():
        at = found[group[0]]
        location = getattr(at, "location", None) or sources.of_parameter(subject.model, group[0])
        small = [name for name in group if name in rounding]
        size = "rounding noise of zero" if small else "exactly zero"
        culprits = [parameter(subject, name, f"gradient {size}") for name in group]
        kind = getattr(at, "kind", "other")
        if kind == "inactive":
            # a rectifier without a positive input was pushed there by what its layer starts with
            culprits = [replace(c, location=initialisation_line(subject, c.name)) for c in culprits]
        if (op := getattr(at, "choosing", None)) is not None:
            culprits.append(Culprit("call", op.name, "chooses the infinity", op.location))
        zeros = _zero_parameters(subject, group) if kind == "times-zero" else []
        made = list(dict.fromkeys(p for n in zeros for p in zeroing_lines(subject, n)))[:3]
        because = getattr(at, "fact", "") or "every element of its gradient is zero"
        fix = _ZERO_FIXES.get(
            kind, "let the loss depend on it, or declare MayLackGradient(..., reason=...)"
        )
        if zeros:
            because += f"; {names_text(zeros)} {'starts' if len(zeros) == 1 else 'start'} at zero"
        if made:
            culprits.append(Culprit("call", at.op.name, "multiplies by zero", location))
            culprits += [
                Culprit("call", "zeros", f"makes {zeros[0]} zero", place) for place in made
            ]
            location = made[0]
            fix += f": start {zeros[0]} from other values on line {location.line}"
        cause = _ZERO_CAUSES.get(kind, CAUSES.get(kind, "the loss does not depend on its values"))
        if (
            at is not None
            and kind in ("other", "cancels", "unread")
            and (twice := _given_twice(subject, at)) is not None
        ):
            cause, fix, joined = twice
            culprits += joined
            location = joined[0].location
        elif kind == "cancels" and (parted := _parted(subject, at, group)):
            culprits += [Culprit("call", at.op.name, "uses it here", place) for place in parted]
            location = parted[-1]
            cause += f", those of lines {', '.join(str(place.line) for place in parted)}"
        finding = violated(
            "grad-zero",
            f"the gradient of {names_text(group)} is always zero ({len(group)} of {total} parameters)",
            culprits=culprits,
            location=location,
            observed=f"{size} over {1 + looks()} batches and seeds"
            + ("" if small else " and after steps")
            + (", by float64" if small else ""),
            cause=cause,
            because=because,
            fix=fix,
            evidence={"kind": kind, "parameters": list(group)},
        )
        yield _behind_gate(subject, group, kind, finding)


def _behind_gate(subject: Subject, names: list[str], kind: str, found: Finding) -> Finding:
    """Return the finding, which is doubtful where a number of 0 hides the parameters until training raises it.

    The strength of a Function's gradient is there to be raised; another factor is where a method does so. So is one
    of a term of the loss at rest, which asks for nothing while it is.
    """
    if kind == "at-rest":
        return found.replace(status="suspicious")
    gate = closed_gate(subject, names) if kind in ("function", "times-zero") else None
    if gate is None or (kind != "function" and not gate.raised_by):
        return found
    by = f": {listed(list(gate.raised_by[:3]))} may raise it" if gate.raised_by else ""
    return found.replace(
        status="suspicious",
        cause=f"{gate.name} is 0 in the model as built{by}",
        because=f"{found.because}; with another value in {gate.name} the gradient is not zero",
        fix=f"nothing, if training raises {gate.name}; declare a model in which it has",
    )


def _grouped(
    subject: Subject, names: list[str], parameters: dict[str, nn.Parameter]
) -> tuple[dict[Any, list[str]], dict[str, Any]]:
    """Group parameters by what makes their gradient zero."""
    groups: dict[Any, list[str]] = defaultdict(list)
    found: dict[str, Any] = {}
    with subject.pristine():
        run = forward_and_loss(subject)
        found.update(find_zero_gradients(run, subject.model, names))
        others = {name: parameters[name] for name in names if name not in found}
        cuts = find_cut(run, subject.model, others) if others else {}
    for name in names:
        if name in found:
            groups[("zero", found[name].kind, found[name].location)].append(name)
        else:
            found[name] = cuts.get(name)
            groups[("cut", *place_of(found[name]))].append(name)
    return groups, found


def _parted(subject: Subject, at: ZeroGradient, names: list[str]) -> list[Location]:
    """Return the lines of one function of the user's whose uses of a value cancel."""
    if len(at.uses) < 2:
        return []
    with subject.pristine():
        return where_parted(forward_and_loss(subject), subject.model, names, at.uses)


def _given_twice(subject: Subject, at: Any) -> tuple[str, str, list[Culprit]] | None:
    """Say which line joins one slice of a result with itself while another one is never read: cause, fix, culprits."""
    with subject.pristine():
        found = find_doubled(forward_and_loss(subject), subject.model, at.op)
    if found is None or found.joining.location is None:
        return None
    line, name = found.joining.location.line, found.joining.name.rpartition(".")[2]
    whole = at.op.name.rpartition(".")[2]
    detail = f"given {found.given} twice, and {found.unread} of the same tensor never"
    culprits = [
        Culprit("call", name, detail, found.joining.location),
        Culprit("call", whole, f"{found.unread} is never read", at.location),
    ]
    return (
        f"{name} on line {line} receives {found.given} of the result of {whole} twice, and "
        f"{found.unread} is never read"
        + (f" after line {found.made.line}" if found.made is not None else ""),
        f"give {name} {found.unread} in place of one {found.given} on line {line}",
        culprits,
    )


def _zero_parameters(subject: Subject, names: list[str]) -> list[str]:
    """Return those of some parameters that are all zeros in the model as built."""
    parameters = subject.named_parameters()
    return [n for n in names if n in parameters and not bool(dense(parameters[n].detach()).any())]


_ZERO_CAUSES = {
    "dropped": "a dropout sets every value that is computed from it to zero",
    "inactive": "a rectifier that it feeds has no positive input",
    "infinite": "it feeds a rectifier with minus infinity alone, which becomes 0",
    "single-choice": "a softmax over a single entry is always one",
    "single-position": "an attention with one position to attend to gives it all the weight",
    "cancels": "the expression does not depend on it: its contributions cancel",
    "unread": "it is joined with other values, and the loss uses the others only",
    "times-zero": "what it feeds is multiplied by zero",
    "saturated": "a clamp or squashing function that it feeds is at its bounds",
    "sampling": "a draw that is not reparameterised stands between it and the loss",
    "overwritten": "what it computes is overwritten in place",
    "function": "the backward of a custom autograd Function returned zeros for it",
    "first-step": "the loss reads one position only, where the reverse direction has taken its first "
    "step: nothing came before it",
    "itself": "a tensor is compared with itself, so its gradients cancel",
    "padding": "it is read at its padding_idx only, whose row gets no gradient",
    "at-rest": "a term of the loss that it feeds is held at its bound, past which it would only lower the loss",
}


LOSSES_OF_VALUES = {
    "inactive": "a rectifier that it feeds has no positive input",
    "single-choice": "a softmax over a single entry is always one",
    "single-position": "an attention with one position to attend to gives it all the weight",
    "times-zero": "what is computed from it is multiplied by zero",
    "saturated": "a clamp or squashing function that it feeds is at its bounds",
    "overwritten": "what is computed from it is overwritten",
    "zeroed": "only its shape is used",
    "not-reaching-loss": "no output is computed from what is computed of it",
}
"""Why the values of an input do not count, where only its gradient is known to be lost."""


_ZERO_FIXES = {
    "infinite": "keep the infinity out of what is chosen: use the other sign on this line, or choose the other end",
    "inactive": "initialise the bias above zero or use a leaky rectifier",
    "single-position": "give it an input with more positions",
    "padding": "drop padding_idx where this index stands for a value, or read other rows",
    "single-choice": "normalise over more than one entry, or weight by the value before normalisation",
    "unread": "use that part of the result, or drop what computes it",
    "times-zero": "let the factor differ from zero",
    "saturated": "widen the bounds, or scale its input down",
    "dropped": "lower the probability p of this dropout",
    "sampling": "reparameterise the draw: mean + std * noise",
    "overwritten": "write the result to a new tensor",
    "first-step": "read the final states that the layer returns beside its outputs (h_n), or pool over "
    "all positions",
    "itself": "detach one of the two operands",
    "at-rest": "nothing, if the term leaves its bound later in training; otherwise move the bound",
}


def causes_of_zero(found: ZeroGradient) -> tuple[Location | None, str, str]:
    """Return the line to look at, the cause and the fix for a gradient that dies at an operation."""
    place = found.location
    cause = _ZERO_CAUSES.get(found.kind, "the loss does not depend on its values")
    fix = _ZERO_FIXES.get(found.kind, "let the loss depend on it")
    alias = sources.alias_at(place) if found.kind == "itself" and place is not None else None
    if alias is not None:
        name, other, place = alias
        cause = f"{name} is {other} itself, so the gradients of the two cancel"
        fix = f"{name} = {other}.detach() on line {place.line}"
    return place, cause, fix


@dataclass(frozen=True, slots=True, kw_only=True)
class ZeroAtStep:
    """Parameters whose gradient is all zeros whenever the optimizer steps.

    Attributes:
        steps: In how many steps.
        decay: The weight decay without which they stay; 0 where it is not that.
        location: The user's line that makes the gradient zero, where it was not before.
    """

    steps: int
    decay: float
    location: Location | None


def zero_at_step(subject: Subject, names: list[str]) -> ZeroAtStep | None:
    """Run some steps again and see whether gradients are zero, and not None, as the optimizer steps."""
    seen = _gradients_at_step(subject, names, STEPS)
    if seen is None or len(seen.zero) < STEPS or not all(seen.zero):
        return None
    decay = seen.decay
    if decay:
        without = _gradients_at_step(subject, names, STEPS, decay=False)
        decay = 0.0 if without is None or without.moved else decay
    return ZeroAtStep(steps=len(seen.zero), decay=decay, location=seen.location)


@dataclass(slots=True)
class _Seen:
    zero: list[bool]
    decay: float = 0.0
    moved: bool = False
    location: Location | None = None


def _gradients_at_step(
    subject: Subject, names: list[str], steps: int, *, decay: bool = True
) -> _Seen | None:
    """Return what a run of some steps shows of these parameters' gradients; None where it raises."""
    seen = _Seen([])

    class Zeroing(Watch):
        """Notes the line after which the first parameter's gradient is zero, and was not before."""

        def before(self, func: Any, args: Any, kwargs: Any) -> Any:
            return is_zero(first.grad)

        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            if token is False and is_zero(first.grad):
                seen.location = self.locate() or seen.location

    def is_zero(grad: torch.Tensor | None) -> bool | None:
        return None if grad is None else not bool(trees.dense(grad).any())

    def stepping(optimizer: Any, args: Any, kwargs: Any) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if id(first) in held:
            seen.zero.append(all(is_zero(p.grad) is True for p in wanted.values()))

    hooks: list[Any] = []
    with subject.pristine(steps=True, train=True, seeded=True) as model:
        known = dict(model.named_parameters())
        wanted = {name: known[name] for name in names}
        first = wanted[names[0]]
        start = {name: p.detach().clone() for name, p in wanted.items()}
        clear_gradients(model)
        try:
            made = subject.make_optimizer(model)
            hooks += [o.register_step_pre_hook(stepping) for o in optimizers_of(made)]
            for optimizer in optimizers_of(made):
                for group in optimizer.param_groups:
                    if any(p is first for p in group["params"]):
                        seen.decay = float(group.get("weight_decay") or 0.0)
                        if not decay:
                            group["weight_decay"] = 0.0
            for step in range(steps):
                seed_everything(subject.seed + step)
                with Zeroing(model):
                    subject.train_step(model, made, subject.batch().clone())
        except SubjectError:
            return None
        finally:
            for hook in hooks:
                hook.remove()
        seen.moved = any(not torch.equal(p, start[name]) for name, p in wanted.items())
    return seen
