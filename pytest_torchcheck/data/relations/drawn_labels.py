"""Labels that are drawn anew at each read while their inputs stay the same: nothing can learn them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...lean import dataclass
from ...verdicts import suspicious
from ..describing import describe_sample
from ..sample_lines import label_line, return_line
from ..snapshot import put_back
from ..validity import read, spread
from ..wording import dataset_culprit, line_ref

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ..describing import Sample
    from ..labels import Labels
    from ..plan import Part
    from ..validity import Survey

_READS: Final = 8
_FEWEST: Final = 2
_OTHER_SEED: Final = 2_000_029
"""A stream of randomness far from that of the survey."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """Samples whose label differs between two reads of equal inputs; plain data.

    Attributes:
        index: The first of them.
        first, second: Its labels under two seeds.
        count: How many there are.
        read: How many samples were read again.
        place: The line that gives the label.
    """

    index: int
    first: float
    second: float
    count: int
    read: int
    place: Location | None


def drawn_labels(survey: Survey, measured: Labels) -> Drawn | None:
    """Read some samples again under another seed, and compare labels where the inputs are bit-equal.

    Only labels that are single whole numbers beside arrays of floats are looked at: other targets may well be drawn, as
    a negative item, a time step or one of many captions.

    Cost: eight reads where no stored column holds the labels.
    """
    part = survey.part
    if not part.is_map_style or measured.column is not None or not measured.whole:
        return None
    samples = {one.index: one for one in survey.samples if _is_judged(one, measured.path)}
    chosen = tuple(list(samples)[at] for at in spread(len(samples), _READS)) if samples else ()
    unlike: list[tuple[int, float, float]] = []
    with put_back(part.dataset, chosen):
        for index in chosen:
            try:
                sample = read(part.dataset, index, survey.seed + _OTHER_SEED + index)
            except Exception:  # of the user's dataset: samples-unchanged tells of it
                return None
            again, before = describe_sample(index, sample), samples[index]
            if _inputs(again) != _inputs(before):
                continue
            first, second = _label(before, measured.path), _label(again, measured.path)
            if first is not None and second is not None and first != second:
                unlike.append((index, first, second))
    if len(unlike) < _FEWEST:
        return None
    index, first, second = next((one for one in unlike if one[0] not in one[1:]), unlike[0])
    place = label_line(part, index, lambda value: value == first, survey.seed + index)
    return Drawn(
        index=index,
        first=first,
        second=second,
        count=len(unlike),
        read=len(chosen),
        place=place or return_line(part, index, survey.seed + index),
    )


def _is_judged(sample: Sample, path: str) -> bool:
    arrays = [leaf for leaf in sample.inputs if leaf.kind in ("tensor", "array")]
    return (
        any(leaf.is_floating for leaf in arrays)
        and all(leaf.digest is not None for leaf in sample.inputs)
        and _label(sample, path) is not None
    )


def _inputs(sample: Sample) -> list[tuple[str, str | None]]:
    return [(leaf.path, leaf.digest) for leaf in sample.inputs]


def _label(sample: Sample, path: str) -> float | None:
    """Return a label of one element; None of any other."""
    found = next((leaf for leaf in sample.leaves if leaf.path == path), None)
    return found.low if found is not None and found.shape in ((), (1,)) else None


def told(part: Part, found: Drawn) -> Finding:
    """Explain labels that come from the random number generator."""
    place = found.place
    return suspicious(
        "label-drawn",
        f"{part.prefix}labels of {part.name} are drawn anew at each read while their inputs stay the same",
        culprits=[dataset_culprit(part, part.name, "draws the label", place)],
        location=place,
        observed=f"the label of sample {found.index} is {found.first:g} under one seed and {found.second:g} under "
        "another; its inputs are bit-equal",
        cause="the label comes from a random number, not from the sample",
        because=f"{found.count} of {found.read} samples that were read again have another label and equal inputs",
        fix=f"return the sample's own label at {line_ref(place)}"
        if place is not None
        else "return the sample's own label",
    )
