"""Two samples answer what they can; what they leave open is asked of the whole batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

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
