"""A gradient that is zero by structure is found behind a cast to float32, which leaves rounding noise of it in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.runs.widened import Widened

T = 8


class Attention(nn.Module):
    """Attention with a bias for each distance to an earlier key, and its softmax in float32."""

    def __init__(self, *, narrow="float", distances=True, scale=1.0):
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(12, 8), nn.Linear(8, 24), nn.Linear(8, 12)
        self.bias = nn.Embedding(T, 2)
        self.narrow, self.distances, self.scale = narrow, distances, scale

    def softmax(self, scores):
        if self.narrow == "float":
            return scores.float().softmax(-1).type_as(scores)
        if self.narrow == "dtype":
            return F.softmax(scores, dim=-1, dtype=torch.float32).to(scores.dtype)
        return scores.softmax(-1)

    def forward(self, ids):
        h = self.embed(ids)
        q, k, v = self.qkv(h).unflatten(-1, (2, 12)).transpose(1, 2).chunk(3, -1)
        place = torch.arange(ids.shape[1])
        apart = (place[:, None] - place[None]).clamp(min=0)
        if not self.distances:  # the sign is turned: every key that is read is at distance 0
            apart = (place[None] - place[:, None]).clamp(min=0)
        scores = q @ k.transpose(2, 3) / 2 + self.scale * self.bias(apart).permute(2, 0, 1)
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(future, torch.finfo(scores.dtype).min)
        read = (self.softmax(scores) @ v).transpose(1, 2).flatten(2)
        return self.out(h + read)


def failing(**options):
    torch.manual_seed(0)
    ids = torch.randint(0, 12, (4, T))
    report = Contract(
        model=lambda: Attention(**options),
        batch=((ids,), ids.roll(1, 1)),
        loss=lambda out, y: F.cross_entropy(out.flatten(0, 1), y.flatten()),
    ).check("gradients-exist")
    return {f.code: f.summary for f in report.failing}


@pytest.mark.parametrize("narrow", ["float", "dtype", ""])
def test_a_table_without_influence_is_found_behind_a_cast(narrow):
    assert "bias.weight" in failing(narrow=narrow, distances=False)["grad-zero"]


@pytest.mark.parametrize("options", [{"narrow": "float"}, {"narrow": "dtype"}, {"scale": 1e-6}])
def test_a_table_that_counts_passes(options):
    assert not failing(**options)


def test_what_stays_in_float64():
    x = torch.ones(3, dtype=torch.float64)
    with Widened():
        assert x.float().dtype == torch.float64
        assert x.to(torch.bfloat16).dtype == torch.float64
        assert x.sum(dtype=torch.float32).dtype == torch.float64
        assert x.long().dtype == torch.int64
        assert x.new_zeros(2, dtype=torch.float32).dtype == torch.float32
        assert torch.ones(2).half().dtype == torch.float16
