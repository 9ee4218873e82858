"""From evidence on equivalences (accumulation, resuming) to findings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import sources
from ..explanation import counted, on_line
from ..findings import Culprit, Finding
from ..verdicts import suspicious, violated
from .traces.wording import at, call, condition, few
from .unsaved import writing_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..findings import Location
    from ..subject import Subject
    from .accumulation import Comparison
    from .constant_parts import ConstantPart
    from .resume import Resumption
    from .trace import Event, Kind, OptimizerStep, Trace
    from .unsaved import Missing

_ALIKE = 1e-4


def not_accumulated(
    found: Comparison, n: int, trace: Trace | None, part: ConstantPart | None = None
) -> Finding:
    """Micro-batches do not add up to the full batch's gradient; ``part`` of the loss reads no sample, and is why."""
    place = found.loss_place or found.place
    loss = found.loss or "the loss"
    counts = (
        f"; valid targets of the micro-batches: {', '.join(map(str, found.counts))}"
        if len(set(found.counts)) > 1
        else ""
    )
    code, cause, fix, because, clearing = (
        _accumulation_cause(found, n, loss, trace) if part is None else _of_part(part, n)
    )
    culprits: tuple[Culprit, ...] = ()
    if part is not None:
        name, place = _named(part), part.location or place
        culprits = (Culprit("loss", name, "reads no sample", part.location),)
    if clearing is not None:
        place = clearing.place
    return violated(
        code,
        f"accumulating {n} micro-batches gives a different gradient from the full batch: off by "
        f"{_percent(found.error)}",
        culprits=culprits
        or (
            *((call(clearing, "between two micro-batches"),) if clearing is not None else ()),
            Culprit("loss", loss, "as the loop divides it", place),
            Culprit("call", f"{loss}.backward", f"{found.passes} passes", found.place),
            *(Culprit("parameter", name, "differs") for name in found.worst[:2]),
        ),
        location=place,
        observed=f"relative difference {found.error:.3g} in {found.dtype}, length along the full "
        f"gradient {found.ratio:.4g}{counts}",
        cause=cause,
        because=because,
        fix=fix,
        evidence={
            "error": found.error,
            "ratio": found.ratio,
            "residual": found.residual,
            "counts": list(found.counts),
        },
    )


def _percent(share: float) -> str:
    """Say a share in percent, with two digits where it is small."""
    return f"{share:.1%}" if share >= _ALIKE * 10 else f"{100 * share:.2g}%"


def _named(part: ConstantPart) -> str:
    name = "" if part.location is None else sources.assigned_name(part.location)
    return name or part.op.name


def _of_part(part: ConstantPart, n: int) -> tuple[str, str, str, str, Event | None]:
    """Say that a part of the loss which reads no sample depends on the batch's size, or is added too often."""
    name, line = _named(part), on_line(part.location)
    small, whole = part.sizes
    longer = ""
    if part.per_sample:
        cause = f"{name} reads no sample, and is divided by the number of samples of each batch"
        longer = f" and {part.times:.3g} times the length on {small} of the {whole} samples"
        fix = f"divide {name}{line} by the number of samples of the whole training set, not by that of the batch"
    else:
        cause = f"{name} reads no sample, and micro-batches count it otherwise than the samples"
        fix = f"give {name}{line} the factor of a micro-batch's mean, 1 / {n}, or add it once per optimizer step"
    because = (
        f"its gradient has one direction on the whole batch and on each micro-batch{longer}; the accumulated gradient "
        f"holds it {part.counted:.3g} times, and differs in nothing else (residual {part.left:.1e})"
    )
    return "accumulation-scale", cause, fix, because, None


def _accumulation_cause(
    found: Comparison, n: int, loss: str, trace: Trace | None
) -> tuple[str, str, str, str, Event | None]:
    """Say how the accumulated gradient relates to the full batch's, and what cleared or clipped it in between."""
    clearing: Event | None = None
    if found.whole:
        cause = f"the batch is not split: the first of {found.passes} backward passes goes through all of it"
        because = "the gradient after that pass is the full batch's; the other passes add to it"
        fix = f"call {loss}.backward() once for each micro-batch, on the loss of that part alone"
        return "accumulation-differs", cause, fix, because, clearing
    alike = min(_ALIKE, found.error / 100)
    if found.residual < alike and abs(found.ratio) > _ALIKE:
        code = "accumulation-scale"
        if abs(found.ratio - n) < 1e-3 * n:
            cause, fix = (
                f"the micro-batches' losses are added without being divided by {n}",
                f"divide {loss} by {n}",
            )
        else:
            cause = "the accumulated gradient has a different scale"
            fix = (
                "divide the summed losses by the divisor of the full batch's loss, not by "
                f"{1 / found.ratio:.4g} of it"
            )
        because = (
            f"it is {found.ratio:.4g} times the full batch's gradient in every parameter "
            f"(residual {found.residual:.1e})"
        )
    elif found.means < alike:
        code, cause = (
            "accumulation-mean-of-means",
            "each micro-batch is averaged separately, regardless of how much of the loss it holds",
        )
        because = f"the accumulated gradient equals the mean of the micro-batches' means (distance {found.means:.1e})"
        if found.weights:
            shares = ", ".join(f"{weight:.3g}" for weight in found.weights)
            because += (
                f"; in the loss of the whole batch they have the weights {shares}, here each has "
                f"{1 / n:.3g}"
            )
        fix = f"sum {loss} over targets and divide by the count of the whole batch"
    elif found.last < alike:
        code, cause = (
            "accumulation-cleared",
            "only the last micro-batch remains: the gradients are cleared in between",
        )
        because = (
            f"the gradient is parallel to the last micro-batch's own (distance {found.last:.1e})"
        )
        fix = "call zero_grad once, before the first micro-batch"
        clearing = _between(trace, "zero-grad")
    else:
        return _differs_otherwise(found, trace)
    return code, cause, fix, because, clearing


