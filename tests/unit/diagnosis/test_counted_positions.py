"""Positions that are numbered with the padding, in models that take a short cut where there is none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding, Ints, promises


class Reader(nn.Module):
    """Attends causally, with a mask only where some position is padded; scores the last or the first state."""

    def __init__(self, numbers: str, last: bool) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20, 8), nn.Embedding(32, 8)
        self.qkv, self.score = nn.Linear(8, 24), nn.Linear(8, 1)
        self.numbers, self.last = numbers, last

    def numbered(self, mask: Tensor) -> Tensor:
        if self.numbers == "real":
            return (mask.cumsum(1) - 1).clamp(min=0)
        if self.numbers == "back":
            return torch.arange(mask.shape[1] - 1, -1, -1)[None]
        return torch.arange(mask.shape[1])[None]

    def bias(self, length: int) -> Tensor | None:
        if self.numbers != "distances":
            return None
        at = torch.arange(length)
        return -(at[:, None] - at).abs().to(self.score.weight.dtype)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids)
        if self.numbers != "distances":
            x = x + self.places(self.numbered(mask))
        q, k, v = self.qkv(x).chunk(3, -1)
        bias = self.bias(ids.shape[1])
        if bool(mask.all()) and bias is None:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            bias = torch.zeros(ids.shape[1], ids.shape[1], dtype=q.dtype) if bias is None else bias
            hidden = bias.masked_fill(mask[:, None] == 0, torch.finfo(q.dtype).min)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)
        return self.score(y[:, -1 if self.last else 0]).squeeze(-1)


class FirstRowDecides(Reader):
    """Asks one row whether anything is padded."""

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        if bool(mask[:, -2:].all()):
            hidden = mask[:, None].bool()
            return self.score(F.scaled_dot_product_attention(q, k, v, attn_mask=hidden)[:, 0])
        return self.score((v * mask[..., None]).sum(1))


def judged(model: nn.Module, side: str) -> Finding:
    lengths = torch.tensor([8, 5, 7, 3])[:, None]
    at = torch.arange(8)[None]
    mask = (at < lengths if side == "right" else at >= 8 - lengths).long()
    ids = torch.randint(1, 20, (4, 8), generator=torch.Generator().manual_seed(0)) * mask
    contract = Contract(
        model=model,
        inputs={"ids": Ints("B T", low=1, high=20), "mask": Ints("B T", low=1, high=2)},
        sizes={"B": (1, 4), "T": (2, 16)},
        batch=({"ids": ids, "mask": mask}, torch.randn(4)),
        loss=lambda output, target: F.mse_loss(output.flatten(), target),
        promises=[promises.PaddingInvariant(ids="ids", mask="mask", pad=0, side=side)],
    )
    return contract.check(["padding-invariance"]).findings[0]


@pytest.mark.parametrize(("numbers", "side"), [("row", "left"), ("back", "right")])
def test_the_line_that_numbers_padded_positions_too_is_named(numbers: str, side: str) -> None:
    """The run without padding makes other calls; two runs with padding make the same."""
    found = judged(Reader(numbers, last=side == "left"), side)
    assert found.status == "violated"
    assert "arange" in found.location.text
    assert "numbers the positions" in found.cause
    assert "with 3 more padded positions" in found.because
    assert "a condition" not in found.cause


@pytest.mark.parametrize(
    ("numbers", "side"),
    [
        ("real", "left"),
        ("real", "right"),
        ("row", "right"),
        ("back", "left"),
        ("distances", "left"),
        ("distances", "right"),
    ],
)
def test_numbers_that_no_padding_moves_raise_no_alarm(numbers: str, side: str) -> None:
    found = judged(Reader(numbers, last=side == "left"), side)
    assert found.status == "passed", found


def test_a_condition_that_decides_is_still_named() -> None:
    """Between two runs that both have padding at the end nothing differs, so the condition does it."""
    found = judged(FirstRowDecides("row", last=False), "right")
    assert found.status == "violated"
    assert "a condition reads one number" in found.cause
