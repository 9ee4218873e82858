"""Samples that are not alike: from their shapes, dtypes and structures to findings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ... import sources
from ...verdicts import suspicious, violated
from .. import sample_lines, validity
from ..wording import called, dataset_culprit, few, line_ref, where
from .cut_short import find_cut_short
from .making_lines import loader_made
from .returned_object import given_line

_MANY = 8
"""Behind how many samples of one shape a smaller last one is the end of the data."""

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...findings import Culprit, Finding, Location
    from ..describing import Leaf
    from ..plan import Part
    from ..validity import Deviation, Survey
    from .cut_short import CutShort


def inconsistent(
    survey: Survey, collates: validity.CollateError | None, declared: Location | None = None
) -> Iterator[Finding]:
    """Samples that differ in structure, dtype or shape, and batches that cannot be made.

    Where no loader is declared, samples may be collated in any way: only a few odd ones are worth a
        warning.
    """
    part = survey.part
    plan = part.plan
    if plan.collate_fn is None:
        odd, what = validity.structure_deviation(survey), "structure"
        if odd is None:
            types = validity.deviations(survey, lambda leaf: f"{leaf.type} {leaf.dtype}".strip())
            odd, what = (types[0] if types else None), "dtype"
        grouped = plan.batch_sampler is not None and collates is None  # by what it puts together
        if odd is not None and not grouped and (plan.declared or _is_rare(odd, survey)):
            yield _varies(survey, odd, what)
            return
        shapes = validity.deviations(survey, lambda leaf: str(list(leaf.shape)))
        if shapes and not plan.declared and _is_rare(shapes[0], survey):
            yield _unlike_shapes(survey, shapes[0], "", declared)
            return
    if collates is not None and plan.declared:
        yield _not_collatable(survey, collates, declared)


def _is_rare(odd: validity.Deviation, survey: Survey) -> bool:
    return 4 * odd.count <= len(survey.samples)


def _varies(survey: Survey, odd: validity.Deviation, what: str) -> Finding:
    part = survey.part
    returned = (
        sample_lines.return_line(part, odd.index, survey.seed + odd.index)
        if part.is_map_style
        else None
    )
    own = sample_lines.own_line(part, odd, survey.seed)
    given = given_line(part, odd.index, odd.path, survey.seed + odd.index) if own is None else None
    place = own or given or returned
    make = violated if part.plan.declared and part.plan.batch_size != 1 else suspicious
    return make(
        f"sample-{what}-varies",
        f"{part.prefix}sample {odd.index} is {odd.other} at {where(odd.path)} where most are {odd.usual}",
        culprits=(
            dataset_culprit(part, f"{part.name}[{odd.index}]", odd.other, place),
            *_returning(part, returned, own or given),
        ),
        location=place,
        observed=f"{odd.count} of {len(survey.samples)} samples read differ: {odd.other} for "
        f"{odd.usual}",
        cause=f"the {what} of a batch depends on which samples it contains",
        because=f"only such samples run {line_ref(own)}"
        if own is not None
        else f"sample {odd.index} is returned by {line_ref(returned)}"
        + (f", with the value that {line_ref(given)} returns" if given is not None else ""),
        fix=f"return {odd.usual} for every sample at {line_ref(place)}",
    )


def _returning(part: Part, returned: Location | None, own: Location | None) -> list[Culprit]:
    """Return the line that hands a sample out, where another one is named before it."""
    if returned is None or own is None or own == returned:
        return []
    return [dataset_culprit(part, "__getitem__", "returns it", returned)]


def _unlike_shapes(
    survey: Survey, odd: validity.Deviation, said: str, declared: Location | None
) -> Finding:
    part = survey.part
    made = loader_made(part, declared) if part.plan.declared else None
    returned = (
        sample_lines.return_line(part, odd.index, survey.seed + odd.index)
        if part.is_map_style
        else None
    )
    make = violated if part.plan.declared else suspicious
    cut = find_cut_short(part, odd, survey.seed)
    if cut is not None and cut.table is not None:
        return _past_the_end(part, odd, cut, len(survey.samples), make)
    ends = sample_lines.length_lines(part) if _is_tail(survey, odd) else ()
    end = ends[0] if ends else None
    own = sample_lines.own_line(part, odd, survey.seed) if end is None else None
    given = None
    if end is None and own is None:
        given = (
            cut.location
            if cut is not None
            else given_line(part, odd.index, odd.path, survey.seed + odd.index)
        )
    place = own or given or returned
    return make(
        "samples-do-not-stack",
        f"{part.prefix}sample {odd.index} has shape {odd.other} at {where(odd.path)} where most have {odd.usual}: "
        "the batch cannot be stacked",
        culprits=(
            dataset_culprit(part, f"{part.name}[{odd.index}]", f"shape {odd.other}", place),
            *_returning(part, returned, own or given),
            *(dataset_culprit(part, "__len__", "counts them", at) for at in ends),
            *(
                (dataset_culprit(part, "loader", "has no collate_fn", made),)
                if made is not None
                else ()
            ),
        ),
        observed=f"{odd.count} of {len(survey.samples)} samples read have another shape",
        cause=f"the last {'sample reaches' if odd.count == 1 else f'{odd.count} samples reach'} past the end of the data: __len__ counts too many"
        if end is not None
        else "the default collate function stacks samples, which needs equal shapes",
        because=f"only such samples run {line_ref(own)}: {own.text}"
        if own is not None
        else f"in sample {odd.index} {cut.fact}; in other samples no slice there is cut"
        if cut is not None and end is None
        else f"torch said: {said}"
        if said
        else f"sample {odd.index} is returned by {line_ref(place)}",
        fix=f"make __len__ count complete samples only, at {line_ref(end)}"
        if end is not None
        else "give all samples the same shape "
        f"{f'at {line_ref(own)}' if own is not None else 'in __getitem__'}, or pad them in "
        "a collate_fn" + (f" given at {line_ref(made)}" if made is not None else ""),
    )


def _past_the_end(
    part: Part, odd: Deviation, cut: CutShort, count: int, make: Callable[..., Finding]
) -> Finding:
    """Explain samples that a table of the dataset lets begin where a whole one does not fit any more."""
    assert cut.table is not None
    place = cut.maker or cut.table.location
    function = sources.function_around(place.file, place.line)
    maker = function.name if function is not None else place.function.rpartition(".")[2]
    return make(
        "samples-do-not-stack",
        f"{part.prefix}sample {odd.index} has shape {odd.other} at {where(odd.path)} where most have {odd.usual}: "
        "the batch cannot be stacked",
        culprits=(
            dataset_culprit(part, maker or cut.table.name, f"makes {cut.table.name}", place),
            dataset_culprit(part, f"{part.name}[{odd.index}]", f"shape {odd.other}", cut.location),
            dataset_culprit(part, cut.table.name, cut.table.detail, cut.table.location),
            *(
                dataset_culprit(part, maker, f"may end {cut.table.name}", p)
                for p in cut.ends
                if p != place
            ),
        ),
        location=place,
        observed=f"{odd.count} of {count} samples read have another shape",
        cause=f"{cut.table.name} holds an entry that leaves no room for a whole sample: {cut.table.entry!r}"[
            :160
        ]
        + (f"; {maker} makes it" if maker else ""),
        because=f"in sample {odd.index} {cut.fact}, at {line_ref(cut.location)}; in other samples no slice "
        "there is cut",
        fix=f"let {cut.table.name} end where a whole sample still fits, at {line_ref(place)}",
    )


def _is_tail(survey: Survey, odd: validity.Deviation) -> bool:
    """Say whether the samples of another shape are the last ones, ever smaller, or one smaller than all."""
    if survey.count is None:
        return False
    shapes = {
        sample.index: leaf.shape
        for sample in survey.samples
        for leaf in sample.leaves
        if leaf.path == odd.path
    }
    strange = [index for index, shape in shapes.items() if str(list(shape)) != odd.usual]
    rest = [index for index, shape in shapes.items() if str(list(shape)) == odd.usual]
    if not strange or not rest or min(strange) < max(rest) or max(strange) != survey.count - 1:
        return False
    if len(strange) == 1 and len(rest) < _MANY:
        return False
    sizes = [math.prod(shapes[index]) for index in (max(rest), *sorted(strange))]
    return sizes == sorted(sizes, reverse=True)


def _rank(leaf: Leaf) -> str:
    """Return the shape of a leaf behind its first dimension, which may vary."""
    return f"[n{''.join(f', {size}' for size in leaf.shape[1:])}]" if leaf.shape else "[]"


def _unlike_rank(survey: Survey) -> validity.Deviation | None:
    """Return the deviation of a few samples in what stands behind the first dimension, where the others agree."""
    if not survey.part.is_map_style:
        return None
    found = validity.deviations(survey, _rank)
    return next((odd for odd in found if odd.count <= len(survey.samples) // 3), None)


def _not_collatable(
    survey: Survey, error: validity.CollateError, declared: Location | None
) -> Finding:
    part = survey.part
    own = part.plan.collate_fn is not None
    shapes = validity.deviations(survey, lambda leaf: str(list(leaf.shape)))
    if shapes and not own:
        return _unlike_shapes(survey, shapes[0], error.message, declared)
    opaque = next(
        (leaf for leaf in survey.samples[0].leaves if leaf.kind in ("none", "other")), None
    )
    chosen = f"samples {few(error.indices)}"
    place = error.location if own else sample_lines.return_line(part, error.indices[0])
    name = called(part.plan.collate)
    cause, fix = "the collate function fails on real samples", f"correct {line_ref(place)}"
    given, cause, fix, odd, made = _uncollated(opaque, own, survey, part, cause, fix)
    return violated(
        "batch-not-collatable",
        f"{part.prefix}{name} cannot make a batch of {chosen}: {error.type}: {error.message[:120]}",
        culprits=(
            *(
                (
                    dataset_culprit(
                        part,
                        sources.assigned_name(made) or f"{part.name}[{odd.index}]",
                        odd.other,
                        made,
                    ),
                )
                if odd and made
                else ()
            ),
            dataset_culprit(
                part, where(opaque.path) if opaque and not own else name, "", given or place
            ),
            *_returning(part, place, given),
        ),
        location=given or place,
        observed=f"{chosen} were collated by {name}; it raised {error.type}",
        cause=cause,
        because=f"it said: {error.message[:200]}",
        fix=fix,
    )


def _uncollated(
    opaque: Leaf | None, own: bool, survey: Survey, part: Part, cause: str, fix: str
) -> tuple[Location | None, str, str, Deviation | None, Location | None]:
    """Return why samples make no batch, and the line of a sample that differs."""
    given = None
    if opaque is not None and not own:
        index = survey.samples[0].index
        given = given_line(part, index, opaque.path, survey.seed + index)
        cause = (
            f"{where(opaque.path)} is a {opaque.type}, which the default collate function does "
            "not support"
        )
        if given is not None:
            cause += f": {given.function} returns it at {line_ref(given)}"
        fix = (
            f"return tensors, arrays or numbers{f' at {line_ref(given)}' if given else ''}, or "
            "give a collate_fn"
        )
    odd = _unlike_rank(survey) if own else None
    made = None
    if odd is not None:
        usual = next(
            s.index
            for s in survey.samples
            if any(_rank(x) == odd.usual for x in s.leaves if x.path == odd.path)
        )
        made = sample_lines.unlike_line(part, usual, odd.index, survey.seed)
        cause = (
            f"sample {odd.index} has shape {odd.other} at {where(odd.path)}, most have {odd.usual}"
        )
        fix = f"give it the shape of the others{f' at {line_ref(made)}' if made else ''}: reshape(-1, ...)"
    return given, cause, fix, odd, made


def nothing(survey: Survey) -> Finding:
    """A dataset whose samples hold no value."""
    part = survey.part
    returned = sources.matches(
        getattr(type(part.own), "__getitem__", type(part.own)), r"^\s*return\b"
    )
    place = returned[-1] if returned else part.class_line
    return violated(
        "dataset-empty",
        f"{part.prefix}each sample of {part.name} that was read is None",
        culprits=(dataset_culprit(part, part.name, "gives None", place),),
        location=place,
        observed=f"{survey.read} were read: none holds a value",
        cause="the samples are not returned",
        because="torch's default collate function refuses None, and no model can be called with it",
        fix=f"return the sample at {line_ref(place)}",
    )