def _differs_otherwise(
    found: Comparison, trace: Trace | None
) -> tuple[str, str, str, str, Event | None]:
    """Say that no known relation holds, and what changed the gradients between two backward passes."""
    cause = "micro-batches have wrong weights, or a part of the batch is missing"
    because = (
        f"the gradient is neither parallel to the full batch's (residual {found.residual:.2g}), nor the mean of the "
        f"micro-batches' means ({found.means:.2g}), nor the last one's ({found.last:.2g})"
    )
    fix = "weight each micro-batch by its share of the whole batch's valid targets"
    if (clipping := _between(trace, "clip")) is not None:
        cause = f"{clipping.name} changes the gradients before all micro-batches are in them"
        because += f"; {at(clipping.place)} runs between two backward passes of one step"
        fix = f"run {clipping.name} once, after the last backward pass"
    return "accumulation-differs", cause, fix, because, clipping


def stepped_each(trace: Trace, n: int) -> Finding:
    """The optimizer steps after every micro-batch."""
    steps, passes = trace.optimizer_steps(step=0), trace.backwards(step=0)
    return violated(
        "accumulation-missing",
        f"{steps[0].name}() runs {len(steps)} times in one step where {n} micro-batches must be "
        "accumulated",
        culprits=(
            call(steps[0], "after every micro-batch"),
            call(passes[0], f"{len(passes)} passes"),
        ),
        location=steps[0].place,
        observed=f"one call ran {len(passes)} backward passes and {len(steps)} optimizer steps",
        cause="the step is inside the loop over micro-batches",
        because=f"{at(steps[0].place)} ran after each pass of {at(passes[0].place)}",
        fix=f"move {steps[0].name}() after the loop",
    )


def stepped_early(trace: Trace, n: int, dead: frozenset[int] = frozenset()) -> Finding | None:
    """The optimizer's one step of a call runs before all micro-batches are in the gradients; None where it does not."""
    steps, passes = trace.optimizer_steps(step=0), trace.backwards(step=0)
    first = next((place for place, _ in trace.of("optimizer-step", step=0)), None)
    if first is None or len(steps) != 1 or len(passes) < 2:
        return None
    done = sum(place < first for place, _ in trace.of("backward", step=0))
    if done == len(passes):
        return None
    deciding = sources.deciding_lines(steps[0].place) if steps[0].place is not None else []
    place = condition(deciding, dead) or steps[0].place
    deciding = [one for one in deciding if one.line not in dead]
    return violated(
        "accumulation-early",
        f"{steps[0].name}() runs after {done} of {len(passes)} micro-batches: the others "
            "are added to the next step, or are lost",
        culprits=(
            call(steps[0], f"after {done} of {len(passes)} passes"),
            *(Culprit("call", sources.assigned_name(line) or "condition", "determines when it steps", line) for line in deciding),
        ),
        location=place,
        observed=f"one call ran {len(passes)} backward passes, {done} of them before its optimizer "
            f"step, where {n} must be accumulated",
        cause="the condition for the optimizer step is True at a micro-batch other than the last",
        because=f"{at(steps[0].place)} ran while {counted(len(passes) - done, 'pass', 'passes')} "
            f"of {at(passes[-1].place)} {'was' if len(passes) - done == 1 else 'were'} still "
            "to come",
        fix=f"make {at(place)} True after the last "
            f"micro-batch: (index + 1) % {n} == 0",
    )  # fmt: skip


def _between(trace: Trace | None, kind: Kind) -> Event | None:
    """Return the first call of a kind that stands between two backward passes of one call of the step."""
    if trace is None:
        return None
    passes = [place for place, _ in trace.of("backward", step=0)]
    events = trace.of(kind, step=0)
    return next((e for place, e in events if passes and passes[0] < place < passes[-1]), None)


