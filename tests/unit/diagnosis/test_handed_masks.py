"""An attention whose mask another function made: that line is the place, not the attention's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding, Ints, promises

DIM = 8


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: Tensor, blocked: Tensor | None) -> Tensor:
        mask = None if blocked is None else ~blocked
        return x + F.scaled_dot_product_attention(*self.qkv(x).chunk(3, -1), attn_mask=mask)  # READ


class ByHand(Fused):
    def forward(self, x: Tensor, blocked: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / DIM**0.5
        if blocked is not None:
            scores = scores.masked_fill(blocked, -torch.inf)
        return x + scores.softmax(-1) @ v  # READ


class Torchs(Fused):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)

    def forward(self, x: Tensor, blocked: Tensor | None) -> Tensor:
        mask = None if blocked is None else blocked[0]
        return x + self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]  # READ


class OwnMask(Fused):
    def forward(self, x: Tensor, blocked: Tensor | None) -> Tensor:
        lower = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1)
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + F.scaled_dot_product_attention(q, k, v, attn_mask=lower)  # READ


class Layers(nn.Module):
    """Hands the mask on, with a dimension more."""

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([block(), block()])

    def forward(self, x: Tensor, blocked: Tensor | None) -> Tensor:
        wide = None if blocked is None else blocked[None]
        for block in self.blocks:
            x = block(x, wide)
        return x


class Model(nn.Module):
    def __init__(self, block: Any, kind: str) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(12, DIM), nn.Embedding(16, DIM)
        self.layers, self.head, self.kind = Layers(block), nn.Linear(DIM, 12), kind

    def forward(self, ids: Tensor) -> Tensor:
        length = ids.shape[1]
        blocked = None
        if self.kind == "causal":
            blocked = torch.ones(length, length, dtype=torch.bool).triu(1)  # MADE
        elif self.kind == "too late":
            blocked = torch.ones(length, length, dtype=torch.bool).triu(2)  # MADE
        elif self.kind == "padding":
            blocked = (ids == 0).all(0)  # MADE
        elif self.kind == "both":
            blocked = ((ids == 0) & (ids != 0).any(1, keepdim=True))[:, None]  # MADE
        x = self.embed(ids) + self.place(torch.arange(length).flip(0))
        return self.head(self.layers(x, blocked))


def found(block: Any, kind: str, check: str) -> list[Finding]:
    ids = torch.randint(1, 12, (4, 9), generator=torch.Generator().manual_seed(0))
    for row, length in zip(ids, (9, 5, 7, 3), strict=True):
        row[: 9 - length] = 0
    promise = {
        "padding-invariance": promises.PaddingInvariant(ids="ids", pad=0, side="left"),
        "causality": promises.Causal(input="ids"),
    }[check]
    contract = Contract(
        model=lambda: Model(block, kind), batch=((ids,), ids), promises=(promise,),
        inputs=Ints("B T", low=1, high=12), sizes={"B": (1, 4), "T": (2, 12)}, output="B T 12",
        loss=lambda o, y: F.cross_entropy(o.transpose(1, 2), y, ignore_index=0),
    )  # fmt: skip
    return list(contract.check([check]).with_status("violated"))


@pytest.mark.parametrize("block", [Fused, ByHand, Torchs])
def test_a_mask_that_lacks_the_padding(block: Any) -> None:
    [leak] = found(block, "causal", "padding-invariance")
    assert leak.location.text.endswith("# MADE")
    assert leak.location.function.endswith("Model.forward")
    assert "blocked" in [c.name for c in leak.culprits]
    [reading] = [c.location.text for c in leak.culprits if c.detail == "reads by it"]
    assert reading.endswith("# READ")
    assert "invert" not in leak.fix


@pytest.mark.parametrize("block", [Fused, ByHand, Torchs])
def test_a_mask_that_lets_a_later_position_in(block: Any) -> None:
    [leak] = found(block, "too late", "causality")
    assert leak.location.text.endswith("# MADE")
    assert "hide" in leak.fix
    assert f"line {leak.location.line}" in leak.fix


@pytest.mark.parametrize("block", [Fused, ByHand])
@pytest.mark.parametrize("check", ["padding-invariance", "causality"])
def test_without_a_mask_the_attention_is_the_place(block: Any, check: str) -> None:
    [leak] = found(block, "none", check)
    assert leak.location.text.endswith("# READ")


def test_a_mask_of_the_same_function_is_no_ones_else() -> None:
    [leak] = found(OwnMask, "causal", "causality")
    assert leak.location.text.startswith("lower = ")
    [leak] = found(OwnMask, "causal", "padding-invariance")
    assert leak.location.text.endswith("# READ")


class Inverted(Fused):
    def forward(self, x: Tensor, blocked: Tensor | None) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        blocked = blocked.view(blocked.shape[-3:])
        return x + F.scaled_dot_product_attention(q, k, v, attn_mask=blocked)  # READ


@pytest.mark.parametrize(
    ("kind", "check"), [("causal", "causality"), ("both", "padding-invariance")]
)
def test_a_mask_that_is_read_the_wrong_way_round(kind: str, check: str) -> None:
    [leak] = found(Inverted, kind, check)
    assert "# MADE" not in leak.location.text


def test_a_mask_of_keys_alone_is_no_causal_one() -> None:
    [leak] = found(Fused, "padding", "causality")
    assert leak.location.text.endswith("# READ")


@pytest.mark.parametrize("block", [Fused, ByHand])
def test_a_right_causal_mask(block: Any) -> None:
    assert found(block, "causal", "causality") == []
