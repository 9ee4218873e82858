"""Missing, dead and broken gradients, explained: which line loses them, and what to change there."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...culprits import parameter
from ...explanation import counted, on_line
from ...findings import Culprit, Finding
from ...objects.trees import dense
from ...probes.gradient.provenance import find_cut, find_zero_gradients
from ...probes.holding.aliasing import find_alias
from ...probes.numbers.finiteness import find_nonfinite
from ...probes.positions.doubled import find_doubled
from ...probes.recorded.watch import Watch, name_of
from ...runs.again import forward_and_loss
from ...runs.looks import REDRAWS
from ...runs.tables import layer_rows
from ...state import seed_everything
from ...subject import SubjectError
from ...text.wording import have, names_text
from ...verdicts import suspicious, violated
from ..loss.consumed import initialisation_line, loss_line
from ..training.zeroing_lines import zeroing_lines
from . import cutting_lines as cutting
from . import unused_results as unused
from .cuts import CAUSES, FIXES
from .siblings import called_instead, read_instead

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...probes.gradient.provenance import GraphCut
    from ...probes.holding.aliasing import Alias
    from ...probes.numbers.nonfinite import NonFinite
    from ...subject import Subject
    from .siblings import Sibling


def missing(subject: Subject, names: list[str], total: int) -> Iterator[Finding]:
    """Explain parameters whose gradient is None, one finding for each place that loses them."""
    parameters = subject.named_parameters()
    with subject.pristine():
        cuts = find_cut(
            forward_and_loss(subject),
            subject.model,
            {name: parameters[name] for name in names if name in parameters},
        )
    groups: dict[Any, list[str]] = defaultdict(list)
    for name in names:
        groups[_place(cuts.get(name))].append(name)
    for (kind, *_), group in groups.items():
        cut = cuts.get(group[0])
        yield _missing(subject, group, total, kind, cut)


def _place(cut: GraphCut | None) -> tuple[Any, ...]:
    if cut is None:
        return ("unknown", None)
    if cut.kind == "never-used":
        return (cut.kind, None)
    return (cut.kind, cut.location)


def _missing(
    subject: Subject, names: list[str], total: int, kind: str, cut: GraphCut | None
) -> Finding:
    op = cut.op if cut is not None else None
    location = cut.location if cut is not None else sources.of_parameter(subject.model, names[0])
    if op is not None and op.name == "nn.Parameter" and location is not None:
        # made outside torch's functions, it is seen where it is first used
        location = sources.line_above(location, r"\bParameter\(") or location
    culprits = [parameter(subject, name, "grad is None") for name in names]
    if kind == "not-reaching-loss" and (line := loss_line(subject)) is not None:
        culprits.append(Culprit(kind="loss", name="loss", detail="does not use it", location=line))
    made = op.location if op is not None and op.location is not None else location
    if cut is not None and cut.module:
        culprits.append(
            Culprit(kind="module", name=cut.module, detail=str(op or ""), location=made)
        )
    elif op is not None and made != location:
        culprits.append(Culprit(kind="call", name=op.name, detail="computes it", location=made))
    if cut is not None and cut.region is not None:
        location = cut.region  # the line to change: it turned gradients off for the operation
        if not cut.module:
            culprits.append(
                Culprit(kind="call", name=op.name if op else "no_grad", location=cut.location)
            )
    cause = CAUSES.get(kind, "the graph between it and the loss is cut")
    if op is not None and kind in (
        "integer-cast",
        "non-differentiable",
        "sampling",
        "not-reaching-loss",
    ):
        cause = f"{cause} ({op.name})"
    fix = FIXES.get(kind, "connect it to the loss").format(names=repr(names[0]))
    why = cutting.reason(subject.model, cut) if cut is not None else None
    if why is not None:
        cause, fix, culprits = cause + why.cause, fix + why.fix, [*culprits, *why.culprits]
    if kind == "not-reaching-loss" and location is not None:
        more, mend, used = unused.bound(subject, location)
        cause, fix = cause + more, mend or fix
        culprits += used
    if kind in ("integer-cast", "non-differentiable") and op is not None and location is not None:
        more, mend, used = unused.picked(subject, op, location)
        cause, fix = cause + more, mend or fix
        culprits += used
    if kind == "never-used" and (instead := _called_instead(subject, names[0])) is not None:
        cause += f"; {instead.fact}"
        fix = f"use {instead.idle} instead of {instead.name} on line {instead.line.line}, or delete it"
        culprits.append(
            Culprit(
                kind="call",
                name=instead.name,
                detail=f"used where {instead.idle} is not",
                location=instead.line,
            )
        )
    # the last bias of an energy has no influence on its derivative: correct models have it
    judge = suspicious if kind == "differentiated" else violated
    return judge(
        "grad-none",
        f"{names_text(names)} {have(names)} no gradient ({len(names)} of {total} parameters)",
        culprits=culprits,
        location=location,
        observed=f"backward ran over {1 + _looks()} batches and seeds and after steps; the gradient is always None",
        cause=cause,
        because=(cut.fact if cut is not None else "") or "its gradient is None after backward",
        fix=fix
        + (
            f", or declare MayLackGradient({names[0]!r}, reason=...)"
            if kind == "never-used"
            else ""
        ),
        evidence={
            "kind": kind,
            "parameters": list(names),
            "rivals": [str(rival) for rival in (cut.rivals if cut is not None else ())],
        },
    )


def _called_instead(subject: Subject, name: str) -> Sibling | None:
    """Return the sibling that is used in the place of a parameter, or of the layer that owns it."""
    return read_instead(subject, name) or called_instead(subject, name)


def _looks() -> int:
    return len(REDRAWS)


def zero(
    subject: Subject, names: list[str], total: int, *, rounding: list[str]
) -> Iterator[Finding]:
    """Explain parameters whose gradient is exactly zero, or rounding noise of zero."""
    parameters = subject.named_parameters()
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
            groups[("cut", *_place(found[name]))].append(name)
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
            culprits.append(
                Culprit(
                    kind="call", name=at.op.name, detail="multiplies by zero", location=location
                )
            )
            culprits += [
                Culprit(kind="call", name="zeros", detail=f"makes {zeros[0]} zero", location=place)
                for place in made
            ]
            location = made[0]
            fix += f": start {zeros[0]} from other values on line {location.line}"
        cause = _ZERO_CAUSES.get(kind, CAUSES.get(kind, "the loss does not depend on its values"))
        if kind in ("other", "cancels") and (twice := _given_twice(subject, at)) is not None:
            cause, fix, joined = twice
            culprits += joined
            location = joined[0].location
        yield violated(
            "grad-zero",
            f"the gradient of {names_text(group)} is always zero ({len(group)} of {total} parameters)",
            culprits=culprits,
            location=location,
            observed=f"{size} over {1 + _looks()} batches and seeds"
            + ("" if small else " and after steps")
            + (", by float64" if small else ""),
            cause=cause,
            because=because,
            fix=fix,
            evidence={"kind": kind, "parameters": list(group)},
        )


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
        Culprit(kind="call", name=name, detail=detail, location=found.joining.location),
        Culprit(
            kind="call", name=whole, detail=f"{found.unread} is never read", location=at.location
        ),
    ]
    return (
        f"{name} on line {line} is given {found.given} of what {whole} gives twice, and {found.unread} is never read"
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
    "single-choice": "a softmax over one entry is the constant one",
    "single-position": "an attention with one position to attend to gives it all the weight",
    "cancels": "the expression does not depend on it: its contributions cancel",
    "times-zero": "what it feeds is multiplied by zero",
    "saturated": "a clamp or squashing function that it feeds is at its bounds",
    "sampling": "a draw that is not reparameterised stands between it and the loss",
    "overwritten": "what it computes is overwritten in place",
}
LOSSES_OF_VALUES = {
    "inactive": "a rectifier that it feeds has no positive input",
    "single-choice": "a softmax over one entry is the constant one",
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
    "cancels": "drop the normalisation that divides it out on this line",
    "times-zero": "let the factor differ from zero",
    "saturated": "widen the bounds, or scale its input down",
    "sampling": "reparameterise the draw: mean + std * noise",
    "overwritten": "write the result to a new tensor",
}


def non_finite(
    subject: Subject, *, outputs: list[str], grads: list[str], loss: float | None
) -> Iterator[Finding]:
    """Explain NaN and infinity in outputs, loss or gradients by the first operation that makes them."""
    run = forward_and_loss(subject, backward=True) if loss is not None else _forward_only(subject)
    with subject.pristine():
        at = find_nonfinite(run, subject.model)
    with subject.pristine():
        layers = layer_rows(subject, run)
    forward = loss is None or not math.isfinite(loss)
    what = "the loss" if loss is not None and not math.isfinite(loss) else ""
    if not what:
        what = f"the gradient of {names_text(grads)}" if grads else f"{names_text(outputs)}"
    culprits = [parameter(subject, name, "non-finite gradient") for name in grads[:8]]
    if at is not None and at.module:
        culprits.insert(
            0, Culprit(kind="module", name=at.module, detail=str(at.op or ""), location=at.location)
        )
    culprits = [*writers(at), *culprits]
    observed = (
        f"loss {loss:.4g}; {counted(len(grads), 'gradient')} not finite"
        if loss is not None
        else "NaN or infinity in the output"
    )
    cause, fix = remedy(at, forward=forward)
    yield violated(
        "non-finite-forward" if forward else "non-finite-gradient",
        f"{what} is NaN or infinite on an ordinary batch",
        culprits=culprits,
        location=None if at is None else at.location,
        observed=observed,
        cause=cause,
        because=evidence_of(at),
        fix=fix,
        evidence={"parameters": list(grads), "outputs": list(outputs), "layers": layers},
    )


_REMEDIES: dict[str, tuple[str, str, str]] = {
    "sqrt": ("the square root of a negative number", "the derivative of a square root at 0 is infinite",
             "add eps inside the square root"),
    "rsqrt": ("the inverse square root of 0 or less", "the derivative of an inverse square root at 0 is infinite",
              "add eps inside the square root"),
    "log": ("the logarithm of 0 or less", "the derivative of a logarithm at 0 is infinite",
            "clamp the argument from below (clamp(min=eps)), or use log1p or log_softmax"),
    "div": ("a division by zero", "the derivative of a division by zero is infinite", "add eps to the denominator"),
    "reciprocal": ("a division by zero", "the derivative of 1/x at 0 is infinite", "add eps to the denominator"),
    "norm": ("a norm that overflows", "the derivative of a norm at 0 does not exist", "take sqrt(sum of squares + eps)"),
    "std": ("a deviation of a single value", "the derivative of a deviation of equal values is infinite",
            "take (var + eps).sqrt()"),
    "pow": ("a power outside of its domain", "the derivative of this power at 0 is infinite", "add eps to the base"),
    "acos": ("acos outside of -1..1", "the derivative of acos at -1 and 1 is infinite", "clamp the argument to -1 + eps..1 - eps"),
    "exp": ("exp overflows", "exp overflows", "subtract the largest value first, or use log_softmax or logsumexp"),
}  # fmt: skip
"""What makes an operation infinite, in the forward and in the backward, and the edit."""


def remedy(at: NonFinite | None, *, forward: bool) -> tuple[str, str]:
    """Return the cause by its name, and the edit, for the operation at which numbers stop being finite."""
    line = f" on line {at.location.line}" if at is not None and at.location is not None else ""
    bare = at.op.name.rpartition(".")[2].strip("_") if at is not None else ""
    written = next((w.location for w in writers(at)), None)
    if at is not None and "all -inf" in at.fact:
        return (
            "every entry of a row is masked with -inf, and a softmax over nothing is 0/0",
            (
                f"leave one entry of every row unmasked{on_line(written)}, or set fully masked "
                f"rows to 0 with torch.where{line}"
            ),
        )
    if at is not None and (constant := at if at.origin == "constant" else at.written) is not None and constant.kind == "inf":  # fmt: skip
        return _mended_infinity(at, constant, forward=forward)
    if at is not None and at.hidden is not None and not forward:
        dropping = at.hidden.name
        where = on_line(at.hidden.location) if at.hidden.location != at.location else ""
        cause = (
            f"{at.op.name} is computed for elements whose result {dropping}{where} drops; the gradient of 0 that they "
            "get back, times a derivative that is not finite, is NaN"
        )
        fix = (
            f"give {at.op.name} a safe argument at these elements{line} (torch.where on its "
            "input), then drop the result"
        )
        return cause, fix
    if at is not None and "negative number" in at.fact:
        forward = True  # what was measured is outside of the domain, not at its edge
    known = next(
        (
            words
            for key, words in _REMEDIES.items()
            if bare == key
            or bare
            in (
                f"{key}2",
                f"{key}10",
                f"true_{key}",
                f"__true{key}__",
                f"vector_{key}",
                f"linalg_{key}",
            )
        ),
        None,
    )
    if known is not None:
        return known[0 if forward else 1], known[2] + line
    what = at.op.name if at is not None else "an operation"
    if at is not None and at.fact.startswith("0 * inf"):
        return (
            f"{what} multiplies zeros by infinity",
            f"write the infinity with masked_fill or torch.where, which multiply nothing{line}",
        )
    return (
        f"{what} gives a value that is not finite"
        if forward
        else f"the derivative of {what} is not finite at this input",
        f"keep the argument of {what} away from where it is infinite{line}",
    )


def _mended_infinity(at: NonFinite, source: NonFinite, *, forward: bool) -> tuple[str, str]:
    """Return cause and edit for an infinity that was written on purpose, or given, and is then computed with."""
    sign, limit = ("inf", "max") if source.upward else ("-inf", "min")
    here = on_line(at.location)
    finite = f"a large finite number such as torch.finfo(dtype).{limit}"
    if source is at:
        return (
            f"{at.op.name} writes {sign} on purpose, and it reaches the result",
            f"fill {finite}{here}, or leave these entries out of what follows",
        )
    part = at.op.name if forward else f"the backward of {at.op.name}"
    if source.origin == "constant":
        where = f"{source.op.name} writes {sign} on purpose{on_line(source.location)}"
        fix = f"fill {finite}{on_line(source.location)}"
    else:
        where, fix = f"{sign} is handed in", f"hand in {finite}"
    return (
        f"{where}, and {part} makes NaN of it",
        f"{fix}, or keep the masked entries out of {at.op.name}{here}",
    )


def writers(at: NonFinite | None) -> list[Culprit]:
    """Return the operation that wrote the infinity of which another line made a NaN."""
    source = at.written if at is not None else None
    if at is None or source is None or source.location in (None, at.location):
        return []
    detail = "writes inf" if source.upward else "writes -inf"
    if source.origin == "given":
        detail = source.fact
    return [Culprit(kind="call", name=source.op.name, detail=detail, location=source.location)]


def evidence_of(at: NonFinite | None) -> str:
    """Return what was measured where numbers stop being finite, and where the infinity came from."""
    if at is None:
        return "no single operation could be singled out"
    source = at.written
    if source is None or source.origin == "computed" or "all -inf" in at.fact:
        return at.fact
    return (
        f"{at.fact}; {source.fact}{on_line(source.location) if source.origin == 'constant' else ''}"
    )


def _forward_only(subject: Subject) -> Callable[[], Any]:
    def run() -> Any:
        batch = subject.batch().clone()
        seed_everything(subject.seed)
        return subject.call(subject.model, batch)

    return run


def changed_inputs(subject: Subject, changed: list[str], *, train: bool) -> Iterator[Finding]:
    """Explain inputs that the forward writes to."""
    location, op = _writer(subject, changed[0], train=train)
    alias = _alias(subject, changed[0], location, train=train)
    yield violated(
        "input-mutated",
        f"the forward changes its input {names_text(changed)} in place",
        culprits=[
            Culprit(kind="input", name=name, detail="changed", location=location)
            for name in changed
        ]
        + ([alias.culprit(changed[0])] if alias is not None else []),
        location=location or sources.of_object(type(subject.model).forward),
        observed=(
            f"{counted(len(changed), 'input')} {have(changed, 'differs')} after a forward in "
            f"{'train' if train else 'eval'} mode"
        ),
        cause="an operation writes into the tensor that the caller handed over"
        + (f" ({op})" if op else ""),
        because="the values before and after the call are not bit-equal",
        fix=alias.fix
        if alias is not None
        else "write to a new tensor: x = x + y instead of x += y, or clone the input first",
    )


def _alias(subject: Subject, path: str, write: Any, *, train: bool) -> Alias | None:
    """Find the line by which an input gets the name that is written to."""
    batch = subject.batch().clone()
    with subject.pristine() as model, torch.no_grad():
        model.train(train)
        seed_everything(subject.seed)
        return find_alias(lambda: subject.call(model, batch), dict(batch.tensors())[path], write)


def _writer(subject: Subject, path: str, *, train: bool) -> tuple[Any, str]:
    """Find the line that first changes an input, by watching its values after every operation."""
    batch = subject.batch().clone()
    target = dict(batch.tensors())[path]
    version = target._version
    found: list[tuple[Any, str]] = []

    class Writer(Watch):
        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            if not found and target._version != version:
                found.append((self.locate(), name_of(func)))

    with subject.pristine() as model, torch.no_grad(), Writer(model):
        model.train(train)
        seed_everything(subject.seed)
        try:
            subject.call(model, batch)
        except SubjectError:
            return None, ""
    return found[0] if found else (None, "")


def not_reparameterised(subject: Subject, stop: GraphCut) -> Finding:
    """Explain a normal draw through which its parameters get no gradient."""
    names = list(stop.parameters)
    owners = sorted({name.split(".")[0] for name in names})
    return violated(
        "sample-not-reparameterised",
        (
            f"{names_text(owners)} cannot learn through its random draw: "
            f"{stop.op.name if stop.op else 'normal'} has no gradient"
        ),
        culprits=[
            *(
                Culprit(
                    kind="module",
                    name=name,
                    detail="no gradient through the draw",
                    location=stop.location,
                )
                for name in owners
            ),
            *(parameter(subject, name, "no gradient through the draw") for name in names[:8]),
        ],
        location=stop.location,
        observed=(
            f"{len(names)} parameters decide the mean or deviation of a draw that goes on "
            "through trainable layers"
        ),
        cause="the value is drawn without reparameterisation",
        because=stop.fact,
        fix="reparameterise on this line: mean + std * torch.randn_like(std), or rsample()",
        evidence={"parameters": names},
    )
