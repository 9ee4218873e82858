"""From evidence on samples to findings."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sized
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding, Location
from ...verdicts import suspicious, violated
from .. import sample_lines, validity
from ..contents import Contents
from ..wording import dataset_culprit, few, line_ref, where
from .index_range import index_sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..describing import Leaf
    from ..plan import Part
    from ..relations.mutation import Rereading, Write
    from ..validity import Survey


_ON_GPU = re.compile(
    r"(?i)not compiled with CUDA|no (?:NVIDIA|CUDA)|re-initialize CUDA|CUDA error|cuda.*unavailable"
)


def empty(survey: Survey) -> Finding:
    """A dataset without samples; suspicious, since the data may be missing on this machine alone."""
    part = survey.part
    attributes = getattr(part.own, "__dict__", {})
    name, kind = next(
        (
            (name, type(value).__name__)
            for name, value in attributes.items()
            if isinstance(value, Sized) and len(value) == 0
        ),
        ("", ""),
    )
    place = sources.of_assignment(part.own, name) if name else None
    if place is None and part.is_map_style:
        place = next(iter(sample_lines.length_lines(part)), None)
    place = place or part.class_line
    return violated(
        "dataset-empty",
        f"{part.prefix}{part.name} holds no sample",
        culprits=(
            dataset_culprit(part, name or part.name, f"an empty {kind}" if kind else "", place),
        ),
        location=place,
        observed="len() is 0" if part.is_map_style else "the stream ended before its first sample",
        cause="no sample was found: a wrong path, pattern or split",
        because=f"{name} is an empty {kind}"
        if name
        else f"{line_ref(place)} {'answers 0' if part.is_map_style else 'returned none'}",
        fix=f"correct the path or pattern at {line_ref(place)}, and raise an error there if "
        "nothing is found",
    )


def read_error(survey: Survey) -> Finding:
    """A sample that cannot be read."""
    part, error = survey.part, survey.errors[0]
    lookup = error.type in ("IndexError", "KeyError")
    at_end = lookup and _are_last(survey)
    on_gpu = _ON_GPU.search(error.message) is not None
    made_of = index_sources(part, error.index, survey.seed + error.index) if lookup else []
    shown = [f"{one.name} {one.detail}" for one in made_of if one.order < 2]
    own = None if lookup or on_gpu else _failing_line(survey)
    return violated(
        "sample-raises",
        f"{part.prefix}reading sample {error.index} of {part.name} raises {error.type}: {error.message}",
        culprits=(
            dataset_culprit(part, f"{part.name}[{error.index}]", error.type, error.location),
            *(dataset_culprit(part, "__len__", f"promises {survey.count}", at) for at in (sample_lines.length_lines(part) if at_end else ())),
            *(dataset_culprit(part, one.name, one.detail, one.location) for one in made_of[: 2 if at_end else 3]),
            *([dataset_culprit(part, sources.assigned_name(own) or part.name, "run only by the failing samples", own)] if own else []),
        ),
        observed=f"{survey.read} could be read; sample {error.index} raises {error.type}{_others(survey)}",
        cause="__len__ promises more samples than there are" if at_end
        else ("the dataset puts its samples on a GPU: none is available here, and a forked "
            "worker cannot initialise CUDA") if on_gpu
        else f"the index computed for this sample does not exist: {shown[0]}" if shown
        else "reading this sample fails",
        because=(f"len() is {survey.count}, and the last "
            f"{'index raises' if len(survey.errors) == 1 else f'{len(survey.errors)} indices raise'} "
            f"{error.type}")
        if at_end
        else f"raised at {line_ref(error.location)}: {error.message}" + (f"; only samples that fail run {line_ref(own)}: {own.text}" if own else ""),
        fix="return the number of readable samples from __len__" if at_end
        else (f"return CPU tensors from {line_ref(error.location)}; the loop moves batches to "
            "the device") if on_gpu
        else (f"keep the index in bounds: correct {made_of[0].name} at "
            f"{line_ref(made_of[0].location)}, or its use at {line_ref(error.location)}") if shown
        else (f"correct {line_ref(error.location)} for sample {error.index}, or remove the sample "
            "from the dataset"),
        evidence={"errors": [[e.index, e.type, e.message] for e in survey.errors]},
    )  # fmt: skip


def _failing_line(survey: Survey) -> Location | None:
    """Return the line that only the samples run that fail in one way, besides the one that raises."""
    part, error = survey.part, survey.errors[0]
    failing = [e.index for e in survey.errors if (e.type, e.message) == (error.type, error.message)]
    readable = [sample.index for sample in survey.samples]
    if not readable:
        return None
    odd = validity.Deviation(
        path="",
        usual="readable",
        other=error.type,
        index=failing[0],
        count=len(failing),
        odd=tuple(failing[:3]),
        alike=tuple(readable[:3]),
    )
    own = sample_lines.own_line(part, odd, survey.seed)
    return own if own != error.location else None


def _are_last(survey: Survey) -> bool:
    """Say whether the samples that cannot be read are the last ones."""
    first, last = survey.errors[0].index, survey.errors[-1].index
    alone = len(survey.errors) == 1 or (
        bool(survey.samples) and all(one.index < first for one in survey.samples)
    )
    return survey.count is not None and last == survey.count - 1 and alone


def _others(survey: Survey) -> str:
    """Say how many more samples cannot be read, and how they lie where that is regular."""
    indices = [one.index for one in survey.errors]
    steps = {b - a for a, b in itertools.pairwise(indices)}
    between = any(indices[0] < one.index < indices[-1] for one in survey.samples)
    if len(indices) >= 3 and len(steps) == 1 and between:
        return f"; so do {few(indices[1:])}, each {max(steps)} apart"
    return f"; so do {len(indices) - 1} more" if len(indices) > 1 else ""


def not_finite(survey: Survey, seed: int, *, nan: bool) -> Iterator[Finding]:
    """Samples with NaN, unless that is meant, and with infinities."""
    part = survey.part
    for code, word, is_bad in (
        ("sample-nan", "NaN", lambda leaf: nan and leaf.nan > 0),
        ("sample-inf", "infinite values", lambda leaf: leaf.inf > 0),
    ):
        bad = validity.flagged(survey, is_bad)
        if not bad:
            continue
        indices = list(dict.fromkeys(sample.index for sample, _ in bad))
        sample, leaf = bad[0]
        origin = sample_lines.Origin(line=None)
        if part.is_map_style:
            origin = sample_lines.find_value(part, sample.index, seed + sample.index, is_bad)
        held = origin.held
        row = f"{held.path}[{sample.index}]" if held is not None else where(leaf.path)
        # a mask of -inf is a way of life: where every sample has one that was written, or is the
        # logarithm of
        # zeros and ones, it is meant
        written = not origin.computed or leaf.low == leaf.high
        masks = code == "sample-inf" and written and len(indices) == len(survey.samples)
        make = suspicious if masks else violated
        yield make(
            code,
            f"{part.prefix}{row} has {word} ({len(indices)} of {len(survey.samples)} samples read)",
            culprits=(
                dataset_culprit(part, row, f"{leaf.nan or leaf.inf} of its elements", held.location if held else None),
                *([] if held else _divisors(part, origin.line)),
            ),
            location=origin.line,
            observed=f"samples {few(indices)} hold {word} at {where(leaf.path)}, {leaf.dtype} "
                f"{list(leaf.shape)}",
            cause="the stored data contains them" if held else "reading produces them",
            because=f"{held.path} contains them before it is read" if held
            else f"{origin.computed}, at {line_ref(origin.line)}" if origin.computed
            else f"no stored array contains them; they appear after {line_ref(origin.line)}",
            fix=f"drop or fill these rows where {held.path} is created" if held
            else (f"keep its argument in the range where it is finite at {line_ref(origin.line)}: "
                "clamp(min=eps) before a logarithm, eps in a denominator") if origin.computed
            else f"remove these values at {line_ref(origin.line)} (torch.nan_to_num, or a mask)",
            evidence={"indices": [int(i) for i in indices[:64]]},
        )  # fmt: skip


_SINGULAR = re.compile(r"/|\blog|\bpow\b|\*\*|rsqrt|div")


def _divisors(part: Part, line: Location | None) -> list[Culprit]:
    """Return the stored arrays with zeros that a line which makes NaN reads, and where they are made."""
    if line is None or not _SINGULAR.search(line.text):
        return []
    found = []
    for held in Contents(part.dataset).arrays:
        values = torch.as_tensor(held.value)
        zeros = values.numel() - int(torch.count_nonzero(values))
        if zeros and re.search(rf"\b{re.escape(held.attribute)}\b", line.text):
            found.append(
                dataset_culprit(part, held.path, f"{zeros} of its elements are zero", held.location)
            )
    return found[:2]


def identical(survey: Survey) -> Finding:
    """Every sample has the same input."""
    part = survey.part
    place = (
        sample_lines.return_line(part, survey.samples[0].index, survey.seed)
        if part.is_map_style
        else None
    )
    return violated(
        "samples-identical",
        f"{part.prefix}every sample of {part.name} has the same input",
        culprits=(dataset_culprit(part, part.name, "one content hash", place),),
        location=place,
        observed=f"{survey.read} were read; all have the same content hash",
        cause="the index is not used to select the data, or the stored data is constant",
        because=f"samples {survey.samples[0].index} and {survey.samples[-1].index} are bit-equal",
        fix=f"use the index at {line_ref(place)}",
    )


def elsewhere(survey: Survey) -> Iterator[Finding]:
    """Samples on another device, or with an autograd graph."""
    part = survey.part
    checks: tuple[tuple[str, str, Any, str, str], ...] = (
        ("sample-device", "is not on the CPU", lambda leaf: leaf.device != "cpu",
         "workers cannot share it, and every batch needs many small copies",
         "keep the sample on the CPU and move the batch to the device in the loop"),
        ("sample-graph", "carries an autograd graph", lambda leaf: leaf.attached,
         "a sample that requires a gradient keeps its graph alive and cannot be sent by a worker",
         "detach it, or compute it under torch.no_grad()"),
    )  # fmt: skip
    for code, what, is_bad, cause, fix in checks:
        bad = validity.flagged(survey, is_bad)
        if not bad:
            continue
        sample, leaf = bad[0]
        origin = (
            sample_lines.find_value(part, sample.index, survey.seed + sample.index, is_bad)
            if part.is_map_style
            else sample_lines.Origin(line=None)
        )
        make = violated if part.plan.num_workers else suspicious
        yield make(
            code,
            f"{part.prefix}{where(leaf.path)} {what}",
            culprits=(dataset_culprit(part, where(leaf.path), leaf.device, origin.line),),
            location=origin.line,
            observed=f"{len(bad)} of {len(survey.samples)} samples read; sample {sample.index} is on {leaf.device}",
            cause=cause,
            because=f"it is there after {line_ref(origin.line)}",
            fix=fix,
        )


def out_of_range(
    survey: Survey, path: str, low: float, high: float, leaf: Leaf, index: int
) -> Finding:
    """An input leaves its declared range."""
    part = survey.part

    def is_bad(one: Leaf) -> bool:
        alike = one.dtype == leaf.dtype and one.low is not None and one.high is not None
        return alike and (one.high > high or one.low < low)  # type: ignore[operator]

    origin = sample_lines.find_value(part, index, survey.seed + index, is_bad)
    hint = (
        "bytes that were not scaled"
        if leaf.high is not None and 200 < leaf.high <= 255 and high <= 1
        else ""
    )
    return violated(
        "sample-range",
        f"{part.prefix}{where(path)} has range [{leaf.low:g}, {leaf.high:g}] where [{low:g}, "
        f"{high:g}] is declared",
        culprits=(
            dataset_culprit(part, where(path), f"[{leaf.low:g}, {leaf.high:g}]", origin.line),
        ),
        location=origin.line,
        observed=f"sample {index} has range [{leaf.low:g}, {leaf.high:g}], {leaf.dtype} "
        f"{list(leaf.shape)}",
        cause=hint or "the data is not scaled as the contract declares",
        because=f"the value appears after {line_ref(origin.line)}",
        fix="scale it, for example divide bytes by 255"
        if hint
        else "scale it in __getitem__, or declare its true range",
    )


def damaged(part: Part, found: Rereading, write: Write | None) -> Finding:
    """Reading writes to the dataset."""
    change = found.changes[0]
    name = change.held.path
    first = found.differing[0]
    alias, written = (write.alias, write.write) if write is not None else (None, None)
    rows = f"rows {few(change.rows)} of {name}" if change.rows else name
    culprits = [
        dataset_culprit(
            part, name, f"{change.elements} elements written", alias or change.held.location
        )
    ]
    if written is not None:
        culprits.append(Culprit("call", written.text, "writes to the dataset", written))
    again = (
        f"sample {found.error[0]} can be read only once: {found.error[1]}"
        if found.error
        else f"{len(found.differing)} of {len(found.indices)} samples differ when read again with "
        "the same seed"
    )
    value = write.name if write is not None and write.name else "a value"
    shared = f"{value} shares memory with {name}"
    if value == name:
        shared = f"the variable {value} shares memory with {name} of {part.name}"
    fix = "copy before writing: .clone() of a tensor, .copy() of an array, dict or list"
    if alias is not None:
        fix = f"take a copy at {line_ref(alias)}: .copy() of an array, dict or list, .clone() of a tensor"
    return violated(
        "dataset-mutated",
        f"{part.prefix}reading sample {first} of {part.name} writes to {name}: the next read "
        "differs",
        culprits=tuple(culprits),
        location=alias or written or change.held.location,
        observed=again
        + (f"; largest change of {name} {write.largest:.4g}" if write and write.largest else ""),
        cause=f"{shared} and is modified in place",
        because=f"{rows} changed while reading"
        + (f"; the write is {line_ref(written)}: {written.text}" if written else ""),
        fix=fix,
        evidence={
            "samples": list(found.differing[:64]),
            "leaves": list(found.paths),
            "changed": name,
        },
    )


def overwritten(part: Part, found: Rereading, write: Write | None = None) -> Finding:
    """One buffer serves every sample: the next reading changes the sample before."""
    buffer = found.buffer
    name = buffer.path or part.name if buffer is not None else part.name
    first = found.overwritten[0]
    returned = sample_lines.return_line(part, first)
    made = buffer.location if buffer is not None else None
    handed, filled = (write.alias, write.write) if write is not None else (None, None)
    handed = None if handed is not None and handed in (filled, returned) else handed
    place = handed or returned
    return violated(
        "sample-overwritten",
        f"{part.prefix}sample {first} changes when the next sample is read: {name} serves them all",
        culprits=(
            dataset_culprit(part, name, "shared by all samples", made or place),
            *((dataset_culprit(part, write.name, f"lies in {name}", handed),) if write is not None and handed is not None else ()),
            *((Culprit("call", filled.text, f"fills {name}", filled),) if filled is not None else ()),
            Culprit(
                "call", f"{part.name}.__getitem__", "returns it", returned
            ),
        ),
        location=place,
        observed=f"{len(found.overwritten)} samples were kept while {len(found.indices)} were read; they changed",
        cause="__getitem__ fills one buffer and returns it, so that a batch holds the last sample several times",
        because=(f"sample {first} shares its memory with {name}" + (f", which {line_ref(filled)} fills" if filled else ""))
        if buffer is not None
        else f"sample {first} had different content after the others were read",
        fix=f"return a copy at {line_ref(place)}: .clone() of a tensor, .copy() of an array",
    )  # fmt: skip


def not_repeatable(part: Part, found: Rereading, name: str, place: Location | None) -> Finding:
    """An item differs under the same seed although nothing stored has changed."""
    return suspicious(
        "sample-not-repeatable",
        f"{part.prefix}sample {found.differing[0]} of {part.name} differs when read again with "
        "the same seed",
        culprits=(dataset_culprit(part, name or part.name, "differs with equal seeds", place),),
        location=place,
        observed=f"{len(found.differing)} of {len(found.indices)} samples differ; the stored data "
        "has not changed",
        cause="its randomness comes from a generator that is not seeded",
        because=f"the seeds of torch, random and NumPy were equal, and {name or 'the sample'} "
        "differs" + (f" after {line_ref(place)}" if place else ""),
        fix="draw from torch's generator, or seed the generator from torch.initial_seed()",
    )
