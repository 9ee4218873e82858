"""Why other batch sizes do not work, and what a sample's output has to do with their number."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...explanation import on_line
from ...findings import Culprit, Finding
from ...probes.recorded.watch import Watch, name_of
from ...runs.outputs import gaps_between, outputs_of
from ...runs.unrounded import apart_by_rounding
from ...runs.variants.largest import sizes_of
from ...sources import edits
from ...state import is_device_error
from ...subject.errors import SubjectError
from ...text.printable import message_of
from ...verdicts import explained, inconclusive, suspicious, violated
from ..crashes.explain import explain_error
from ..crashes.place import Place
from ..lines.spelled_sizes import spelled
from ..mixing.rewritten import rewritten
from . import eval_lines, places
from .samples import forward_line, may_be_meant, of_statistics, one_grid, only_batch_statistics

if TYPE_CHECKING:
    from ...batches import Batch
    from ...explanation import Explanation
    from ...record.tracing import Swallowed
    from ...runs.outputs import Rows
    from ...subject import Subject


def fixed_size(
    subject: Subject, batch: Batch, size: int, error: SubjectError, *, meant: bool, doubled: str
) -> Finding:
    """Explain a model or a loss that raises at one sample less than the batch has.

    It is wrong where the source spells the size out; a state of that size, kept on purpose, raises too,
    and a number that the constructor is given may be meant.

    Args:
        subject: The model.
        batch: The batch without its last sample.
        size: How many samples the batch has.
        error: What the shorter one raised.
        meant: Whether it may be meant: twice as many give twice as much, as of samples that are read in
            groups, or samples have to do with each other.
        doubled: What it does with twice as many.
    """
    if is_device_error(error.error):
        raise error
    known = spelled(error.error, size)
    what = "loss" if error.phase == "loss" else "model"
    said = message_of(error.error).strip().partition("\n")[0][:140]
    if known is None or meant:
        place = sources.of_error(error.error)
        at = f" ({place.text})" if place is not None else ""
        return inconclusive(
            (
                f"the {what} runs with {size} samples, but not with {size - 1}{at}: "
                f"{type(error.error).__name__}: {said}"
            ),
            code="size-crash",
            location=place,
        )
    place, word = known
    is_name = "" if word == str(size) else f", which is {size},"
    instead = edits.like_tensor(place, f"shape[{subject.contract.batch_dim or 0}]")
    return violated(
        "size-crash",
        f"the batch size is hard-coded in the {what}: {word} on line {place.line}",
        culprits=[Culprit("call", place.text[:80], location=place)],
        observed=f"the batch has {size} samples; without the last one the {error.phase} raises "
        f"{type(error.error).__name__}: {said}",
        cause=f"line {place.line} contains {word}{is_name} where the batch size is needed",
        because=f"the {what} runs with {size} samples, but not with {size - 1}; {doubled}",
        fix=f"take the size from the input{f', such as {instead},' * bool(instead)} instead of {word}",
        evidence={"sizes": dict(batch.sizes)},
    )


def fixed_count(subject: Subject, batch: Batch, path: str, size: int) -> Finding:
    """Explain a model that returns as many outputs for fewer samples.

    Args:
        subject: The model.
        batch: The batch without its last sample.
        path: An output.
        size: How many samples the whole batch has.
    """
    axis = subject.contract.batch_dim or 0
    found: list[Place] = []

    class Counts(Watch):
        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            given = args[0] if args else None
            if not isinstance(given, torch.Tensor) or not isinstance(result, torch.Tensor):
                return
            first, then = given.shape[axis : axis + 1], result.shape[axis : axis + 1]
            if (first, then) == ((size - 1,), (size,)):
                fact = f"{name_of(func)} turned {list(given.shape)} into {list(result.shape)}"
                where = self.locate()
                found.append(
                    Place(op=name_of(func), location=where, module=self.module_name, fact=fact)
                )

    with subject.pristine() as model, Counts(model):
        eval_lines.eval_run(subject, batch)()
    place = found[-1] if found else None
    return violated(
        "batch-size-dependent",
        f"{path} has {size} entries for {size - 1} samples",
        culprits=place.culprits() if place else [Culprit("output", path, f"{size} entries")],
        location=place.location if place else forward_line(subject),
        observed=f"{path} has {size} entries for {size} samples, and as many without the last one",
        cause=f"the number of outputs is {size}, however many samples there are",
        because=(f"{place.fact}; " if place else "")
        + f"with {size} samples each entry of {path} depends on its own sample alone",
        fix=f"take the number of samples from the input, such as x.shape[{axis}]",
        evidence={"sizes": dict(batch.sizes)},
    )


def size_crash(subject: Subject, batch: Batch, error: SubjectError) -> Finding:
    """Explain a size within the declared range at which the model raises."""
    if is_device_error(error.error):
        raise error  # nothing runs on that device any more: told as a crash, replayed elsewhere
    largest = _explained(subject, batch, error)
    batch, error = _smallest(subject, batch, error)
    known = _explained(subject, batch, error)
    sizes = sizes_of(batch)
    # what suffices for the smallest batch may not for the one that was met first
    fix = largest.fix if largest.code == known.code else known.fix
    return explained(
        known,
        code="size-crash" if known.code == "crash" else known.code,
        summary=f"the model does not run at {sizes}: {known.summary}",
        observed=f"{batch.describe()}; {known.observed}",
        fix=fix + f" (or narrow the declared sizes if {sizes} need not work)",
        evidence={"sizes": dict(batch.sizes), "batch": batch.describe()},
    )


def step_size_crash(subject: Subject, batch: Batch, error: SubjectError) -> Finding:
    """Explain a training step that raises on a batch with one sample less than the declared one."""
    known = _explained(subject, batch, error)
    (size,) = (batch.sizes[name] for name in (subject.source.batch_symbol,) if name is not None)
    return explained(
        known,
        code="size-crash" if known.code == "crash" else known.code,
        summary=f"the step runs on {size + 1} samples and not on {size}: {known.summary}",
        observed=f"{batch.describe()}; {known.observed}",
        evidence={"sizes": dict(batch.sizes), "batch": batch.describe()},
    )


def step_swallows(subject: Subject, batch: Batch, error: Swallowed) -> Finding:
    """Explain a training step that catches an error and updates nothing for a batch with one sample less."""
    size, place = batch.sizes[subject.source.batch_symbol or ""], error.place
    return violated(
        "error-swallowed",
        f"the step trains on {size + 1} samples and learns nothing from {size}: it catches {error.kind}",
        culprits=(Culprit("call", place.function or "train_step", f"raises {error.kind}", place),),
        observed=f"with {batch.describe()} the step returns, but no parameter changes and no gradient is left",
        cause=f"{error.kind} is raised at {place.file.rpartition('/')[2]}:{place.line} and caught inside the step",
        because=f"no such error comes with {size + 1} samples; with {size} it says: {error.text}",
        fix=f"make the step work on {size} samples, and catch only the exceptions that it is meant to handle",
        evidence={"sizes": dict(batch.sizes), "error": error.text},
    )


def _explained(subject: Subject, batch: Batch, error: SubjectError) -> Explanation:
    with subject.pristine(steps=True, train=False) as model:
        return explain_error(
            error.error,
            phase=error.phase,
            model=model,
            batch=batch,
            rerun=error.rerun,
            device=str(subject.device),
        )


def _smallest(subject: Subject, batch: Batch, error: SubjectError) -> tuple[Batch, SubjectError]:
    """Shrink a batch at which the model raises, sizes first; return it with its own error."""
    from ...strategies.minimise import minimise  # spares importing Hypothesis

    raised = {_kind(error): error}

    def fails(candidate: Batch) -> bool:
        try:
            subject.forward(subject.place(candidate))
        except SubjectError as again:
            if _kind(again) not in raised:
                return False  # another failure than the one that is explained
            raised[_kind(again)] = again
            return True
        return False

    smallest = minimise(subject.source, fails, batch, budget=60)
    fails(smallest)  # the last one tried need not be the smallest that failed
    return smallest, raised[_kind(error)]


def _kind(error: SubjectError) -> tuple[str, str]:
    place = sources.of_error(error.error)
    return type(error.error).__name__, f"{place.file}:{place.line}" if place else ""


def single_shape(
    subject: Subject, batch: Batch, path: str, wanted: list[int], got: list[int] | None
) -> Finding:
    """Explain an output that loses or keeps wrong dimensions for a batch of one."""
    place = _squeezing_line(subject, batch)
    return violated(
        "batch-of-one",
        f"{path} has shape {got} for a batch of one; {wanted} was expected",
        culprits=place.culprits() if place else [Culprit("output", path, f"shape {got}")],
        location=place.location if place else forward_line(subject),
        observed=f"{path}: {got} instead of {wanted}",
        cause="an operation drops every dimension of size one, including the batch"
        if place
        else "the shape of the output does not follow the batch",
        because=place.fact if place else "the same output has a batch dimension for larger batches",
        fix=place.fix if place else "keep the dimension of the samples in the output",
    )


def _squeezing_line(subject: Subject, batch: Batch) -> Place | None:
    """Return the last call that drops every dimension of size one, with those that are not the batch's as its fix."""
    found: list[Place] = []
    samples = subject.contract.batch_dim or 0

    class Squeezes(Watch):
        def after(self, func: Any, args: Any, kwargs: Any, result: Any, token: Any) -> None:
            bare = name_of(func).rpartition(".")[2]
            if (
                bare == "squeeze"
                and len(args) == 1
                and not kwargs
                and isinstance(result, torch.Tensor)
            ):
                scope = self.module_name
                fact = f"squeeze() turned {list(args[0].shape)} into {list(result.shape)}"
                dims = tuple(d for d, n in enumerate(args[0].shape) if n == 1 and d != samples)
                own = dims[0] if len(dims) == 1 else dims
                fix = f"name the dimension: .squeeze({own}) instead of .squeeze()"
                if not name_of(func).startswith("Tensor."):
                    fix = f"pass dim={own} to squeeze"
                found.append(
                    Place(
                        op=name_of(func), location=self.locate(), module=scope, fact=fact,
                        fix=fix if dims else f"drop .squeeze(){on_line(self.locate())}",
                    )
                )  # fmt: skip

    with subject.pristine() as model, Squeezes(model):
        eval_lines.eval_run(subject, batch)()
    return found[-1] if found else None


