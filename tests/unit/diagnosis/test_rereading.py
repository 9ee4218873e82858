"""A view that stands for a transpose: it, and not what reads its result, lets the future or the neighbours in."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding, promises
from pytest_torchcheck.probes.positions import rereading


class Heads(nn.Module):
    """Causal attention whose heads are split by a view alone, or by a view and a transpose."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right = right
        self.qkv = nn.Linear(16, 48)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _ = x.shape
        qkv = self.qkv(x)
        heads = qkv.view(b, t, 12, 4).transpose(1, 2) if self.right else None
        heads = qkv.view(b, 12, t, 4) if heads is None else heads
        q, k, v = heads.chunk(3, 1)
        made = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return made.transpose(1, 2).reshape(b, t, 16)


class Recurrent(nn.Module):
    """A time-first GRU that is given a view instead of a transposed batch."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right, self.rnn = right, nn.GRU(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        x = x.transpose(0, 1) if self.right else x.view(t, b, d)
        made: Tensor = self.rnn(x)[0][-1]
        return made


class Unflattened(nn.Module):
    """Rows of the flattened batch, read back with the dimensions exchanged."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right, self.lin = right, nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        h = self.lin(x.reshape(b * t, d))
        h = h.view(b, t, 3) if self.right else h.view(t, b, 3).transpose(0, 1)
        return h.mean(1)


class Stacked(nn.Module):
    """Two frames in one step, a causal convolution over the steps; without the shift the second frame leaks."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right, self.conv = right, nn.Conv1d(10, 8, 2)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        steps = x.reshape(b, t // 2, 2 * d).transpose(1, 2)
        steps = self.conv(F.pad(steps, (2, -1) if self.right else (1, 0)))
        return steps.transpose(1, 2).repeat_interleave(2, 1)


class Points(nn.Module):
    """A set of points, their coordinates brought before them by a view alone, or by a transpose."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right = right
        self.norm, self.each = nn.LayerNorm(4), nn.Conv1d(4, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x)
        h = x.transpose(1, 2) if self.right else x.reshape(len(x), 4, -1)
        return self.each(h).relu().amax(2)


class Pairwise(Points):
    """The same for an output that has a value for each point, which all other points reach."""

    def forward(self, x: Tensor) -> Tensor:
        x = x + x.mean(1, keepdim=True)
        h = self.each(x.transpose(1, 2))
        return h.transpose(1, 2) if self.right else h.reshape(len(x), -1, 6)


class LastStates(nn.Module):
    """The last states of both directions, put beside each other by a view alone, or after a transpose."""

    def __init__(self, right: bool) -> None:
        super().__init__()
        self.right, self.rnn = right, nn.GRU(3, 6, batch_first=True, bidirectional=True)
        self.lin = nn.Linear(12, 12)

    def forward(self, x: Tensor) -> Tensor:
        state = self.rnn(x)[1]
        if self.right:
            return self.lin(state.transpose(0, 1).reshape(len(x), -1))
        both = state.view(len(x), -1)
        return self.lin(both)


def _judge(model: nn.Module, x: Tensor, y: Tensor, check: str, *promised: Any) -> Finding:
    torch.manual_seed(0)
    contract = Contract(model=model, batch=((x,), y), loss=F.mse_loss, promises=promised)
    return contract.check([check]).findings[0]


_CASES: dict[str, tuple[Any, ...]] = {
    "heads": (Heads, (3, 5, 16), (3, 5, 16), "causality", promises.Causal(dim=1)),
    "recurrent": (Recurrent, (4, 5, 8), (4, 3), "batch-independence"),
    "unflattened": (Unflattened, (4, 5, 8), (4, 3), "batch-independence"),
    "points": (
        Points,
        (3, 5, 4),
        (3, 6),
        "permutation-invariance",
        promises.PermutationInvariant(input=0, dim=1),
    ),
    "pairwise": (
        Pairwise,
        (3, 5, 4),
        (3, 5, 6),
        "permutation-equivariance",
        promises.PermutationEquivariant(input=0, dim=1),
    ),
    "states": (LastStates, (4, 5, 3), (4, 12), "batch-independence"),
    "stacked": (Stacked, (3, 8, 5), (3, 8, 8), "causality", promises.Causal(dim=1)),
}


@pytest.mark.parametrize("case", _CASES)
def test_a_view_in_its_place_passes(case: str) -> None:
    model, x, y, *rest = _CASES[case]
    assert _judge(model(True), torch.randn(x), torch.randn(y), *rest).status == "passed"


