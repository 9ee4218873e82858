"""Missing, dead and broken gradients, explained: which line loses them, what to change, what nothing trains."""

from __future__ import annotations

import ast
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from ... import sources
from ...explanation import parameter
from ...findings import Culprit, Finding, Location
from ...probes.gradient.provenance import find_cut
from ...probes.gradient.scripted import cuts_in_scripts
from ...runs.again import forward_and_loss
from ...text.wording import exact_globs, have, names_text
from ...verdicts import suspicious, violated
from ..loss.consumed import loss_line
from . import unused_results as unused
from .cuts import CAUSES, fix_of, kind_at
from .evaluation_only import evaluation_only, read_in_evaluation
from .siblings import called_instead, read_instead
from .zero import looks, place_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...probes.gradient.provenance import GraphCut
    from ...probes.recorded.watch import Op
    from ...runs.omitted import Omitted
    from ...runs.training.steps import Trajectory
    from ...subject import Subject
    from .siblings import Sibling

_MOST: Final = 2


def missing(subject: Subject, names: list[str], total: int) -> Iterator[Finding]:
    """Explain parameters whose gradient is None, one finding for each place that loses them."""
    parameters = subject.named_parameters()
    with subject.pristine():
        cuts = find_cut(
            forward_and_loss(subject),
            subject.model,
            {name: parameters[name] for name in names if name in parameters},
        )
    unread = [name for name in names if name in cuts and cuts[name].kind == "never-used"]
    cuts.update(cuts_in_scripts(subject.model, unread))
    elsewhere = read_in_evaluation(subject, unread)
    groups: dict[Any, list[str]] = defaultdict(list)
    for name in names:
        reading = elsewhere.get(name)
        within = None if reading is None else (reading.file, reading.function)
        groups[(*place_of(cuts.get(name)), within)].append(name)
    for (kind, *_), group in groups.items():
        yield _missing(subject, group, total, kind, cuts.get(group[0]), elsewhere.get(group[0]))


def _missing(
    subject: Subject,
    names: list[str],
    total: int,
    kind: str,
    cut: GraphCut | None,
    reading: Location | None,
) -> Finding:
    op = cut.op if cut is not None else None
    location = cut.location if cut is not None else sources.of_parameter(subject.model, names[0])
    if op is not None and op.name == "nn.Parameter" and location is not None:
        # made outside torch's functions, it is seen where it is first used
        location = sources.line_above(location, r"\bParameter\(") or location
    culprits = [parameter(subject, name, "grad is None") for name in names]
    _beside_parameters(kind, subject, culprits, op, location, cut)
    if cut is not None and cut.region is not None:
        location = cut.region  # the line to change: it turned gradients off for the operation
        if not cut.module:
            culprits.append(Culprit("call", op.name if op else "no_grad", location=cut.location))
    kind = kind_at(kind, location)
    cause = _cause_of(kind, op)
    fix = fix_of(kind, location, default="connect it to the loss")
    named = exact_globs(names, subject.named_parameters())
    fix = fix.format(names=named)
    if cut is not None and cut.losing:
        outer = cut.losing[0].line
        cause += f"; line {outer} calls it and uses the result for the loss"
        fix += f", or call a version that records gradients on line {outer}"
        culprits += _calls_of(cut)
    if kind == "not-reaching-loss" and location is not None:
        more, mend, location = _not_read(subject, op, location, culprits)
        cause, fix = cause + more, mend or fix
    if kind in ("integer-cast", "non-differentiable") and op is not None and location is not None:
        more, mend, used = unused.picked(subject, op, location)
        cause, fix = cause + more, mend or fix
        culprits += used
    if kind == "never-used":
        cause, fix, location = _unread(subject, names[0], reading, (cause, fix, location), culprits)
        fix += f", or declare MayLackGradient({named}, reason=...)"
    # the last bias of an energy has no influence on its derivative: correct models have it, and
    # a codebook behind a straight-through estimator may be trained by hand
    doubtful = kind in ("differentiated", "compiled") or (
        kind == "straight-through" and not _idle(subject, names)
    )
    judge = suspicious if doubtful else violated
    return judge(
        "grad-none",
        f"{names_text(names)} {have(names)} no gradient ({len(names)} of {total} parameters)",
        culprits=culprits,
        location=location,
        observed=f"backward ran over {1 + looks()} batches and seeds and after steps; the gradient is always None",
        cause=cause,
        because=(cut.fact if cut is not None else "") or "its gradient is None after backward",
        fix=fix,
        evidence={
            "kind": kind,
            "parameters": list(names),
            "rivals": [str(rival) for rival in (cut.rivals if cut is not None else ())],
        },
    )


