"""A softmax over what is not averaged is found; transposed weights, slots, mixtures and linear attention are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding

X = torch.randn(4, 6, 5, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0])


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(5, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mixed(self.query(x), self.key(x), self.value(x)).mean(1))

    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (q @ k.mT).softmax(-1) @ v


class OverQueries(Attends):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = F.softmax(q @ k.mT / 8**0.5, dim=1)  # HERE
        return torch.bmm(F.dropout(weights, 0.1, self.training), v)


class NotTransposed(Attends):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = torch.softmax(q @ k.mT, -1)  # HERE
        return (v.mT @ weights).mT


class HeadsLast(Attends):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 4)) for t in (q, k, v))
        weights = torch.einsum("bqhd,bkhd->bqkh", q, k).softmax(self.axis())  # HERE
        return torch.einsum("bqkh,bkhd->bqhd", weights, v).flatten(2)

    def axis(self) -> int:
        return 1


class HeadsLastOverKeys(HeadsLast):
    def axis(self) -> int:
        return 2


class Transposed(Attends):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (v.mT @ torch.softmax(q @ k.mT, -1).mT).mT


class KeysFirst(Attends):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (v.mT @ (k @ q.mT).softmax(1)).mT


class Slots(Attends):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        weights = (q @ k.mT).softmax(1) + 1e-6
        return (weights / weights.sum(-1, keepdim=True)) @ v


class Linear(Attends):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return q.softmax(-1) @ (k.softmax(1).mT @ v)


class Mixture(Attends):
    def mixed(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        scores = torch.stack([q @ k.mT, k @ q.mT], 1)
        return (scores.softmax(1) @ v[:, None]).sum(1)


def told(model: type[nn.Module]) -> list[Finding]:
    torch.manual_seed(0)
    contract = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy)
    findings = contract.check(checks=["weighted-means"]).findings
    return [f for f in findings if f.status in ("violated", "suspicious", "error")]


@pytest.mark.parametrize("model", [OverQueries, NotTransposed, HeadsLast])
def test_the_softmax_over_the_wrong_dimension_is_named(model: type[nn.Module]) -> None:
    (finding,) = told(model)
    assert (finding.status, finding.code) == ("violated", "softmax-axis")
    assert finding.location is not None
    assert finding.location.text.endswith("# HERE")


@pytest.mark.parametrize(
    "model", [Attends, HeadsLastOverKeys, Transposed, KeysFirst, Slots, Linear, Mixture]
)
def test_sound_averages_are_silent(model: type[nn.Module]) -> None:
    assert told(model) == []
