"""Two samples answer what they can; what they leave open is asked of the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels

Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Gated(nn.Module):
    """Adds a second input only where the first one says so."""

    def __init__(self, gated):
        super().__init__()
        self.gated = gated
        self.head = nn.Linear(4, 3)

    def forward(self, flags, extra):
        runs.append(len(flags))
        gate = flags.clamp_min(0) if self.gated else flags
        return self.head(flags + gate * extra)


runs: list[int] = []


@pytest.mark.parametrize(("gated", "sizes"), [(False, {2}), (True, {2, 6})])
def test_an_input_that_only_later_samples_read_has_an_influence(gated, sizes):
    torch.manual_seed(0)
    flags = torch.rand(6, 4)
    flags[:2] = -flags[:2]
    contract = Contract(
        model=Gated(gated), batch=((flags, torch.randn(6, 4)), Y), loss=F.cross_entropy
    )
    runs.clear()
    (found,) = [f for f in contract.check("input-influence").findings if f.check]
    assert found.status == "passed"
    assert set(runs) == sizes


class Folded(nn.Module):
    """Two linear layers with a rectifier that only samples of a kind reach."""

    def __init__(self, folds):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 3)
        self.folds = folds

    def forward(self, x):
        y = self.first(x)
        return self.second(y + F.relu(y[:, :1] - 40.0) if self.folds else y)


@pytest.mark.parametrize("folds", [True, False])
def test_a_model_that_bends_for_later_samples_only_is_not_affine(folds):
    torch.manual_seed(0)
    model = Folded(folds)
    with torch.no_grad():
        model.first.weight[0] = torch.tensor([1.0, 0.0, 0.0, 0.0])
    x = torch.randn(6, 4)
    x[2:, 0] += torch.tensor([80.0, -80.0, 80.0, -80.0])
    contract = Contract(model=model, batch=((x,), Y), loss=F.cross_entropy)
    (found,) = [f for f in contract.check("nonlinearity").findings if f.check]
    assert (found.status == "passed") == folds


class Adapted(nn.Module):
    """Normalises by its batch at all times, as models that adapt to a task do."""

    def __init__(self, over: int):
        super().__init__()
        self.over = over
        self.up, self.norm = nn.Conv1d(6, 8, 1), nn.BatchNorm1d(8, track_running_stats=False)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        h = self.norm(self.up(x))
        return self.out((h * h.softmax(self.over)).mean(2))


@pytest.mark.parametrize(("over", "status"), [(1, "suspicious"), (0, "violated")])
def test_statistics_of_the_batch_may_be_meant(over, status):
    contract = Contract(
        model=lambda: Adapted(over), inputs="B 6 5", targets=Labels("B", classes=3), sizes={"B": (2, 7)},
        loss=F.cross_entropy,
    )  # fmt: skip
    found = [
        f for f in contract.check(["batch-independence", "batch-sizes"]).findings
        if f.status in ("violated", "suspicious")
    ]  # fmt: skip
    assert {f.check for f in found} == {"batch-independence", "batch-sizes"}
    assert {f.status for f in found} == {status}
