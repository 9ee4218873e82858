"""Indices that cannot be read, for which a dataset gives another of its samples again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized
from typing import TYPE_CHECKING, Final

from ...lean import dataclass
from ...record.tracing import Swallowed, line_of, returns, swallowed
from ...verdicts import violated
from ..snapshot import put_back
from ..validity import read
from ..wording import dataset_culprit, line_ref

if TYPE_CHECKING:
    from ...findings import Finding, Location
    from ..plan import Part
    from ..validity import Survey

_FEWEST: Final = 4
_SHARE: Final = 0.1
"""Share of the samples: a file that is damaged here and there may well be replaced by another."""
_READS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class StoodIn:
    """A sample that is given for indices of which reading raises; plain data.

    Attributes:
        index: Its own, which is read without an error.
        others: Those that it stands for, of the samples that were read.
        error: What one of them raises.
        length: The line that says how many samples there are, where the others are the last ones.
    """

    index: int
    others: tuple[int, ...]
    error: Swallowed
    length: Location | None


def stood_in(survey: Survey) -> StoodIn | None:
    """Trace reads of equal samples, where many are; None where they raise nothing, or where all do.

    Cost: nothing where fewer than a tenth of the samples equal one of them.
    """
    part, samples = survey.part, survey.samples
    digest, count = Counter(sample.digest for sample in samples).most_common(1)[0]
    least = max(_FEWEST, _SHARE * len(samples))
    if digest is None or not part.is_map_style or count < least:
        return None
    equal = [sample.index for sample in samples if sample.digest == digest]
    unlike = [sample.index for sample in samples if sample.digest != digest]
    tried = [*equal, *unlike[:_READS]]
    with put_back(part.dataset, tuple(tried)):
        errors = {index: _error(part, index, survey.seed) for index in tried}
    others = tuple(index for index in equal if errors[index] is not None)
    own = next((index for index in equal if errors[index] is None), None)
    places = {error.place for error in errors.values() if error is not None}
    if own is None or len(others) < least or len(places) != 1 or any(map(errors.get, unlike)):
        return None
    error = errors[others[-1]]
    assert error is not None
    last = max(unlike, default=part.length) < others[0] and others[-1] == part.length - 1
    return StoodIn(index=own, others=others, error=error, length=_length(part) if last else None)


def _error(part: Part, index: int, seed: int) -> Swallowed | None:
    return next(iter(swallowed(lambda: read(part.dataset, index, seed + index))), None)


def _length(part: Part) -> Location | None:
    dataset = part.dataset
    if not isinstance(dataset, Sized):
        return None
    found = [one for one in returns(lambda: len(dataset)) if one.frame.f_code.co_name == "__len__"]
    return line_of(found[-1].frame.f_code, found[-1].line) if found else None


def told(survey: Survey, found: StoodIn) -> Finding:
    """Explain samples of which one stands for many."""
    part, error, place = survey.part, found.error, found.length or found.error.place
    return violated(
        "samples-identical",
        f"{part.prefix}{part.name} gives sample {found.index} again for {len(found.others)} indices "
        "that it cannot read",
        culprits=[
            dataset_culprit(part, part.name, f"sample {found.index} stands for others", place),
            dataset_culprit(part, "__getitem__", "catches the error", error.place),
        ],
        location=place,
        observed=f"{survey.read} were read; {len(found.others)} of them, from {found.others[0]} to "
        f"{found.others[-1]}, are bit-equal to sample {found.index}",
        cause=f"len() gives {part.length}, and there are no samples from {found.others[0]} on"
        if found.length is not None
        else f"reading them raises {error.kind}, which is caught",
        because=f"reading sample {found.others[-1]} raises {error.kind} at {line_ref(error.place)}, which "
        f"is caught: {error.text}; reading sample {found.index} raises nothing",
        fix=f"return the number of samples that can be read at {line_ref(place)}, and let the error out"
        if found.length is not None
        else f"let the error at {line_ref(place)} out, or leave out what cannot be read",
    )
