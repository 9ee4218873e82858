"""Target maps that a random flip or rotation turns apart from their inputs: equal inputs, mirrored targets.

Where image and map are augmented together, two reads with the same image have the same map. Targets that are random
for other reasons (masks to be filled in, negatives, mixtures) are no mirror images of each other.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

import torch

from ... import sources
from ...lean import dataclass
from ...record.tracing import find_line
from ...state import seed_process
from ...verdicts import suspicious, violated
from ..contents import is_array
from ..describing import describe_leaf, is_under, join_digests, leaves, target_path
from ..explaining.returned_object import Traced, parting, returned_name, traced_read
from ..generators import fingerprint, global_generators
from ..sample_lines import return_line
from ..snapshot import put_back
from ..validity import read, spread
from ..wording import dataset_culprit, line_ref, where

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

    from ...findings import Finding, Location
    from ..describing import Leaf
    from ..plan import Part
    from ..snapshot import Snapshot
    from ..validity import Survey

_SAMPLES: Final = 8
_FIRST: Final = 3  # samples after which reading ends where nothing was seen
_READS: Final = 6
_MIRRORED: Final = 2  # samples that must show it
_LEAST: Final = 4  # shorter sides hold lists in any order
_AXES: Final = 3

_Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Map:
    """A target map: its path, its spatial axes, and the inputs of the same extent with theirs."""

    path: str
    axes: _Shape
    inputs: tuple[tuple[str, _Shape], ...]
    size: int
    images: bool  # it may be an image too, by dtype and shape


@dataclass(frozen=True, slots=True)
class _Read:
    inputs: str
    target: torch.Tensor
    images: tuple[torch.Tensor, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """A map that differs by a flip or rotation (``turned``) between reads of equal inputs.

    ``count`` of ``read`` samples show it; ``index`` is one of them.
    """

    map: _Map = field(repr=False)
    index: int
    seed: int
    turned: str
    count: int
    read: int


def flipped_apart(survey: Survey) -> Apart | None:
    """Read samples that have a target map several times under their own randomness; None where nothing is apart.

    Cost: one read where samples draw nothing, 12 where no two reads have equal inputs, 18 where equal inputs have
    equal targets.
    """
    part = survey.part
    places = spread(part.length or 0, _SAMPLES)
    for one in _maps(survey):
        shown: dict[int, str] = {}
        found, done = None, 0
        with put_back(part.dataset, places) as snapshot:
            for done, index in enumerate(places, start=1):
                if done == 1 and not _draws(part, index, survey.seed, snapshot):
                    return None
                reads = list(_reads(part, one, index, survey.seed))
                found = _turned(reads, one)
                if found:
                    shown[index] = found
                equal = len({each.inputs for each in reads}) < len(reads)
                if found is None or not (shown or (done < _FIRST and (equal or done == 1))):
                    break
        if len(shown) >= _MIRRORED and found is not None:
            index, turned = next(iter(shown.items()))
            return Apart(
                map=one, index=index, seed=survey.seed, turned=turned, count=len(shown), read=done
            )
    return None


def told(part: Part, found: Apart) -> Finding:
    """Explain a map that is not turned with its input."""
    one, turned = found.map, found.turned
    image, target = where(one.inputs[0][0]), where(one.path)
    own = returned_name(part, found.index, one.path)
    place, drawn = _place(part, one, found.index, found.seed)
    make = suspicious if one.images else violated
    return make(
        "target-flipped-apart",
        f"{part.prefix}{target} is {turned} independently of {image}",
        culprits=[
            dataset_culprit(part, own or target, f"{turned} on its own", place),
            *(
                [dataset_culprit(part, drawn, "is drawn for the target alone", place)]
                if drawn
                else []
            ),
            *(
                dataset_culprit(part, one.function, "calls it", one)
                for one in _calling(part, found, place)
            ),
        ],
        location=place,
        observed=f"{found.count} of {found.read} samples were read with equal inputs and unequal targets, one "
        f"{turned} to give the other",
        cause=f"the augmentation draws for {image} and for {target} separately",
        because=f"two reads of sample {found.index} have the same {image}, and differ "
        + (f"in {drawn}, set at {line_ref(place)}" if drawn else f"from {line_ref(place)} on"),
        fix="draw once for each sample, and transform input and target by the same draw",
    )


def _calling(part: Part, found: Apart, place: Location | None) -> Iterator[Location]:
    """Yield the line that calls the helper in which a line stands."""
    helper = None if place is None else sources.function_around(place.file, place.line)
    if helper is None or helper.name.startswith("__"):
        return

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event == "call" and frame.f_code.co_name == helper.name

    with put_back(part.dataset, (found.index,)):
        line = find_line(lambda: part.dataset[found.index], watcher)
    if line is not None:
        yield line


def _maps(survey: Survey) -> Iterator[_Map]:
    """Yield the target maps of a sample, by convention or, where none is a target by that, its integer maps."""
    first = survey.samples[0]
    arrays = [one for one in first.leaves if one.kind in ("tensor", "array") and len(one.shape) > 1]
    chosen = [leaf for leaf in arrays if is_under(leaf.path, first.target)]
    by_convention = bool(chosen)
    if not chosen:
        chosen = [leaf for leaf in arrays if not leaf.is_floating]
    for leaf in chosen:
        others = [one for one in arrays if one not in chosen]
        if not by_convention:
            others += [one for one in chosen if len(one.shape) > len(leaf.shape)]
        matched = [(one, axes) for one in others if (axes := _common(leaf, one)) is not None]
        if matched and leaf.digest is not None:
            yield _Map(
                path=leaf.path,
                axes=matched[0][1][0],
                inputs=tuple((one.path, axes[1]) for one, axes in matched),
                size=math.prod(leaf.shape),
                images=any(
                    one.dtype == leaf.dtype and one.shape == leaf.shape for one, _ in matched
                ),
            )


def _common(target: Leaf, other: Leaf) -> tuple[_Shape, _Shape] | None:
    """Return the axes of both, from the last or from the first one, along which the input is as long, or n times."""
    most = 1 if target.is_floating else 64
    for sign in (-1, 1):
        axes: list[int] = []
        factor = 0
        for mine, theirs in zip(target.shape[::sign], other.shape[::sign], strict=False):
            ratio = theirs // mine if mine >= _LEAST and theirs % mine == 0 else 0
            if not 0 < ratio <= most or factor not in (0, ratio) or len(axes) == _AXES:
                break
            factor = ratio
            axes.append(len(axes) if sign == 1 else -1 - len(axes))
        if len(axes) >= 2:
            same = sorted(axes)
            return tuple(same), tuple(same)
    return None


def _seeds(part: Part, index: int, seed: int) -> range:
    """Return the seeds under which a sample is read; no two samples share one."""
    count = part.length or 1
    return range(seed + index, seed + index + _READS * count, count)


def _draws(part: Part, index: int, seed: int, snapshot: Snapshot) -> bool:
    """Read a sample and say whether that draws from a generator of the process or of the dataset."""
    own = [held.value for held in snapshot.contents.generators]
    states = []
    for again in (True, False):
        seed_process(seed)
        if not again:
            part.dataset[index]
        states.append([fingerprint(each) for each in (*global_generators().values(), *own)])
    return states[0] != states[1]


def _reads(part: Part, one: _Map, index: int, seed: int) -> Iterator[_Read]:
    for each in _seeds(part, index, seed):
        made = _of(read(part.dataset, index, each), one)
        if made is not None:
            yield made


def _of(sample: Any, one: _Map) -> _Read | None:
    found = dict(leaves(sample))
    target = found.get(one.path)
    inputs = [found.get(path) for path, _ in one.inputs]
    if not all(is_array(value) for value in (target, *inputs)):
        return None
    own = target_path(sample)
    digest = join_digests(
        describe_leaf(path, value).digest
        for path, value in found.items()
        if path != one.path and not is_under(path, own)
    )
    if digest is None:
        return None
    return _Read(digest, _tensor(target), tuple(map(_tensor, inputs)))


def _tensor(value: Any) -> torch.Tensor:
    """Return a copy, since NumPy's arrays may be flipped views, which torch does not take."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return torch.as_tensor(value.copy())


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)