def not_resumed(
    subject: Subject, found: Resumption, *, torchs: bool = False, pending: bool = False
) -> Finding:
    """A resumed run ends elsewhere.

    Args:
        subject: Whose run.
        found: What differs.
        torchs: Whether every optimizer is of a class of torch's, which saves all that it holds itself.
        pending: Whether a call of the step may end before its gradients are applied.
    """
    if found.left and not found.missing:
        return _gradients_left(found, pending)
    missing = found.missing
    if found.carries:  # what modules beside the model keep decides alone, or the rest does too
        missing = tuple(one for one in missing if bool(one.beside) == found.fills)
    names = [one.path for one in missing]
    place = next((one.location for one in missing if one.location is not None), None)
    # what only the next training step depends on (a carried hidden state) may be meant to start anew,
    # and a state may be loaded into memory of another form, where sums round otherwise
    restarts = names and found.evaluates and not found.carries
    # what a script hangs on an optimizer of torch's, such as a count of steps, it may save beside its state
    saved = [f"{piece}." for piece in found.pieces if piece != "optimizer"]
    hung = (
        names
        and all(n.startswith("optimizer") for n in names)
        and (place is None or (torchs and not any(n.startswith(p) for n in names for p in saved)))
    )
    # a loss may fill its memory bank anew, which costs the first steps after the checkpoint something
    make = suspicious if found.rounding or restarts or hung or found.fills else violated
    written = writing_line(subject, missing[0], found.steps) if missing else None
    return make(
        "resume-differs",
        "a run resumed from its checkpoint differs: "
        f"{names[0] if names else found.differing[0]} {'is not saved' if names else 'differs'}",
        culprits=_lost(missing, written)
        or (Culprit("parameter", found.differing[0], "differs after resuming"),),
        location=written or place,
        observed=f"{len(found.differing)} tensors differ after {found.steps} + {found.further} steps, "
            f"by up to {found.largest:.3g}",
        cause="the run depends on a value that state_dict does not hold"
        if names
        else f"the saved states of {few(found.pieces)} are not enough to continue from",
        because=(f"{few(tuple(names))} changed in the first steps and "
            f"{'is' if len(names) == 1 else 'are'} in no state_dict "
            f"({few(found.pieces)} were saved)"
            + (f"; {names[0]} is written{on_line(written)}" if written else "")
            + ("; carried over too, the runs are equal bit for bit" if found.carries else ""))
        if names
        else "the uninterrupted run repeats bit for bit, but the resumed one does not",
        fix="let the state_dict of each of them hold all that its next step needs" if not names
        else f"make {names[0]} a buffer, or save it in get_extra_state" if names[0].startswith("model.")
        else f"make {names[0]} a buffer of {missing[0].beside}, or save it in get_extra_state, "
        "where the next steps must not start without it" if found.fills
        else f"return {names[0]} from state_dict(); what belongs to a parameter p is saved in state[p]",
        evidence={"parameters": list(found.differing[:32]), "missing": names},
    )  # fmt: skip


def _lost(missing: tuple[Missing, ...], written: Location | None) -> tuple[Culprit, ...]:
    """Name what is not in the checkpoint, the first at the line that writes it where that is known, then at its own."""
    every = [
        Culprit("buffer", one.path, "not in the checkpoint", one.location) for one in missing[:4]
    ]
    if written is not None and every[0].location != written:
        every.insert(0, Culprit("buffer", every[0].name, "is written here", written))
    return tuple(every)


def _gradients_left(found: Resumption, pending: bool) -> Finding:
    """A resumed run lacks the gradients of the last step before the checkpoint."""
    return (suspicious if pending else violated)(
        "resume-differs",
        f"a run resumed from its checkpoint differs: {found.differing[0]} depends on gradients of earlier steps",
        culprits=tuple(Culprit("parameter", n, "differs after resuming") for n in found.differing[:3]),
        observed=f"{len(found.differing)} tensors differ after {found.steps} + {found.further} steps, "
            f"by up to {found.largest:.3g}",
        cause="a step adds to gradients that an earlier step left, and no state_dict holds gradients",
        because="with .grad of each parameter carried over too, the runs are equal bit for bit",
        fix="save checkpoints only where no gradient is left to be applied" if pending
        else "call zero_grad for all parameters in each step, before the backward pass",
        evidence={"parameters": list(found.differing[:32])},
    )  # fmt: skip


def not_guarded(step: OptimizerStep, broken: Sequence[str], total: int) -> Finding:
    """A NaN gradient was applied."""
    return violated(
        "non-finite-applied",
        f"{step.name}() applies a NaN gradient: {broken[0]} is NaN afterwards",
        culprits=(
            Culprit("call", step.name, "applies NaN", step.place),
            *(Culprit("parameter", name, "NaN after the step") for name in broken[:3]),
        ),
        observed=f"every gradient was made NaN; {len(broken)} of {total} parameters are NaN after the step",
        cause="nothing checks the gradients between backward and step",
        because=f"{step.name}() ran at {at(step.place)} with a gradient norm of NaN",
        fix="skip the step unless torch.isfinite of the gradient norm",
        evidence={"parameters": list(broken[:32])},
    )
