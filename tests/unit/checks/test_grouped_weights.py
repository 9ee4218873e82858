"""Attention over the edges of a graph is normalised at the end at which it is summed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

NODES = 9


def shares(scores: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    powers = scores.exp()
    total = torch.zeros(NODES, *scores.shape[1:]).index_add(0, index, powers)
    return powers / (total[index] + 1e-12)


class Attending(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.body, self.score, self.head = nn.Linear(5, 8), nn.Linear(16, 1), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target = edges
        h = self.body(x)
        scores = F.leaky_relu(self.score(torch.cat([h[source], h[target]], 1)))
        if self.how == "source":
            weights = shares(scores, source)  # BUG
        elif self.how == "flat":
            weights = shares(scores.squeeze(1), source).unsqueeze(1)  # BUG
        elif self.how == "mean":
            weights = (
                torch.ones_like(scores) / torch.bincount(target, minlength=NODES)[target][:, None]
            )
        else:
            weights = shares(scores, edges[1])
        if self.how == "dropped":
            weights = F.dropout(weights, 0.1, self.training)
        sent = weights * h[source]
        return self.head(torch.zeros_like(h).index_add_(0, target, sent).relu())


def check(how: str) -> Any:
    torch.manual_seed(0)
    edges = torch.cat([torch.arange(NODES).expand(2, -1), torch.randint(0, NODES, (2, 24))], 1)
    batch = ((torch.randn(NODES, 5), edges), torch.randint(0, 3, (NODES,)))
    return Contract(
        model=lambda: Attending(how), batch=batch, loss=F.cross_entropy, batch_dim=None
    ).check(["weighted-means"])


@pytest.mark.parametrize("how", ["source", "flat"])
def test_weights_of_the_other_end_are_told_where_they_are_made(how: str) -> None:
    [found] = check(how).findings
    assert (found.status, found.code) == ("suspicious", "softmax-axis")
    assert "# BUG" in found.location.text


@pytest.mark.parametrize("how", ["target", "dropped", "mean"])
def test_weights_of_the_end_that_is_summed_are_right(how: str) -> None:
    assert not [f for f in check(how).findings if f.status in ("violated", "suspicious")]