def _apart(a: _Read, b: _Read) -> bool:
    return a.inputs == b.inputs and not _same(a.target, b.target)


def _turnings(value: torch.Tensor, axes: _Shape) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield a map flipped along its axes, and rotated in the plane of the last two."""
    for size in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, size):
            yield "mirrored", value.flip(chosen)
    if value.shape[axes[-1]] == value.shape[axes[-2]]:
        for turns in (1, 3):
            yield "rotated", torch.rot90(value, turns, (axes[-2], axes[-1]))


def _turned(reads: list[_Read], one: _Map) -> str | None:
    """Say how targets of equal inputs are turned; empty where none is, None where any differs otherwise."""
    if one.images and any(_is_view(each, one) for each in reads):
        return None
    found = ""
    for a, b in itertools.combinations(reads, 2):
        if not _apart(a, b):
            continue
        how = _how(a, b, one)
        if how is None:
            return None
        found = found or how
    return found


def _how(a: _Read, b: _Read, one: _Map) -> str | None:
    """Say how a target is turned to give another; empty where inputs look alike turned so, None where in no way."""
    images = [
        [made for _, made in _turnings(image, axes)]
        for image, (_, axes) in zip(a.images, one.inputs, strict=True)
    ]
    alike = False
    for way, (name, target) in enumerate(_turnings(a.target, one.axes)):
        if _same(target, b.target):
            if any(not _same(own, made[way]) for own, made in zip(a.images, images, strict=True)):
                return name
            alike = True
    return "" if alike else None


def _is_view(one: _Read, map_: _Map) -> bool:
    """Say whether a target is its input, as it is or turned: two views of one image may be drawn apart."""
    every = (one.target, *(made for _, made in _turnings(one.target, map_.axes)))
    return any(_same(image, made) for image in one.images for made in every)


def _place(part: Part, one: _Map, index: int, seed: int) -> tuple[Location | None, str]:
    """Return the line by which two reads part for the target alone, and the variable by which they do.

    The sample is read again line by line, until two reads show it.
    """
    seen: list[tuple[Traced, _Read]] = []
    with put_back(part.dataset, (index,)):
        for each in _seeds(part, index, seed):
            trace = traced_read(part, index, each, one.size)
            made = _of(trace.sample, one)
            if made is None:
                continue
            for other, theirs in seen:
                if _apart(theirs, made) and _how(theirs, made, one):
                    place, name = parting(other, trace)
                    return place or return_line(part, index, seed), name
            seen.append((trace, made))
    return return_line(part, index, seed), ""
