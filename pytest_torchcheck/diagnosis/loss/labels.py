"""Targets that do not fit, explained, and frames of a CTC loss that no sample is long enough to use."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...probes.recorded.chosen_slices import chosen_slice
from ...probes.recorded.operations import record
from ...probes.recorded.watch import Watch, name_of
from ...runs.again import forward_and_loss
from ...runs.losses.consumption import evidence
from ...verdicts import suspicious, violated
from ..crashes.place import Place
from ..gradient.heads import head_culprits, layer_of, widened
from ..outputs.eval_lines import eval_run
from ..outputs.places import finding_at, first_difference
from .consumed import declared_loss_line
from .shifts import shifting_lines
from .target_origins import target_culprits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...batches import Batch
    from ...findings import Location
    from ...probes.loss.arguments import Alignable
    from ...probes.recorded.watch import Op
    from ...runs.losses.consumption import Consumed
    from ...subject import Subject


def too_few_outputs(subject: Subject, classes: int, used: Consumed) -> Finding:
    """Explain a head with fewer outputs than there are classes."""
    made_at = used.producer.op.location if used.producer is not None else used.place
    name = layer_of(subject.model, used.weight, used.classes) if used.weight else ""
    head = head_culprits(subject.model, name, used.classes) if name else ()
    called = Culprit("output", used.weight or "the last layer", f"{used.classes} outputs", made_at)
    place = (head[0].location if head else None) or made_at or declared_loss_line(subject)
    return violated(
        "label-classes",
        f"the head has {used.classes} outputs, but {classes} classes are declared",
        culprits=[*head, *([called] if not head or made_at != place else [])],
        location=place,
        observed=f"logits {list(used.shape)}; Labels(classes={classes})",
        cause=f"labels {used.classes} and above have no output",
        because="the class dimension is smaller than the number of classes; on CUDA this is a device-side assert",
        fix=widened(head, f"{classes} outputs"),
    )


def blank_labels(subject: Subject, used: Consumed, labels: Alignable) -> Finding:
    """Explain a CTC loss whose targets hold the blank."""
    made = made_lines(subject)
    last = labels.blank == labels.classes - 1
    if labels.trailing:
        cause = "target_lengths include the padding, which is the blank"
        fix = "pass the length of each target without its padding as target_lengths"
    else:
        cause = f"a label has the index of the blank, {labels.blank}"
        fix = (
            "give the head one more output for the blank, and pass its index as blank="
            if last
            else "start the labels at 1 where they are created, or pass another blank="
        )
    return violated(
        "label-blank",
        f"targets of ctc_loss contain the blank, {labels.blank}",
        culprits=[_ctc_call(subject, used, f"blank={labels.blank}"), *made],
        location=used.place or declared_loss_line(subject),
        observed=f"{labels.blanks} of {labels.counted} labels are {labels.blank}; labels from "
        f"{labels.low} to {labels.top}, "
        f"{labels.classes} classes",
        cause=cause,
        because="the blank separates labels: a label with its index is never decoded",
        fix=fix,
    )


def blank_declared(subject: Subject, used: Consumed, labels: Alignable) -> Finding:
    """Warn of declared labels of a CTC loss that reach over the blank, which the drawn ones hold or not."""
    return suspicious(
        "label-blank",
        f"the targets of ctc_loss are declared with the blank, {labels.blank}, among them",
        culprits=[_ctc_call(subject, used, f"blank={labels.blank}")],
        location=used.place or declared_loss_line(subject),
        observed=f"{subject.contract.targets}; {labels.classes} classes",
        cause=f"a label has the index of the blank, {labels.blank}",
        because="the blank separates labels: a label with its index is never decoded",
        fix="declare the labels without it, as Ints(low=1, ...), where the data has none; else start them at 1, or pass "
        "another blank=",
    )


def beyond_the_classes(subject: Subject, used: Consumed, labels: Alignable) -> Finding:
    """Explain labels of a CTC loss that have no output."""
    made = made_lines(subject)
    return violated(
        "label-range",
        (
            f"targets of ctc_loss range from {labels.low} to {labels.top}, and there are "
            f"{labels.classes} classes"
        ),
        culprits=[_ctc_call(subject, used, f"{labels.classes} classes"), *made],
        location=used.place or declared_loss_line(subject),
        observed=f"{labels.counted} labels from {labels.low} to {labels.top}; {labels.classes} "
        "classes, the blank included",
        cause="labels have no output: one is missing for the blank, or padding values are "
        "counted as labels",
        because="ctc_loss reads memory outside log_probs for them, without an error",
        fix="give the head an output for every label and one for the blank, and exclude padding "
        "through target_lengths",
    )


def _ctc_call(subject: Subject, used: Consumed, detail: str) -> Culprit:
    return Culprit(
        "loss", used.criterion or "ctc_loss", detail, used.place or declared_loss_line(subject)
    )


def _renamed(line: Location | None) -> list[Culprit]:
    """Return the statement that gives what a line reads another name and masks nothing."""
    at = sources.alias_above(line) if line is not None else None
    detail = "gives them another name, unmasked"
    return [] if at is None else [Culprit("tensor", sources.assigned_name(at), detail, at)]


def _asked(subject: Subject, ignore: int) -> list[Culprit]:
    """Name the first line of a training step's forward and loss that compares a tensor with the ignored index."""
    found: list[Location] = []

    class Comparing(Watch):
        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            equal = name_of(func).rpartition(".")[2].strip("_") in ("ne", "eq", "not_equal")
            if equal and any(type(one) is int and one == ignore for one in args):
                found.extend(filter(None, (self.locate(),)))

    with subject.pristine(), Comparing(subject.model):
        forward_and_loss(subject)()
    detail = f"tells where targets are {ignore}, and does not mask them for it"
    return [Culprit("call", "comparison", detail, at) for at in found[:1]]