def size_dependent(
    subject: Subject,
    batch: Batch,
    single: Batch,
    rows: Rows,
    gaps: dict[str, float],
    of: torch.Tensor | None = None,
) -> Finding:
    """Explain a sample whose output differs between alone, or among few, and in a batch.

    Args:
        subject: The model.
        batch: A batch.
        single: Its first sample alone; with ``of``, few of its samples.
        rows: Where the samples stand in the outputs.
        gaps: How far the outputs lie apart, by path.
        of: int64 ``[n]``, which samples of ``batch`` are those of ``single``.
    """
    path, gap = max(gaps.items(), key=lambda item: item[1])
    symbol = subject.source.batch_symbol or ""
    size, few = batch.sizes[symbol], single.sizes[symbol]
    mixing = places.mixing_line(subject)
    place = mixing if mixing is not None and mixing.cause else None
    if place is None and of is None:
        place = _size_line(subject, batch, single)
    which = "" if of is None else _from_which(subject, batch, single, rows, few)
    same = (batch, single, rows, torch.arange(few) if of is None else of, torch.arange(few))
    if apart_by_rounding(subject, *same):
        return one_grid("batch-size-dependent", path, gap, place)
    if only_batch_statistics(subject, *same):
        return of_statistics("batch-size-dependent", path, gap, mixing)
    place = rewritten(subject, *same) or place
    return places.finding_at(
        place,
        subject,
        "batch-size-dependent",
        f"{path} of a sample differs between a batch of {few if few > 1 else 'one'} and a batch of {size}",
        made=suspicious if may_be_meant(subject, rows, gaps) else violated,
        instead=Culprit("output", path, "depends on the batch size"),
        observed=f"{path} moved by {gap:.3g} (relative)"
        + (f"; the last sample's does so {which}" if which else ""),
        cause="an operation uses the size of the batch, or a statistic over it"
        if of is None
        else "the forward depends on the number of samples: by a chunk size, a limit, or a condition on the "
        "batch size",
        because="sample, seed and mode were the same; only the number of samples differed",
        fix="compute it per sample"
        if of is None
        else f"look in the forward for a chunk size or limit of at most {size} samples, or a condition on the "
        "batch size",
        evidence={"gaps": dict(gaps)},
    )


