"""Calls that take one dtype and are given two, or one that they do not take: the operand, its dtype, and its line."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from provoke import explain, line
from torch import Tensor, nn

IDS = torch.tensor([0, 1])


class Mixed(nn.Module):
    """A float64 layer, and a helper tensor that is made in float32: how both meet is chosen."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(4, 4).double()

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        made = torch.zeros(2, 4)  # MADE
        return getattr(self, self.how)(y, made)

    def index_add(self, y, made):
        return made.index_add(0, IDS, y)

    def index_copy(self, y, made):
        return made.index_copy_(0, IDS, y)

    def index_reduce(self, y, made):
        return made.index_reduce(0, IDS, y, "mean")

    def scatter_add(self, y, made):
        return made.scatter_add(0, IDS[:, None].expand_as(y), y)

    def masked_scatter(self, y, made):
        return made.masked_scatter(y > 0, y)

    def setitem(self, y, made):
        made[IDS] = y

    def baddbmm(self, y, made):
        return torch.baddbmm(made[None] @ made.t()[None], y[None], y.t()[None])

    def bilinear(self, y, made):
        return F.bilinear(y, y, made[None].expand(4, 2, 4).transpose(0, 1)[:, :, :4])

    def dot(self, y, made):
        return torch.dot(y[0], made[0])

    def inner(self, y, made):
        return torch.inner(y, made)

    def vector(self, y, made):
        return y @ made[0]

    def prelu(self, y, made):
        return F.prelu(y, made[0])

    def lerp(self, y, made):
        return torch.lerp(y, made, 0.5)

    def solve(self, y, made):
        return torch.linalg.solve(y[:, :2], made)

    def least(self, y, made):
        return torch.linalg.lstsq(y, made)

    def weights(self, y, made):
        return F.embedding_bag(IDS[None], y, per_sample_weights=made[:1, :2], mode="sum")

    def attention(self, y, made):
        return F.scaled_dot_product_attention(y[None, None], y[None, None], made[None, None])

    def polar(self, y, made):
        return torch.polar(y, made)


METHODS = [name for name in vars(Mixed) if name not in ("forward", "__init__") and not name.startswith("_")]  # fmt: skip


@pytest.mark.parametrize("how", METHODS)
def test_the_operand_that_was_made_in_another_dtype_is_named_with_its_line(how):
    model, x = Mixed(how), torch.randn(2, 4, dtype=torch.float64)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "dtype-pair", found
    assert found.location.line == line(Mixed.forward, "# MADE"), found
    assert "zeros" in found.cause
    assert "float32" in found.cause
    assert "dtype=x.dtype" in found.fix


OTHERS = {
    "index": ("index-dtype", lambda: torch.zeros(3, 4).index_select(0, torch.tensor([1.0])), "floating-point"),
    "index_add": ("index-dtype", lambda: torch.zeros(3).index_add(0, torch.tensor([1.0]), torch.ones(1)), "floating-point"),
    "index_fill": ("index-dtype", lambda: torch.zeros(3).index_fill(0, torch.tensor([1.0]), 1.0), "floating-point"),
    "take": ("index-dtype", lambda: torch.zeros(3).take(torch.tensor([1.0])), ".long()"),
    "take_along": ("index-dtype", lambda: torch.take_along_dim(torch.zeros(3), torch.ones(1), 0), ".long()"),
    "slice": ("index-dtype", lambda: torch.zeros(3)[: torch.tensor(2.0)], ".long()"),
    "small_ids": ("index-dtype", lambda: F.embedding(IDS.to(torch.int8), torch.zeros(3, 4)), "int8"),
    "condition": ("mask-dtype", lambda: torch.where(torch.ones(2, dtype=torch.long), torch.ones(2), torch.ones(2)), "int64"),
    "selected": ("mask-dtype", lambda: torch.ones(2).masked_select(torch.ones(2)), "float32"),
    "attention": ("mask-dtype", lambda: F.scaled_dot_product_attention(*[torch.ones(1, 2, 4)] * 3, attn_mask=torch.ones(2, 2).long()), "int64"),
    "minus": ("kernel-missing", lambda: -(torch.ones(2) > 0), "bool"),
    "argmax": ("kernel-missing", lambda: (torch.ones(2) > 0).argmax(), "bool"),
    "complex": ("kernel-missing", lambda: torch.ones(2, dtype=torch.complex64) < 0, "real numbers"),
    "counted": ("kernel-missing", lambda: torch.bincount(torch.ones(2)), "takes integers"),
    "drawn": ("kernel-missing", lambda: torch.multinomial(torch.ones(2).long(), 1), ".float()"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_a_dtype_that_a_call_does_not_take(name):
    code, run, word = OTHERS[name]
    found = explain(run)
    assert found.code == code
    assert word in f"{found.summary} {found.cause} {found.fix}", found


class Counting(nn.Module):
    def forward(self, x):
        total = torch.zeros(len(x), dtype=torch.long)  # COUNTED
        total += x.mean(1)
        return total


def test_a_result_that_an_integer_tensor_cannot_take():
    model, x = Counting(), torch.randn(2, 4)
    found = explain(lambda: model(x), model=model, batch=((x,), None))
    assert found.code == "dtype-pair"
    assert "float32" in found.summary
    assert "int64" in found.summary
    made = [c for c in found.culprits if c.detail == "gives int64"]
    assert [c.location.line for c in made] == [line(Counting, "# COUNTED")]


class Looking(nn.Module):
    """Its own weight is float32, and it is given ids; the error is of two other tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(5, 4))

    def forward(self, ids):
        scale = torch.ones(4, dtype=torch.float64)  # SCALE
        return self.table[ids] @ scale


def test_ids_are_not_blamed_for_two_other_dtypes():
    model = Looking()
    found = explain(lambda: model(IDS), model=model, batch=((IDS,), None))
    assert found.location.line == line(Looking, "# SCALE")
    assert "int64" not in found.summary
