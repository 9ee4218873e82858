"""A line that slices an input into parts side by side takes each of them once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_torchcheck import Contract
from pytest_torchcheck.probes.recorded.slices import left_out, span_of

CHECK = "dead-modules"
WIDTHS = (8, 8, 6)


class Columns(nn.Module):
    """Several columns stand side by side in one input; each has a projection of its own."""

    widths = WIDTHS

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 4) for width in self.widths)

    def forward(self, x: Tensor) -> Tensor:
        made, start = [], 0
        for width, layer in zip(self.widths, self.layers, strict=True):
            made.append(layer(x[:, start : start + width]))
            start += width
        return torch.stack(made, 1)


# bugs


class NeverAdvanced(Columns):
    def forward(self, x):
        made, start = [], 0
        for width, layer in zip(self.widths, self.layers, strict=True):
            made.append(layer(x[:, start : start + width]))  # BUG
        return torch.stack(made, 1)


class SameWidths(NeverAdvanced):
    widths = (8, 8, 8)


class SetNotAdvanced(Columns):
    """The start is set to the width of a part instead of moved on by it."""

    def forward(self, x):
        made, start = [], 0
        for width, layer in zip(self.widths, self.layers, strict=True):
            made.append(layer(x[..., start : start + width]))  # BUG
            start = width
        return torch.stack(made, 1)


class Narrowed(Columns):
    def forward(self, x):
        made, start = [], 0
        for width, layer in zip(self.widths, self.layers, strict=True):
            made.append(layer(x.narrow(1, start, width)))  # BUG
        return torch.stack(made, 1)


class OfACopy(NeverAdvanced):
    def forward(self, x):
        return super().forward(x.clone())


class OfANorm(NeverAdvanced):
    """Each entry of the input counts for the statistics of the norm; of what that gives, a part."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(sum(self.widths))

    def forward(self, x):
        return super().forward(self.norm(x))


class OfALayer(OfANorm):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.Linear(5, sum(self.widths))


def found(model: nn.Module, width: int) -> Any:
    (finding,) = Contract(model=model, inputs=f"B {width}").check([CHECK]).findings
    return finding


@pytest.mark.parametrize("kind", [NeverAdvanced, SameWidths, SetNotAdvanced, Narrowed, OfACopy])
def test_a_start_that_does_not_move_on(kind: type[Columns]) -> None:
    finding = found(kind(), sum(kind.widths))
    assert (finding.status, finding.code) == ("violated", "features-unread"), finding
    assert "# BUG" in finding.location.text
    assert "start" in finding.fix


def test_entries_that_are_left_out_are_named() -> None:
    assert "8:22 of dimension 1" in found(NeverAdvanced(), 22).summary
    assert "16:22 of dimension 1" in found(SetNotAdvanced(), 22).summary


@pytest.mark.parametrize(("kind", "width"), [(OfANorm, 22), (OfALayer, 5)])
def test_what_the_forward_computes_is_sliced_so(kind: type[Columns], width: int) -> None:
    finding = found(kind(), width)
    assert (finding.status, finding.code) == ("violated", "features-unread"), finding
    assert "# BUG" in finding.location.text
    assert "8:22 of dimension 1 of x" in finding.summary


# correct


class SplitOnce(Columns):
    def forward(self, x):
        return torch.stack(
            [f(p) for f, p in zip(self.layers, x.split(self.widths, 1), strict=True)], 1
        )


class Twice(Columns):
    """The same columns are read by two loops."""

    def forward(self, x):
        return super().forward(x) + super().forward(x.flip(1)).flip(1) + super().forward(x)


class Coordinates(nn.Module):
    """Points with normals that are not used on purpose: coordinates enter at each layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 8), nn.Linear(11, 8)])

    def forward(self, x):
        h = x[:, :3]
        for layer in self.layers:
            h = layer(h)
            h = torch.cat([h, x[:, 0:3]], 1)
        return h


class OneRange(nn.Module):
    """A part that is chosen once is given to two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = 3, 6
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(2))

    def forward(self, x):
        h, first, last = 0, self.first, self.last
        for layer in self.layers:
            h = h + layer(x[:, first:last])
        return h


class Prefixes(nn.Module):
    """Matryoshka: shorter and shorter beginnings of one vector, which is longer than any of them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, 3) for width in (12, 8, 4))

    def forward(self, x):
        return sum(layer(x[:, : layer.in_features]) for layer in self.layers)


class Windows(nn.Module):
    """Windows that overlap; what is left at the end is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return sum(self.layer(x[:, start : start + 4]) * (start + 1) for start in (0, 2, 4))


class RestReadElsewhere(NeverAdvanced):
    """The first part is read by all; the rest has a reader of its own."""

    def forward(self, x):
        return super().forward(x) + x[:, 8:].sum(1)[:, None, None]


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start, self.layer = 0, nn.Linear(4, 4)

    def forward(self, h, x):
        start = self.start
        return h + self.layer(x[:, start : start + 4])


class Conditioned(nn.Module):
    """Each block takes the same part of a condition, in a call of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))

    def forward(self, x):
        h = 0
        for block in self.blocks:
            h = block(h, x)
        return h


@pytest.mark.parametrize(
    ("kind", "width"),
    [
        (Columns, 22), (SplitOnce, 22), (Twice, 22), (Coordinates, 6), (OneRange, 6), (Prefixes, 24),
        (Windows, 12), (RestReadElsewhere, 22), (Conditioned, 12),
    ],
)  # fmt: skip
def test_parts_that_are_meant(kind: type[nn.Module], width: int) -> None:
    finding = found(kind(), width)
    assert finding.status == "passed", finding


@pytest.mark.parametrize(
    ("name", "rest", "wanted"),
    [
        ("__getitem__", (slice(1, 3),), (0, 1, 3)),
        ("__getitem__", ((slice(None), slice(2, None)),), (1, 2, 5)),
        ("__getitem__", ((Ellipsis, slice(-2, None)),), (2, 4, 6)),
        ("__getitem__", ((slice(1, 2), Ellipsis, slice(None)),), (0, 1, 2)),
        ("__getitem__", ((Ellipsis, slice(0, 2), slice(None)),), (1, 0, 2)),
        ("__getitem__", ((slice(None), 2),), None),
        ("__getitem__", (slice(None, None, 2),), None),
        ("narrow", (-1, 2, 3), (2, 2, 5)),
        ("narrow", (0, -2, 2), (0, 2, 4)),
    ],
)
def test_what_a_slice_takes(name: str, rest: Any, wanted: Any) -> None:
    assert span_of(name, (torch.zeros(4, 5, 6), *rest)) == wanted


def test_what_parts_leave_out() -> None:
    assert left_out([(0, 0, 2), (0, 1, 3), (0, 5, 6)], 8) == [(3, 5), (6, 8)]
    assert left_out([(0, 0, 8)], 8) == []