_STEPS = 64
_APART = 1e-3


def _from_which(subject: Subject, batch: Batch, few: Batch, rows: Rows, count: int) -> str:
    """Say from how many samples on, or among how many alone, the last one's output is not what it is among few."""
    symbol = subject.source.batch_symbol or ""
    size, last = batch.sizes[symbol], torch.tensor([count - 1])
    with subject.pristine() as model:
        alone = outputs_of(subject, model, few)

        def differs(number: int) -> bool:
            some = subject.source.rows(batch, torch.arange(size - number, size) % size)
            try:
                made = outputs_of(subject, model, some)
            except SubjectError:
                return False
            gaps = gaps_between(made, alone, rows, torch.tensor([number - 1]), last)
            return max(gaps.values()) > _APART

        for number in range(count + 1, min(size, _STEPS) + 1):
            if differs(number):
                beyond = differs(number + 1)
                return f"from {number} samples on" if beyond else f"among {number} samples only"
    return ""


def _size_line(subject: Subject, batch: Batch, single: Batch) -> Place | None:
    """Return the first operation whose result for a sample depends on how many samples there are."""
    # the first sample once more tells a count; a mean or variance over the batch needs another one
    # beside it
    more = torch.arange(single.sizes[subject.source.batch_symbol or ""] + 1)
    for rows in (more % (len(more) - 1), more):
        place = places.first_difference(
            subject,
            eval_lines.eval_run(subject, single),
            eval_lines.eval_run(subject, subject.source.rows(batch, rows)),
            allowed=1e-4,
            align="prefix",
        )
        if place is not None:
            return place
    return None
