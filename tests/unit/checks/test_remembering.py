"""What a call keeps decides no later call: caches with stale contents, and caches that are sound."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Ints

X = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(1))
Y = torch.tensor([0, 1, 2, 0])


class Weighted(nn.Module):
    """Pools its frames by weights that it keeps for each shape."""

    def __init__(self, how):
        super().__init__()
        self.score, self.head = nn.Linear(6, 1), nn.Linear(6, 3)
        self.how, self.kept, self.last = how, {}, None

    def weights(self, x):
        return torch.softmax(self.score(x), dim=1)

    def forward(self, x):
        if self.how == "by shape":
            if x.shape not in self.kept:
                self.kept[x.shape] = self.weights(x)
            w = self.kept[x.shape]
        elif self.how == "once":
            if self.last is None or self.last.shape[:2] != x.shape[:2]:
                self.last = self.weights(x)
            w = self.last
        elif self.how == "positions":
            if x.shape not in self.kept:
                self.kept[x.shape] = torch.softmax(torch.arange(x.shape[1]).cos(), 0)[:, None]
            w = self.kept[x.shape]
        elif self.how == "by content":
            key = x.detach().numpy().tobytes()
            if key not in self.kept:
                self.kept[key] = self.weights(x)
            w = self.kept[key]
        else:  # shown to whoever asks, and made anew in each call
            w = self.last = self.weights(x)
        return self.head((x * w).sum(1))


def told(make):
    made = Contract(model=make, batch=((X,), Y), loss=F.cross_entropy)
    return [f for f in made.check(checks=["eval-purity"]).findings if f.status != "passed"]


@pytest.mark.parametrize(
    ("how", "name", "line"),
    [("by shape", "kept", "self.kept[x.shape] ="), ("once", "last", "self.last = self.weights(x)")],
)
def test_a_cache_that_outlives_its_data(how, name, line):
    (finding,) = told(lambda: Weighted(how))
    assert (finding.status, finding.code) == ("violated", "eval-remembers")
    assert finding.culprits[0].name == name
    assert line in finding.location.text
    assert f"with {name} restored" in finding.because


@pytest.mark.parametrize("how", ["positions", "by content", "shown"])
def test_caches_that_hold_what_they_say(how):
    assert not told(lambda: Weighted(how))


class Longest(nn.Module):
    """A table as long as the longest input so far, which is cut to the input's length."""

    def __init__(self):
        super().__init__()
        self.table, self.embed = nn.Embedding(9, 6), torch.zeros(0)
        self.head = nn.Linear(6, 3)

    def forward(self, ids):
        if len(self.embed) < ids.shape[1]:
            self.embed = torch.arange(ids.shape[1]).float().sin()
        return self.head((self.table(ids) * self.embed[: ids.shape[1], None]).mean(1))


def test_a_table_that_only_grows():
    made = Contract(
        model=Longest, inputs=Ints("B T", low=0, high=9), batch=(torch.randint(0, 9, (4, 5)), Y),
        loss=F.cross_entropy,
    )  # fmt: skip
    assert [f.status for f in made.check(checks=["eval-purity"]).findings] == ["passed"]
