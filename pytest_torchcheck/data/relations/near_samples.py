"""Are samples of one dataset those of another one, moved by next to nothing?"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import torch

from ...lean import dataclass
from ..describing import is_under, leaves, target_path
from ..snapshot import put_back
from ..validity import read, spread

if TYPE_CHECKING:
    from ..plan import Part

_MOST_FIRST: Final = 2048
_MOST_SECOND: Final = 128
_VALUES: Final = 256
"""Numbers of each sample that are compared."""
_FEWEST: Final = 8
_NEAR: Final = 0.02
"""Share of the usual distance between neighbours of one dataset at which samples count as one."""
_NEIGHBOUR: Final = 3  # the nearest may be a copy as well
_SECONDS: Final = 1.0
"""How long reading of one dataset may take: slow ones are compared by contents alone."""
_TARGETS: Final = 0.9
_SHARE: Final = 0.25
_INSIDE: Final = 0.5
"""Share of the second's samples that must be within the first's: at the border of two times it is less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Samples of a second dataset that lie beside one of a first; plain data.

    Attributes:
        pairs: Indices in the first and in the second, at most 8.
        near: How many there are.
        compared: How many of the second were compared.
        distance: Their median distance.
        usual: The median distance of a sample of the first to its third neighbour there.
        within: Whether they are no samples of the first, but numbers that stand in a row within its samples.
    """

    pairs: tuple[tuple[int, int], ...]
    near: int
    compared: int
    distance: float = 0.0
    usual: float = 0.0
    within: bool = False


_Rows = tuple[list[int], torch.Tensor, torch.Tensor]


def near_samples(first: Part, second: Part, *, seed: int = 0) -> Near | None:
    """Compare numbers of the inputs; None where few of the second lie near the first, or where nothing can be compared.

    Windows of one series that are split at random are near none of the other split, and within several of them.
    Near is a fiftieth of the distance at which samples of the first have neighbours themselves, with equal
    targets: dense data have near neighbours in either dataset.
    """
    if first.length > _MOST_FIRST or min(first.length, second.length) < _FEWEST:
        return None
    one, two = _rows(first, _MOST_FIRST, seed), _rows(second, _MOST_SECOND, seed)
    if one is None or two is None or one[1].shape[1] != two[1].shape[1]:
        return None
    return _beside(one, two) or _within(one, two)


def _beside(one: _Rows, two: _Rows) -> Near | None:
    scale = one[1].std(0)
    used = scale > 0
    if int(used.sum()) < 2:
        return None
    a, b = one[1][:, used] / scale[used], two[1][:, used] / scale[used]
    among = torch.cdist(a, a).fill_diagonal_(float("inf")).kthvalue(_NEIGHBOUR, dim=1).values
    usual = float(among.median())
    distances, places = torch.cdist(b, a).min(1)
    near = distances < _NEAR * usual
    if usual <= 0 or float(near.double().mean()) < _SHARE or int(near.sum()) < _FEWEST // 2:
        return None
    if not _same_targets(one[2][places[near]], two[2][near], one[2]):
        return None
    pairs = [(one[0][int(places[k])], two[0][k]) for k in near.nonzero().flatten().tolist()]
    return Near(
        pairs=tuple(pairs[:8]),
        near=int(near.sum()),
        compared=len(b),
        distance=float(distances[near].median()),
        usual=usual,
    )


def _within(one: _Rows, two: _Rows) -> Near | None:
    """Return the samples of the second of which both halves stand in samples of the first, at other places of them.

    A target of numbers belongs to the second half: what follows a window is within others too. A second split
    of later times shares its first windows with the first at most, and the later half of few.
    """
    labelled = all(_whole(rows[2]) and not _whole(rows[1]) for rows in (one, two))
    parts = [(x,) if labelled else (x, t) for _, x, t in (one, two)]
    a, b = (torch.cat(part, 1).contiguous() for part in parts)
    middle = b.shape[1] // 2
    if middle < _FEWEST // 2 or a.shape[1] != b.shape[1]:
        return None
    if float(torch.isin(b[:, middle], a).double().mean()) < _INSIDE:
        return None  # hardly a number of the second occurs in the first
    halves = slice(0, middle), slice(b.shape[1] - middle, None)
    varied = {
        place: [_bytes(row[half]) for half in halves]
        for place, row in enumerate(b)
        if all(len(row[half].unique()) > middle // 2 for half in halves)
    }
    seen = _elsewhere(a, b, middle, {key for keys in varied.values() for key in keys})
    pairs = [
        (one[0][seen[last, halves[1].start]], two[0][place])
        for place, (first, last) in varied.items()
        if (first, halves[0].start) in seen and (last, halves[1].start) in seen
    ]
    if len(pairs) < max(_INSIDE * len(b), _FEWEST // 2):
        return None
    return Near(pairs=tuple(pairs[:8]), near=len(pairs), compared=len(b), within=True)


def _elsewhere(
    a: torch.Tensor, b: torch.Tensor, middle: int, wanted: set[bytes]
) -> dict[tuple[bytes, int], int]:
    """Return the first row of ``a`` that holds one of some halves of rows of ``b`` at another place than it has there.

    Args:
        a: float64 ``[n, length]``.
        b: float64 ``[m, length]``; its halves are the first and the last ``middle`` numbers of its rows.
        middle: How many numbers a half has.
        wanted: The halves as bytes.

    Returns:
        The row, by half and the place where that half begins in ``b``. Only ``wanted`` halves are kept: all that
        rows of ``a`` hold at any place are up to a gigabyte.
    """
    own = (0, b.shape[1] - middle)
    begins = torch.isin(a[:, : own[1] + 1], torch.cat([b[:, start] for start in own]))
    found: dict[tuple[bytes, int], int] = {}
    for place, row in enumerate(a):
        for start in begins[place].nonzero().flatten().tolist():
            if (key := _bytes(row[start : start + middle])) in wanted:
                for mine in own:
                    if mine != start:
                        found.setdefault((key, mine), place)
    return found


def _whole(rows: torch.Tensor) -> bool:
    return bool((rows == rows.round()).all())


def _bytes(row: torch.Tensor) -> bytes:
    return bytes(row.numpy().tobytes())


def _same_targets(one: torch.Tensor, two: torch.Tensor, every: torch.Tensor) -> bool:
    """Say whether nearly all pairs have targets as near each other as equal ones with noise; true without targets."""
    if one.shape[1:] != two.shape[1:]:
        return False
    if not one.shape[1]:
        return True
    spread_ = every.std(0).clamp(min=1e-12)
    close = ((one - two).abs() <= 0.1 * spread_).all(1)
    return float(close.double().mean()) >= _TARGETS


def _rows(part: Part, most: int, seed: int) -> _Rows | None:
    """Return indices, inputs and targets of samples as rows of numbers; None where any holds something else."""
    places = spread(part.length, most)
    inputs, targets = [], []
    began = time.perf_counter()
    with put_back(part.dataset, tuple(places[:256])):
        for index in places:
            found = _numbers(read(part.dataset, index, seed))
            if found is None or time.perf_counter() - began > _SECONDS:
                return None
            inputs.append(found[0])
            targets.append(found[1])
            if inputs[0].shape != inputs[-1].shape or targets[0].shape != targets[-1].shape:
                return None
    return list(places), torch.stack(inputs), torch.stack(targets)


def _numbers(sample: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    target = target_path(sample)
    inputs, targets = [], []
    for path, value in leaves(sample):
        tensor = torch.as_tensor(value) if isinstance(value, int | float) else value
        if not isinstance(tensor, torch.Tensor) or tensor.layout != torch.strided:
            return None
        if tensor.is_complex() or tensor.device.type != "cpu" or tensor.is_quantized:
            return None
        flat = tensor.detach().reshape(-1).double()
        flat = flat[:: max(1, len(flat) // _VALUES)]
        if not bool(torch.isfinite(flat).all()):
            return None
        if is_under(path, target):
            targets.append(flat)
        elif not tensor.is_floating_point():
            return None  # tokens and codes have no small distances
        else:
            inputs.append(flat)
    if not inputs:
        return None
    return torch.cat(inputs), torch.cat(targets) if targets else torch.zeros(0).double()
