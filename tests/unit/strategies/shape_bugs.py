"""Models with one seeded shape bug each, and the smallest batches that show it, known by construction."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck.batches import Batch, BatchSource
from pytest_torchcheck.specs import Ints

if TYPE_CHECKING:
    from collections.abc import Callable

Sizes = dict[str, int]


@dataclass(frozen=True, kw_only=True)
class ShapeBug:
    """A model that fails at some of its declared sizes.

    Attributes:
        name: What is wrong with it.
        inputs: Specs of its inputs by name.
        sizes: The sizes at which it should work.
        run: The model.
        expected: The shape of its output at given sizes.
        smallest: The sizes of the smallest failing batches.
        layouts: How its inputs may lie in memory.
    """

    name: str
    inputs: dict[str, Any]
    sizes: dict[str, Any]
    run: Callable[..., Tensor]
    expected: Callable[[Sizes], tuple[int, ...]]
    smallest: list[Sizes]
    layouts: tuple[Any, ...] = ("contiguous",)

    def source(self) -> BatchSource:
        return BatchSource(self.inputs, sizes=self.sizes)

    def fails(self, batch: Batch) -> bool:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch warns of a deviation of length one
                output = self.run(**batch.kwargs)
        except (RuntimeError, IndexError):
            return True
        return tuple(output.shape) != self.expected(batch.sizes) or not bool(
            output.isfinite().all()
        )


def _unet(x: Tensor) -> Tensor:
    return torch.cat([x, F.interpolate(F.avg_pool2d(x, 2), scale_factor=2)], dim=1)


_TABLE = nn.Embedding(100, 4)

BUGS = [
    ShapeBug(
        name="hard-coded batch",
        inputs={"x": "B 6"},
        sizes={"B": (1, 8)},
        run=lambda x: x.reshape(8, 6),
        expected=lambda s: (s["B"], 6),
        smallest=[{"B": 1}],
    ),
    ShapeBug(
        name="squeeze on a batch of one",
        inputs={"x": "B T"},
        sizes={"B": (1, 8), "T": (2, 9)},
        run=lambda x: x.mean(dim=1, keepdim=True).expand(-1, 3).squeeze(),
        expected=lambda s: (s["B"], 3),
        smallest=[{"B": 1, "T": 2}],
    ),
    ShapeBug(
        name="odd sizes in a U-Net",
        inputs={"x": "B 3 H W"},
        sizes={"B": (1, 4), "H": (8, 33), "W": (8, 33)},
        run=_unet,
        expected=lambda s: (s["B"], 6, s["H"], s["W"]),
        smallest=[{"B": 1, "H": 8, "W": 9}, {"B": 1, "H": 9, "W": 8}],
    ),
    ShapeBug(
        name="sequence longer than the position table",
        inputs={"ids": Ints("B T", high=50)},
        sizes={"B": (1, 8), "T": (1, 128)},
        run=lambda ids: ids.unsqueeze(-1) + _TABLE(torch.arange(ids.shape[1])),
        expected=lambda s: (s["B"], s["T"], 4),
        smallest=[{"B": 1, "T": 101}],
    ),
    ShapeBug(
        name="width not divisible by the patch",
        inputs={"x": "B 1 8 W"},
        sizes={"B": (1, 4), "W": (16, 64)},
        run=lambda x: x.unflatten(3, (-1, 4)).flatten(3),
        expected=lambda s: (s["B"], 1, 8, s["W"]),
        smallest=[{"B": 1, "W": 17}],
    ),
    ShapeBug(
        name="deviation of length one",
        inputs={"x": "B T"},
        sizes={"B": (1, 8), "T": (1, 64)},
        run=lambda x: x / (x.std(dim=1, keepdim=True) + 1e-3),
        expected=lambda s: (s["B"], s["T"]),
        smallest=[{"B": 1, "T": 1}],
    ),
    ShapeBug(
        name="channels_last through view",
        inputs={"x": "B 3 H W"},
        sizes={"B": (1, 4), "H": (1, 9), "W": (1, 9)},
        run=lambda x: x.view(x.shape[0], -1),
        expected=lambda s: (s["B"], 3 * s["H"] * s["W"]),
        smallest=[{"B": 1, "H": 2, "W": 1}, {"B": 1, "H": 1, "W": 2}],
        layouts=("contiguous", "channels_last"),
    ),
]