def _idle(subject: Subject, names: list[str]) -> bool:
    """Say whether the declared optimizer holds parameters that no training step has changed by a bit."""
    steps: Trajectory | None = subject.cache.get("trajectory")
    if subject.contract.optimizer is None or steps is None or steps.error is not None:
        return False
    return all(name in steps.coverage.held and steps.moved.get(name) == 0 for name in names)


def _unread(
    subject: Subject,
    name: str,
    reading: Location | None,
    said: tuple[str, str, Location | None],
    culprits: list[Culprit],
) -> tuple[str, str, Location | None]:
    """Say why no operation reads a parameter: cause, fix, and the line to change; add culprits."""
    cause, fix, location = said
    if reading is not None:
        only = evaluation_only(subject, reading)
        culprits += only.culprits
        return f"it is read in evaluation mode only: {only.fact}", only.fix, only.location
    if (instead := _called_instead(subject, name)) is not None:
        cause, fix = _used_instead(cause, instead, culprits)
        location = instead.line if instead.sure else location
    return cause, fix, location


def _not_read(
    subject: Subject, op: Op | None, location: Location, culprits: list[Culprit]
) -> tuple[str, str, Location]:
    """Say what loses a result that a line computes: cause, fix, and the line to change; add culprits."""
    more, mend, used = unused.bound(subject, location)
    culprits += used
    got: list[Culprit] = []
    if op is not None and not (more or used):
        got, use = unused.received(subject, op, location)
    if got and got[0].location is not None:
        culprits += got
        return f"; {got[0].name} {got[0].detail}", use, got[0].location
    if more or (entry := unused.entry_read(subject, location)) is None:
        return more, mend, location
    holder, line = entry
    culprits.append(Culprit("call", holder, "the result is put in it", location))
    more = (
        f"; line {location.line} puts it in {holder}, of which line {line.line} reads another entry"
    )
    return (
        more,
        f"read the entry that was meant on line {line.line}, or drop the part that computes it",
        line,
    )


def _cause_of(kind: str, op: Op | None) -> str:
    """Return why the gradient is None."""
    cause = CAUSES.get(kind, "the graph between it and the loss is cut")
    if op is not None and kind in (
        "integer-cast",
        "non-differentiable",
        "sampling",
        "not-reaching-loss",
    ):
        cause = f"{cause} ({op.name})"
    return cause


def _calls_of(cut: GraphCut) -> Iterator[Culprit]:
    """Iterate over the calls that get nothing with a graph back, the outermost first."""
    place = cut.region or cut.location
    names = {at.function.rpartition(".")[2] for at in (place, *cut.losing) if at is not None}
    for line in cut.losing[:_MOST]:
        called = map(sources.called, sources.around(line.file, line.line, ast.Call))
        name = next((one for one in called if one in names), "")
        yield Culprit("call", name or line.text, "no return value here has a graph", line)


def _beside_parameters(
    kind: str,
    subject: Subject,
    culprits: list[Culprit],
    op: Op | None,
    location: Location | None,
    cut: GraphCut | None,
) -> None:
    """Add the loss that does not use them, and the module or call that computes with them."""
    if kind == "not-reaching-loss" and (line := loss_line(subject)) is not None:
        culprits.append(Culprit("loss", "loss", "does not use it", line))
    made = op.location if op is not None and op.location is not None else location
    if cut is not None and cut.module:
        culprits.append(Culprit("module", cut.module, str(op or ""), made))
    elif op is not None and made != location:
        culprits.append(Culprit("call", op.name, "computes it", made))


