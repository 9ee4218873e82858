"""Why a gradient is exactly zero."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import sources
from ...culprits import parameter
from ...findings import Culprit, Finding
from ...objects.trees import dense
from ...probes.gradient.provenance import find_cut, find_zero_gradients
from ...probes.positions.doubled import find_doubled
from ...runs.again import forward_and_loss
from ...runs.looks import REDRAWS
from ...text.wording import names_text
from ...verdicts import violated
from ..loss.at_start import initialisation_line
from ..training.zeroing_lines import zeroing_lines
from .cuts import CAUSES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import nn

    from ...probes.gradient.provenance import GraphCut
    from ...subject import Subject


def place_of(cut: GraphCut | None) -> tuple[Any, ...]:
    """Return what parameters that are cut at the same place have in common."""
    if cut is None:
        return ("unknown", None)
    if cut.kind == "never-used":
        return (cut.kind, None)
    return (cut.kind, cut.location)


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
            kind in ("other", "cancels", "unread")
            and (twice := _given_twice(subject, at)) is not None
        ):
            cause, fix, joined = twice
            culprits += joined
            location = joined[0].location
        yield violated(
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
    "inactive": "a rectifier that it feeds has no positive input",
    "single-choice": "a softmax over a single entry is always one",
    "single-position": "an attention with one position to attend to gives it all the weight",
    "cancels": "the expression does not depend on it: its contributions cancel",
    "unread": "it is joined with other values, and the loss uses the others only",
    "times-zero": "what it feeds is multiplied by zero",
    "saturated": "a clamp or squashing function that it feeds is at its bounds",
    "sampling": "a draw that is not reparameterised stands between it and the loss",
    "overwritten": "what it computes is overwritten in place",
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
    "inactive": "initialise the bias above zero or use a leaky rectifier",
    "single-position": "give it an input with more positions",
    "single-choice": "normalise over more than one entry, or weight by the value before normalisation",
    "unread": "use that part of the result, or drop what computes it",
    "times-zero": "let the factor differ from zero",
    "saturated": "widen the bounds, or scale its input down",
    "sampling": "reparameterise the draw: mean + std * noise",
    "overwritten": "write the result to a new tensor",
}