@pytest.mark.parametrize(
    ("case", "line", "mend", "reader"),
    [
        ("heads", "qkv.view(b, 12, t, 4)", "use .view(b, t, 12, 4).transpose(1, 2)", "chunk"),
        ("recurrent", "x.view(t, b, d)", "use .transpose(0, 1) instead of this view", "gru"),
        (
            "points",
            "x.reshape(len(x), 4, -1)",
            "use .transpose(1, 2) instead of this reshape",
            "conv1d",
        ),
        (
            "states",
            "state.view(len(x), -1)",
            "use .transpose(0, 1).reshape(len(x), -1)",
            "linear",
        ),
        ("unflattened", "h.view(t, b, 3)", "transpose or permute them afterwards", "mean"),
    ],
)
def test_the_view_is_the_cause(case: str, line: str, mend: str, reader: str) -> None:
    model, x, y, *rest = _CASES[case]
    found = _judge(model(False), torch.randn(x), torch.randn(y), *rest)
    assert found.status == "violated"
    assert found.location is not None
    assert line in found.location.text
    assert "in memory order" in found.cause
    assert mend in found.fix
    assert reader in found.culprits[-1].name
    assert found.culprits[-1].detail == "reads it"


def test_frames_that_are_stacked_are_not_scattered() -> None:
    model, x, y, *rest = _CASES["stacked"]
    found = _judge(model(False), torch.randn(x), torch.randn(y), *rest)
    assert found.status == "violated"
    assert "in memory order" not in found.cause


def test_a_group_of_frames_with_the_shape_of_a_transpose_is_told_as_both() -> None:
    model = Stacked(False)
    model.conv = nn.Conv1d(8, 8, 2)
    found = _judge(
        model, torch.randn(3, 8, 4), torch.randn(3, 8, 8), "causality", promises.Causal(dim=1)
    )
    assert "if grouping 2 positions is intended" in found.fix


def test_entries_that_a_mean_brought_together_before_stand_in_no_rows() -> None:
    model, x, y, *rest = _CASES["pairwise"]
    found = _judge(model(False), torch.randn(x), torch.randn(y), *rest)
    assert (found.status, found.code) == ("violated", "order-dependent")
    assert "in memory order" not in found.cause


def test_a_place_in_the_set_that_is_added_is_no_view() -> None:
    model = Points(True)
    model.norm = nn.LayerNorm([5, 4])
    nn.init.normal_(model.norm.weight)
    rest = _CASES["points"][3:]
    found = _judge(model, torch.randn(3, 5, 4), torch.randn(3, 6), *rest)
    assert (found.status, found.code) == ("violated", "order-dependent")
    assert "according to their position (F.layer_norm in norm (LayerNorm))" in found.cause


@pytest.mark.parametrize(
    ("before", "after", "dim"),
    [
        ((2, 8, 24), (8, 48), 1),
        ((2, 8, 24), (8, 2, 24), 1),
        ((3, 5, 48), (3, 12, 5, 4), 1),
        ((4, 5, 8), (5, 4, 8), 0),
        ((6, 4, 10), (4, 60), 1),
        ((2, 3, 7), (7, 6), 2),
        ((3, 5, 4), (3, 4, 5), 1),
        ((2, 8, 24), (2, 24, 8), 1),
    ],
)
def test_what_is_written_instead_keeps_every_row(before, after, dim):
    rows = rereading.Rows(dim=dim, labels=torch.arange(before[dim]))
    said = rereading._instead(before, after, rows, before[dim], [str(size) for size in after])
    ones = [1] * len(before)
    ones[dim] = -1
    owner = torch.arange(before[dim]).view(ones).expand(before)
    made = eval("x" + said, {"x": owner.contiguous()})
    assert tuple(made.shape) == after
    place = after.index(before[dim])
    assert torch.equal(
        made.movedim(place, -1), torch.arange(before[dim]).expand(made.movedim(place, -1).shape)
    )


def test_a_view_that_is_the_last_operation_is_named_too() -> None:
    model = LastStates(False)
    model.lin = nn.Identity()
    found = _judge(model, torch.randn(4, 5, 3), torch.randn(4, 12), "batch-independence")
    assert (found.status, found.code) == ("violated", "samples-mixed")
    assert found.location is not None
    assert "state.view(len(x), -1)" in found.location.text
    assert "use .transpose(0, 1).reshape(len(x), -1)" in found.fix