def counted(
    subject: Subject,
    path: str,
    ignore: int,
    share: float,
    largest: float,
    merged: Sequence[tuple[Op, Op | None]],
    *,
    apart: bool,
) -> Finding:
    """Explain a loss that counts targets which are to be ignored.

    Args:
        subject: Whose loss.
        path: The output that gets a gradient there.
        ignore: The index.
        share: Of the ignored positions that get one.
        largest: Largest magnitude of it.
        merged: The operations that merge ignored positions with the others, the last one first, each
            with what made the values that it merges.
        apart: Whether the term that pulls there is another than the one that reads the labels.
    """
    op, made = next(((a, b) for a, b in merged if a.location is not None), (None, None))
    line = declared_loss_line(subject) if op is None else op.location
    culprits = [Culprit("loss", "loss", f"ignore_index={ignore} has no effect", line)]
    because = "the loss's gradient at an ignored position must be exactly zero"
    if op is not None:
        name = op.name.rpartition(".")[2]
        culprits.append(Culprit("call", name, "counts the ignored positions", line))
        because += f"; {name}{on_line(line)} passes one on to them"
        if made is not None and made.location not in (None, line):
            word = made.name.rpartition(".")[2]
            detail = "makes the values that are counted"
            culprits.append(Culprit("call", word, detail, made.location))
            because += f", in the values that {word} makes{on_line(made.location)}"
        culprits += [*_renamed(line), *_asked(subject, ignore)]
    observed = f"{share:.0%} of the ignored positions of {path} receive a gradient"
    observed += f", up to {largest:.3g}"
    if apart:
        return suspicious(
            "ignored-counted",
            f"a term of the loss pulls on outputs whose targets are {ignore}, declared as ignored",
            culprits=culprits,
            location=line,
            observed=observed,
            cause="a term that does not read the targets covers the ignored positions too, as one of "
            "consistency is meant to",
            because=f"{because}; its direction is that of no label",
            fix="mask these positions in that term, unless they are meant to be trained by it",
        )
    return violated(
        "ignored-counted",
        f"targets of {ignore} are declared as ignored, but the loss counts them",
        culprits=culprits,
        location=line,
        observed=observed,
        cause="the loss does not use this ignore_index, or averages before masking",
        because=because,
        fix=f"pass ignore_index={ignore} to the loss, or mask before the mean",
    )


