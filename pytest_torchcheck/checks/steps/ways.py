"""Ways of training that must come to the same: accumulated or whole, resumed or not, replica or replica."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import nn

from ... import promises, sources
from ...codes import training as explain
from ...loop import accumulation, resume
from ...loop.closures import functions_of
from ...loop.constant_parts import constant_part
from ...loop.recorder import record, trace_of
from ...loop.replay import last_write
from ...loop.traces.copied_onto_itself import where_rebound
from ...runs.training.steps import lost as lost_parameters
from ...runs.training.steps import trajectory, untrainable
from ...subject.errors import SubjectError
from ...verdicts import inconclusive, not_applicable, passed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...findings import Finding
    from ...loop.trace import Trace
    from ...subject import Subject

_ACCUMULATED = 1e-5  # float64 leaves 1e-12; losses that compute in float32 inside leave 1e-7
_SMALL = 1e-3
"""Up to which difference a sum counts as wrong only where its relation to the full batch is known."""
_UNEVEN = 1.5
"""From which ratio on the weights of micro-batches are clearly unequal: class weights leave less."""


def accumulated(subject: Subject) -> Iterator[Finding]:
    """Compare the accumulated gradient with the full batch's, on the batch as it is and with targets ignored.

    Without the promise, a step that runs several backward passes before its optimizer's step may
    mean anything by them. Only what cannot be meant is told then: the full batch's gradient times
    their number, the last micro-batch's alone, and the plain mean of micro-batches that count for
    unequal shares of the declared loss, as those of sequences of unequal lengths do.
    """
    if not subject.contract.promised("Accumulates"):
        yield _unpromised(subject)
    for promise in subject.contract.promised("Accumulates"):
        assert isinstance(promise, promises.Accumulates)
        if subject.contract.train_step is None and promise.micro_step is None:
            yield inconclusive(
                "Accumulates needs a train_step, or micro_step=, to run", code="nothing-to-run"
            )
            continue
        yield _accumulation(subject, promise)


def _unpromised(subject: Subject) -> Finding:
    trace = trace_of(subject)
    passes = _passes(trace)
    if passes < 2:
        return not_applicable("no optimizer step comes after several backward passes")
    try:
        made = accumulation.compare(subject, passes, None, unequal=False)
    except SubjectError as error:
        if error.phase != "loss":
            raise
        # nobody has said that it takes a part: labels may be the places of samples in the batch
        return not_applicable("the declared loss does not take a part of the batch")
    if made is None or made.passes != passes or made.whole:
        return not_applicable("the backward passes of the step do not split the batch")
    limit = _ACCUMULATED if made.dtype == "float64" else 1e-3
    if made.error <= limit:
        uneven = accumulation.compare(subject, passes, None, unequal=True)
        if uneven is not None and _each_by_itself(uneven, limit):
            return explain.not_accumulated(uneven, passes, trace)
        return passed(f"{passes} passes give the full batch's gradient up to {made.error:.1e}")
    added = made.residual <= limit and abs(made.ratio - passes) <= limit * passes
    cleared = max(made.last, made.applied) <= limit and made.residual > 100 * limit
    if added or cleared or _each_by_itself(made, limit):
        return explain.not_accumulated(made, passes, trace)
    return not_applicable(
        f"the step's {passes} backward passes do not add up to the gradient of the declared "
        f"loss: their sum differs by {made.error:.1%} from the full batch's gradient"
    )


def _each_by_itself(made: accumulation.Comparison, limit: float) -> bool:
    """Say whether micro-batches of clearly unequal weight in the loss are averaged as if they were equal."""
    uneven = made.weights and max(made.weights) > _UNEVEN * min(made.weights) > 0
    return bool(uneven) and made.means <= limit < made.error


def _passes(trace: Trace) -> int:
    """Return how many backward passes ran before the first optimizer step, cleared in between or not."""
    count = 0
    for event in trace.events:
        if event.kind == "backward":
            count += 1
        elif event.kind == "optimizer-step":
            break
    return count


def _accumulation(subject: Subject, promise: promises.Accumulates) -> Finding:
    trace = trace_of(subject) if subject.contract.train_step is not None else None
    found = None
    if (
        promise.micro_step is not None  # it may be right, and the step around it not
        and trace is not None
        and _cut_short(trace, promise.n)
        and (wrong := _stepped_wrongly(subject, trace, promise.n)) is not None
    ):
        return wrong
    for unequal in (False, True):
        made = accumulation.compare(subject, promise.n, promise.micro_step, unequal=unequal)
        if made is None:
            continue
        found = made
        if made.passes < 2:
            break
        if made.error > (_ACCUMULATED if made.dtype == "float64" else 1e-3):
            part = constant_part(subject, made, promise.n, unequal=unequal)
            if part is not None or made.error > _SMALL or made.related:
                return explain.not_accumulated(made, promise.n, trace, part)
    if found is None or found.passes < 2:
        if trace is not None and (wrong := _stepped_wrongly(subject, trace, promise.n)) is not None:
            return wrong
        return inconclusive(
            f"the step ran {found.passes if found else 0} backward passes before the optimizer "
            "stepped, so nothing was accumulated"
        )
    counts = f" with {', '.join(map(str, found.counts))} valid targets" if found.counts else ""
    return passed(
        f"{found.passes} passes{counts} give the full batch's gradient up to {found.error:.1e} in {found.dtype}"
    )


def _cut_short(trace: Trace, n: int) -> bool:
    """Say whether one call runs all micro-batches, and its one optimizer steps after the first of them."""
    owners = {event.owner for event in trace.optimizer_steps(step=0)}
    return len(owners) == 1 and len(trace.backwards(step=0)) >= n and _passes(trace) == 1


def _stepped_wrongly(subject: Subject, trace: Trace, n: int) -> Finding | None:
    """Explain a call of the step in which the optimizer steps before all micro-batches are in the gradients."""
    if len(trace.optimizer_steps(step=0)) > 1 and len(trace.backwards(step=0)) > 1:
        return explain.stepped_each(trace, n)
    functions = functions_of(subject.contract.train_step)
    return explain.stepped_early(
        trace, n, frozenset().union(*(sources.untaken_lines(one) for one in functions))
    )


def resumed(subject: Subject) -> Iterator[Finding]:
    """Run through, and again with a checkpoint in the middle."""
    if not subject.kernel_exact:
        yield not_applicable("bit-equal runs are promised on the CPU only")
        return
    if untrainable(subject):
        yield not_applicable("no parameter requires a gradient")
        return
    try:
        held = resume.is_resumed(subject)
    except SubjectError:
        held = None  # it is raised again, or is no matter of resuming
    if subject.contract.train_step is not None and trajectory(subject).forgets is not None:
        yield explain.state_dropped(subject, trajectory(subject).forgets)
        return
    if held is not None:
        yield passed(
            f"1 + {trajectory(subject).end_after - 1} steps are equal bit for bit; saved: {', '.join(held)}"
        )
        return
    found = resume.measure(subject)
    if not found.differing:
        yield passed(
            f"{found.steps} + {found.further} steps are equal bit for bit; saved: "
            f"{', '.join(found.pieces)}"
        )
    elif found.iterators:
        yield inconclusive(
            "the training step reads its data from an iterator "
            f"({', '.join(found.iterators[:3])}), the position of which no checkpoint holds: a "
            "resumed run continues with other data",
            code="data-order",
        )
    elif found.closures:
        yield inconclusive(
            (
                f"the training step keeps its own state ({', '.join(found.closures[:3])}), which "
                "no state_dict holds"
            )
            + (
                ": a resumed run differs without it, and equals the uninterrupted one with it"
                if found.decides
                else ""
            ),
            code="state-in-closure",
        )
    elif found.strangers:
        yield inconclusive(
            f"the training step also steps {', '.join(found.strangers[:3])}, which neither the "
            "optimizer function nor the step's own variables hold: no checkpoint could hold "
            "its state",
            code="state-elsewhere",
        )
    elif not found.repeatable:
        yield inconclusive(
            "the uninterrupted run does not repeat bit for bit either (see seeding)",
            code="not-repeatable",
        )
    else:
        yield _not_resumed(subject, found)


def _not_resumed(subject: Subject, found: resume.Resumption) -> Finding:
    """Explain a resumed run that ends elsewhere; where the optimizer holds a lost parameter again, it follows."""
    kinds = trajectory(subject).coverage.optimizers
    torchs = bool(kinds) and all(hasattr(torch.optim, kind) for kind in kinds)
    trace = trace_of(subject)
    pending = not all(trace.optimizer_steps(step) for step in range(trace.steps))
    finding = explain.not_resumed(subject, found, torchs=torchs, pending=pending)
    lost = sorted(lost_parameters(subject))
    line = where_rebound(subject, lost[0]) if lost and not found.missing else None
    if line is None:
        return finding
    return finding.replace(
        location=line,
        cause=f"the step replaces {lost[0]} by a new Parameter: the uninterrupted run's optimizer "
        "keeps the old one, the resumed run's starts with the new one",
        fix="write to the parameter in place, under torch.no_grad(): .copy_(), .clamp_(), .mul_()",
        root="weights-update/weight-static",
    )


def replicated(subject: Subject) -> Iterator[Finding]:
    """Compare the pairs after every step, bit by bit."""
    promised = [
        p for p in subject.contract.promised("Replicated") if isinstance(p, promises.Replicated)
    ]
    names = _names(subject.model)
    known: list[tuple[str, str]] = []
    for promise in promised:
        pairs = _pairs(promise, names)
        if not pairs:
            missing = next((n for n in (promise.a, promise.b) if not _under(n, names)), promise.b)
            yield inconclusive(
                f"Replicated names {missing!r}, which the model does not have", code="unknown-name"
            )
        known += pairs
    if not known:
        return
    trace = record(subject, pairs=known)
    if trace.error is not None and trace.steps == 0:
        raise trace.error
    bad = False
    for pair in known:
        step = next((i for i, found in enumerate(trace.pairs) if found[pair] > 0.0), None)
        if step is None:
            continue
        bad = True
        place = None
        if subject.contract.train_step is not None:
            place = last_write(subject, *pair, before=step)
        yield explain.parted(subject, pair, trace, step, trace.pairs[step][pair], place)
    if not bad:
        yield passed(f"{len(known)} pairs are bit-equal after each of {trace.steps} steps")


def _names(model: nn.Module) -> set[str]:
    return {*dict(model.named_parameters(remove_duplicate=False)), *dict(model.named_buffers())}


def _under(name: str, names: set[str]) -> list[str]:
    """Return the tensors that a name means: itself, or all of a module."""
    return [name] if name in names else sorted(n for n in names if n.startswith(f"{name}."))


def _pairs(promise: promises.Replicated, names: set[str]) -> list[tuple[str, str]]:
    """Pair the tensors of two modules by their own names, or two parameters."""
    a, b = _under(promise.a, names), _under(promise.b, names)
    if a == [promise.a] and b == [promise.b]:
        return [(promise.a, promise.b)]
    others = {name.removeprefix(promise.b): name for name in b}
    return [
        (n, others[n.removeprefix(promise.a)]) for n in a if n.removeprefix(promise.a) in others
    ]


def non_finite_guard(subject: Subject) -> Iterator[Finding]:
    """Make every gradient NaN in one call of the step and look at the weights."""
    broken: list[str] = []

    def look(_: int, model: nn.Module) -> None:
        broken.extend(
            name for name, p in model.named_parameters() if not bool(torch.isfinite(p).all())
        )

    trace = record(subject, steps=1, amplify=math.nan, after_step=look)
    if not trace.backwards() and trace.error is None:
        yield inconclusive(
            "the step runs no backward, so no gradient could be made NaN", code="nothing-recorded"
        )
    elif broken:
        total = sum(1 for _ in subject.model.parameters())
        yield explain.not_guarded(trace.optimizer_steps()[-1], broken, total)
    elif trace.error is not None:
        yield passed(
            f"the step raises {type(trace.error.error).__name__} before it changes the weights"
        )
    else:
        yield passed(
            "the weights are finite after a step whose gradients were NaN; "
            f"{len(trace.optimizer_steps())} optimizer steps ran"
        )
