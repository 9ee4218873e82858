"""A loss that only sees which samples have one label, where these labels tell outputs apart and where all are alike."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import torch

from ...lean import dataclass
from ...objects import trees
from ...subject.errors import SubjectError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...probes.loss.slopes import LossOfOutput

_SAME: Final = 1e-5
_WORSE: Final = 1e-2
"""Part of the largest of the three losses that two of them differ by at least."""
_JITTER: Final = 1e-3
"""How far samples of one place are from it: losses may divide by the distance of two samples."""
_TRIES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Parted:
    """A loss at outputs that were put in the places of samples; plain data.

    Attributes:
        path, target: The output and the labels.
        classes: How many labels.
        apart: The loss where the samples of one label are in one place, at right angles to all others.
        joined: The loss where all samples are in one place.
        scattered: The loss where each sample is in a place of its own.
        joins: Whether samples in one place are better at every scale, and not only at some.
        run: Runs the loss where the samples are apart.
    """

    path: str
    target: str
    classes: int
    apart: float
    joined: float
    scattered: float
    joins: bool
    run: Callable[[], object]


def parted(loss: LossOfOutput) -> Parted | None:
    """Compare outputs that the labels tell apart with outputs in one point.

    None where labels mean more than alike and unlike.

    Cost: one call of the loss where other names for the classes change it; else about ten more.
    """
    targets = loss.targets()
    if len(loss.outputs) != 1 or len(targets) != 1:
        return None
    ((path, output),), ((name, target),) = loss.outputs.items(), targets.items()
    if output.dim() != 2 or target.shape != output.shape[:1] or _holds_no_labels(target):
        return None
    kinds, places = target.unique(return_inverse=True)
    if not 1 < len(kinds) < len(target) or len(kinds) > output.shape[1]:
        return None
    try:
        return _compared(loss, path, name, kinds, places) if _is_relation(loss, target) else None
    except (SubjectError, RuntimeError):
        return None  # a loss may refuse other outputs, or other labels


def _holds_no_labels(target: torch.Tensor) -> bool:
    real = target.is_floating_point() or target.is_complex() or target.dtype == torch.bool
    return real or not target.numel() or bool((target < 0).any())


def _is_relation(loss: LossOfOutput, target: torch.Tensor) -> bool:
    """Say whether a loss stays as it is with other names for the classes, and changes with other groups."""
    kinds, places = target.unique(return_inverse=True)
    base = _value(loss)
    close = _SAME * max(abs(base), 1e-6)
    renamed = _value(loss, kinds.roll(1)[places])
    if not math.isfinite(base) or not abs(renamed - base) <= close:
        return False
    generator = torch.Generator().manual_seed(0)
    orders = (torch.randperm(len(target), generator=generator) for _ in range(_TRIES))
    return any(
        abs(_value(loss, target[order.to(target.device)]) - base) > close for order in orders
    )


def _compared(
    loss: LossOfOutput, path: str, name: str, kinds: torch.Tensor, places: torch.Tensor
) -> Parted | None:
    """Return the loss at the first of some scales; None where they do not agree on what is worse."""
    output, generator = loss.outputs[path], torch.Generator().manual_seed(0)
    noise = torch.randn(output.shape, generator=generator)
    own = torch.nn.functional.normalize(torch.randn(output.shape, generator=generator), dim=1)
    width = output.shape[1]
    ways = torch.linalg.qr(torch.randn(width, width, generator=generator))[0][: len(kinds)]
    shift = _JITTER * noise / math.sqrt(width)
    put = {"apart": ways[places.cpu()] + shift, "joined": ways[:1] + shift, "scattered": own}
    found: list[dict[str, float]] = []
    for scale in (1.0, float(output.detach().norm(dim=1).mean()) or 1.0, 10.0):
        at = {how: loss.at(path, (scale * rows).to(output.device)) for how, rows in put.items()}
        found.append({how: _value(one) for how, one in at.items()})
    if not all(math.isfinite(value) for values in found for value in values.values()):
        return None
    gaps = [one["apart"] - one["joined"] for one in found]
    least = [_WORSE * max(map(abs, one.values())) for one in found]
    joins = all(gap > close for gap, close in zip(gaps, least, strict=True))
    if not joins and not all(gap < -close for gap, close in zip(gaps, least, strict=True)):
        return None
    run = loss.at(path, put["apart"].to(output.device)).run
    return Parted(path=path, target=name, classes=len(kinds), run=run, joins=joins, **found[0])


def _value(loss: LossOfOutput, labels: torch.Tensor | None = None) -> float:
    """Return a loss, with other labels if they are given."""
    batch = None
    if labels is not None:
        (target,) = loss.targets().values()
        batch = loss.with_targets(target, labels.to(target.dtype))
    value, _ = loss.run(batch)
    return float(trees.dense(value).detach()) if value.numel() == 1 else math.nan