def made_lines(subject: Subject) -> tuple[Culprit, ...]:
    """Return where the targets of the loss are made: within the loss, else where they are handed over."""
    within = next((u.target_place for u in evidence(subject).consumed if u.target_place), None)
    if within is not None:
        return (Culprit("target", "targets", "created here", within),)
    contract = subject.contract
    if subject.batch().origin == "drawn":
        return ()
    return target_culprits(contract.batch, contract.loss, type(subject.model))


def shifted(
    subject: Subject, path: str, shift: int, share: float, labels: str, ids: str
) -> Finding:
    """Explain a language model that learns another token than the next one.

    ``labels`` and ``ids`` are the paths of its targets, and of the input whose tokens these are.
    """
    made = made_lines(subject)
    name = labels.rpartition(".")[2]
    within = made[0].location if made and not labels.startswith("targets") else None
    line = within or declared_loss_line(subject)
    what = {0: "the current token, which is its input", -1: "the previous token"}.get(
        shift, f"the token {shift} positions ahead"
    )
    fix = (
        "shift the targets by one: logits[:, :-1] against ids[:, 1:]"
        if shift < 1
        else "shift once only: in the loss or in the targets"
    )
    shifts = shifting_lines(subject, labels) if shift > 1 else []
    if len(shifts) > 1:  # the last one may be that of a function which others call too
        line = shifts[0]
        fix = f"shift once only: leave it out on line {line.line}, or on line {shifts[-1].line}"
    cause = f"logits and {name} are shifted twice"
    if len(shifts) > 1:
        cause += f", on lines {' and '.join(str(one.line) for one in shifts[:3])}"
    return violated(
        "label-shift",
        f"each position is trained to predict {what}, not the next token",
        culprits=[
            Culprit("target", name, f"shift {shift}", line),
            *(Culprit("target", name, "shifted here again", one) for one in shifts[1:3]),
            *(one for one in made if one.location not in shifts),
            Culprit("input", ids, f"its token t{shift:+d} is what position t learns"),
        ],
        observed=f"at {share:.0%} of the positions of {path} the gradient of the loss favours "
        f"{ids}[t{shift:+d}]",
        cause=f"logits and {name} are not aligned" if shift < 1 else cause,
        because="the most negative gradient of each position's logits is at that token",
        fix=fix
        + (
            f"; the targets are created on line {made[0].location.line}"
            if made and made[0].location and made[0].location not in (line, *shifts)
            else ""
        ),
    )


def own_answer(
    subject: Subject, path: str, output: str, ahead: int, changed: Batch, *, later: bool, sure: bool
) -> Finding:
    """Explain outputs that depend on the very value of a series that they are trained to predict.

    Args:
        subject: The model.
        path: The series.
        output: The output.
        ahead: How far after an output's position the value stands that is its target.
        changed: The batch with another value at one such place.
        later: Whether outputs depend on values after that too.
        sure: Whether reading it cannot be meant.
    """
    place = None
    if ahead:  # of its own position a value may be read, and must not reach the output there
        runs = (eval_run(subject, batch) for batch in (subject.batch(), changed))
        place = first_difference(subject, *runs)
        place = None if place is None else replace(place, fact="")
    elif (place := _taken(subject, changed)) is not None:
        place = replace(place, settings=(Culprit("input", path, "holds the answer"),))
    end = "values after it are read too" if later else "no value after it is read"
    at = f"t{ahead:+d}" if ahead else "t"
    return finding_at(
        place,
        subject,
        "label-shift",
        f"each position is trained to predict {path}[{at}], and reads it",
        made=violated if sure else suspicious,
        instead=Culprit("input", path, "holds the answer"),
        observed=f"{path}[:, {at}] changed: {output}[:, t] moved at every t that was tried; {end}",
        cause=(
            "the features of a position begin one step late, or a shift or a mask is missing"
            if ahead
            else "the output is taken from a place that knows the answer, or a shift or a mask is missing"
        )
        + ("" if sure else "; to read the value may be meant, as in an autoencoder"),
        because=f"the targets are {path}[{at}], bit for bit, and nothing else differed between "
        "two eval forwards",
        fix=f"let output t depend on values of {path} before {at} only: slice its features one step earlier, "
        "or shift or mask them",
    )


