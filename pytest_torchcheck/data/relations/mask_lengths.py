"""Does a collate function mark more positions of a padded sample as real than the sample has?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ... import sources
from ...findings import Culprit, Finding
from ...verdicts import suspicious, violated
from ..wording import line_ref

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

    from ...findings import Location
    from ..plan import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class LongMask:
    """A mask that is too long by the same number of positions in every sample that has room for them.

    Attributes:
        path: Of the mask in a batch.
        extra: How many positions of padding it marks as real.
        own: Length of the first such sample.
        samples: How many samples have room, and are all marked so.
        certain: Whether what pads stands in no sample: an end of sequence that also pads may be
            marked once on purpose.
        made: The line of the collate function that makes it.
    """

    path: str
    extra: int
    own: int
    samples: int
    certain: bool
    made: Location | None = None


def too_long(
    whole: dict[str, torch.Tensor], alone: Sequence[dict[str, torch.Tensor]], rows: Sequence[int]
) -> LongMask | None:
    """Compare masks of a batch with those of its samples by themselves, where nothing is padded.

    Args:
        whole: Tensors of a batch by path.
        alone: The same of each sample by itself.
        rows: The row of the batch that holds each of them.

    A mask is a matrix of zeros and ones which holds ones alone where a sample stands by itself.
    """
    for path, mask in whole.items():
        if mask.dim() != 2 or not bool(((mask == 0) | (mask == 1)).all()):
            continue
        own = [one[path] for one in alone]
        if any(one.dim() != 2 or len(one) != 1 or not bool((one == 1).all()) for one in own):
            continue
        lengths = [one.shape[1] for one in own]
        pairs = list(zip(rows, lengths, strict=True))
        extra = [int(mask[row].sum()) - length for row, length in pairs]
        room = [mask.shape[1] - length for length in lengths]
        most = max(extra)
        if most <= 0 or any(e != min(most, r) for e, r in zip(extra, room, strict=True)):
            continue
        padded = [length for length, space in zip(lengths, room, strict=True) if space > most]
        if len(set(padded)) > 1:  # one that marks all padding is no mask of it
            certain = _pads_apart(whole, alone, mask, pairs)
            return LongMask(
                path=path, extra=most, own=padded[0], samples=len(padded), certain=certain
            )
    return None


def _pads_apart(
    whole: dict[str, torch.Tensor],
    alone: Sequence[dict[str, torch.Tensor]],
    mask: torch.Tensor,
    pairs: Sequence[tuple[int, int]],
) -> bool:
    """Say whether a matrix of whole numbers beside the mask is padded by a number that no sample holds."""
    for path, ids in whole.items():
        if (
            ids is mask
            or ids.shape != mask.shape
            or ids.is_floating_point()
            or ids.dtype == torch.bool
        ):
            continue
        pads = {int(value) for row, length in pairs for value in ids[row, length:].unique()}
        if len(pads) == 1 and not any(bool((one[path] == min(pads)).any()) for one in alone):
            return True
    return False


def making_watcher(mask: torch.Tensor) -> Any:
    """Return a watcher that says True at the line after which a local variable is this mask."""

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        return event != "call" and any(
            isinstance(value, torch.Tensor)
            and value.shape == mask.shape
            and bool((value == mask).all())
            for value in frame.f_locals.values()
        )

    return watcher


def entry_watcher(field: torch.Tensor) -> Any:
    """Return a watcher that says True at the line after which a variable, or an entry of its own, holds these values.

    A line that makes several entries of one dict or tuple at once is none.
    """
    sizes: dict[int, int] = {}
    at_once: set[int] = set()

    def watcher(frame: FrameType, event: str, line: int) -> bool:
        if event == "call":
            return False
        for one in tuple(frame.f_locals.values()):
            if _equal(one, field):
                return True
            if not isinstance(one, dict | tuple) or id(one) in at_once:
                continue
            values = list(one.values()) if isinstance(one, dict) else one
            added = len(values) - sizes.get(id(one), 0)
            sizes[id(one)] = len(values)
            if any(_equal(value, field) for value in values):
                if added <= 1:
                    return True
                at_once.add(id(one))
        return False

    return watcher


def _equal(value: object, field: torch.Tensor) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.shape == field.shape
        and value.dtype == field.dtype
        and torch.equal(value, field)
    )


def mask_too_long(part: Part, found: LongMask) -> Finding:
    """A collate function marks padding as real."""
    collate: Any = part.plan.collate_fn
    name = getattr(collate, "__name__", type(collate).__name__)
    place = found.made or sources.of_object(collate)
    short = sources.assigned_name(found.made) if found.made is not None else ""
    positions = f"{found.extra} position{'s' if found.extra > 1 else ''}"
    make = violated if found.certain else suspicious
    return make(
        "mask-too-long",
        f"{part.prefix}{name} marks {positions} of padding as real in every sample that is padded",
        culprits=(
            Culprit("dataset", short or found.path, "the mask", place),
            Culprit("function", name, "collate function", sources.of_object(collate)),
        ),
        location=place,
        observed=f"a sample of {found.own} positions has {found.own} alone, and "
        f"{found.own + found.extra} are marked in a batch; the same holds for all "
        f"{found.samples} samples with padding",
        cause="the mask is longer than the sample: the comparison with the length includes the "
        "length itself",
        because=f"{found.path} was computed for the same samples together and one by one",
        fix=f"use < at {line_ref(place)}: position < length",
    )