def _used_instead(cause: str, instead: Sibling, culprits: list[Culprit]) -> tuple[str, str]:
    """Say which module is called where this one is not."""
    cause += f"; {instead.fact}"
    index = "".join(f" ({name} is set on line {at.line})" for name, at in instead.chosen[:1])
    fix = f"use {instead.idle} instead of {instead.name} on line {instead.line.line}{index}, or delete it"
    culprits.append(
        Culprit("call", instead.name, f"used where {instead.idle} is not", instead.line)
    )
    culprits += [
        Culprit("call", name, f"the index that takes {instead.name}", at)
        for name, at in instead.chosen
    ]
    return cause, fix


def _called_instead(subject: Subject, name: str) -> Sibling | None:
    """Return the sibling that is used in the place of a parameter, or of the layer that owns it."""
    return read_instead(subject, name) or called_instead(subject, name)


def not_given(subject: Subject, omitted: dict[str, Omitted], total: int) -> Iterator[Finding]:
    """Explain parameters that are read only where the forward gets an argument, or data, which it did not get here."""
    groups: dict[tuple[str, Any], list[str]] = defaultdict(list)
    for name, found in omitted.items():
        groups[found.called, found.argument or found.line].append(name)
    for (called, argument), names in groups.items():
        found = omitted[names[0]]
        if not found.argument and found.line is not None:
            yield _not_taken(subject, names, found.line, total)
            continue
        module = found.module
        forward = f"{called}.forward"
        given = f"declare {argument} among the inputs, or " if not module else ""
        if found.by_user:
            given = f"pass {argument} where {module} is called, or "
        yield suspicious(
            "grad-none",
            f"{names_text(names)} {have(names)} no gradient: {argument} is not given ({len(names)} of {total} parameters)",
            culprits=[parameter(subject, name, "never read") for name in names],
            location=found.line,
            observed=f"no operation reads {'it' if len(names) == 1 else 'them'} in a forward without {argument}",
            cause=f"the branch that uses {'it' if len(names) == 1 else 'them'} is taken only where "
            f"{forward} receives {argument}, and it was left at its default",
            because=f"in a run with a value for {argument}, "
            + (f"line {found.line.line} reads {names[0]}" if found.line else f"{names[0]} is read"),
            fix=f"{given}declare MayLackGradient({exact_globs(names, subject.named_parameters())}, reason=...)",
            evidence={"kind": "not-given", "argument": argument, "parameters": list(names)},
        )


def _not_taken(subject: Subject, names: list[str], line: Location, total: int) -> Finding:
    """Explain parameters that a branch would read which no run took: the data decide whether it is."""
    it = "it" if len(names) == 1 else "them"
    return suspicious(
        "grad-none",
        f"{names_text(names)} {have(names)} no gradient: the branch that reads {it} was not taken ({len(names)} of {total} parameters)",
        culprits=[parameter(subject, name, "not read in these runs") for name in names],
        location=line,
        observed=f"no operation reads {it} over {1 + looks()} batches and seeds and after steps",
        cause=f"line {line.line} reads {it} in a branch that these data do not take",
        because=f"{line.function} ran, and did not come to that place on line {line.line}",
        fix=f"declare inputs or sizes for which the branch on line {line.line} is taken, or declare "
        f"MayLackGradient({names[0]!r}, reason=...)",
        evidence={"kind": "not-taken", "parameters": list(names)},
    )


def not_reparameterised(subject: Subject, stop: GraphCut) -> Finding:
    """Explain a normal draw through which its parameters get no gradient."""
    names = list(stop.parameters)
    owners = sorted({name.split(".")[0] for name in names})
    return violated(
        "sample-not-reparameterised",
        f"{names_text(owners)} {have(owners, 'receives')} no gradient through "
        f"{'its' if len(owners) == 1 else 'their'} random sample: "
        f"{stop.op.name if stop.op else 'normal'} has no gradient",
        culprits=[
            *(
                Culprit("module", name, "no gradient through the sample", stop.location)
                for name in owners
            ),
            *(parameter(subject, name, "no gradient through the sample") for name in names[:8]),
        ],
        location=stop.location,
        observed=f"{len(names)} parameters set the mean or deviation of a sample that enters "
        "trainable layers",
        cause="the value is sampled without reparameterisation",
        because=stop.fact,
        fix="reparameterise on this line: mean + std * torch.randn_like(std), or rsample()",
        evidence={"parameters": names},
    )