def _taken(subject: Subject, changed: Batch) -> Place | None:
    """Return the line that takes a part which knows the answer, where another part of the same value knows less."""
    with subject.pristine() as model:
        runs = [record(eval_run(subject, batch), model) for batch in (subject.batch(), changed)]
    found = chosen_slice(*runs)
    if found is None or found.step.op.location is None:
        return None
    op, line = found.step.op, on_line(found.step.op.location)
    part = f"[{', '.join([*':' * found.dim, str(found.taken)])}]"
    other = f"[{', '.join([*':' * found.dim, str(found.other)])}]"
    return Place(
        op=op.name,
        location=op.location,
        module=op.module,
        module_class=op.module_class,
        cause=f"the output is computed from {part}{line}, which knows the answer; {other} does not",
        fact=f"at {found.more} elements {part} moved with the answer and {other} did not",
        fix=f"take {other} in place of {part}{line}, or mask the answer",
    )


def padding(subject: Subject, path: str, share: float, count: int) -> Finding:
    """Explain a loss that trains on padding."""
    line = declared_loss_line(subject)
    return violated(
        "padding-counted",
        "the loss includes padded positions",
        culprits=[Culprit("loss", "loss", "counts padding", line)],
        observed=f"{share:.0%} of {count} padded positions of {path} receive a gradient",
        cause="padded positions are averaged like real ones",
        because="the loss's gradient at a padded position must be exactly zero",
        fix="mask the loss before the mean, or set padded targets to ignore_index",
    )


def frames_unread(subject: Subject, used: Consumed, labels: Alignable) -> Finding:
    """Explain lengths of a CTC loss that end before the frames of the longest sample do."""
    made = _making(subject, labels.lengths)
    call = used.place or declared_loss_line(subject)
    place = made[0] if made else call
    most = max(labels.lengths)
    also = "".join(f", after line {line.line}" for line in made[1:2])
    return violated(
        "frames-unread",
        f"ctc_loss reads the first {most} of {labels.frames} frames at most, though the longest sample fills its input",
        culprits=[
            Culprit("loss", used.criterion or "ctc_loss", f"input_lengths up to {most}", call),
            *(Culprit("call", "lengths", "are computed here", line) for line in made),
        ],
        location=place,
        observed=f"input_lengths up to {most}; log_probs of {labels.frames} frames",
        cause="the lengths are shortened more than the sequence is"
        + (f": last on line {place.line}{also}" if made and place else ""),
        because="what comes after the last length has no part in the loss, and is never learnt",
        fix="compute each length as the layers change the length of the sequence, once for each stride",
    )


def _making(subject: Subject, lengths: tuple[int, ...]) -> list[Location]:
    """Return the lines of the forward that compute the lengths, the last one first; none where it does not."""
    with subject.pristine() as model:
        trace = record(eval_run(subject, subject.batch()), model)
    place = next((p for p in trace.outputs if _is(trace.values[p].values, lengths)), None)
    found: dict[Location, None] = {}
    while place is not None and (step := trace.makers.get(place)) is not None:
        if step.op.location is not None:
            found.setdefault(step.op.location)
        counts = (
            p for p in step.operands if p != place and trace.values[p].shape == (len(lengths),)
        )
        place = next(counts, None)
    return list(found)


def _is(values: object, lengths: tuple[int, ...]) -> bool:
    shape = getattr(values, "shape", None)
    return shape == (len(lengths),) and tuple(values.tolist()) == lengths  # type: ignore[attr-defined]
