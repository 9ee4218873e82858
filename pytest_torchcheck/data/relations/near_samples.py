"""Are samples of one dataset those of another one, moved by next to nothing?"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from ..describing import is_under, leaves, target_path
from ..reading import read, spread
from ..snapshot import put_back

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Near:
    """Samples of a second dataset that lie beside one of a first; plain data.

    Attributes:
        pairs: Indices in the first and in the second, at most 8.
        near: How many there are.
        compared: How many of the second were compared.
        distance: Their median distance.
        usual: The median distance of a sample of the first to its third neighbour there.
    """

    pairs: tuple[tuple[int, int], ...]
    near: int
    compared: int
    distance: float
    usual: float


_Rows = tuple[list[int], torch.Tensor, torch.Tensor]


def near_samples(first: Part, second: Part, *, seed: int = 0) -> Near | None:
    """Compare numbers of the inputs; None where few of the second lie near the first, or where nothing can be compared.

    Near is a fiftieth of the distance at which samples of the first have neighbours themselves, with equal
    targets: dense data have near neighbours in either dataset.
    """
    if first.length > _MOST_FIRST or min(first.length, second.length) < _FEWEST:
        return None
    one, two = _rows(first, _MOST_FIRST, seed), _rows(second, _MOST_SECOND, seed)
    if one is None or two is None or one[1].shape[1] != two[1].shape[1]:
        return None
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
