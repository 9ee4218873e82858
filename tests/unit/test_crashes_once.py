"""An exception of one call that the same call does not raise again is told, whichever check met it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

BATCH = (torch.randn(6, 5, generator=torch.Generator().manual_seed(0)),), torch.arange(6) % 3
CALLS = [0]


class Counting(nn.Module):
    """Refuses one call of all that the process makes."""

    def __init__(self, refused: int) -> None:
        super().__init__()
        self.refused = refused
        self.net = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS[0] += 1
        if CALLS[0] == self.refused:
            raise ValueError("not ready")  # HERE
        return self.net(x)


class Narrow(nn.Module):
    """Refuses double precision, each time."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float64:
            raise ValueError("single precision only")
        return self.net(x)


class Unlucky(nn.Module):
    """Refuses what it draws now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS[0] += 1
        if (torch.rand(()) < 2) and CALLS[0] == 12:
            raise ValueError("no such matrix")
        return self.net(x)


def crashes(model) -> list:
    CALLS[0] = 0
    report = Contract(model=model, batch=BATCH, loss=F.cross_entropy).check()
    assert report.ok is not any(f.status == "violated" for f in report.findings)
    return [f for f in report.findings if f.code == "crash"]


@pytest.mark.parametrize("refused", [3, 8, 12, 17, 22, 27])
def test_an_error_of_one_call_is_told(refused):
    found = crashes(lambda: Counting(refused))
    assert CALLS[0] >= refused
    (finding,) = found
    assert finding.location.text.endswith("# HERE")
    assert "not ready" in finding.summary


@pytest.mark.parametrize("model", [Narrow, lambda: Counting(10**6)])
def test_what_is_refused_each_time_is_no_such_error(model):
    assert not crashes(model)


def test_what_is_refused_by_chance_is_suspicious():
    found = crashes(Unlucky)
    assert {f.status for f in found} <= {"suspicious"}
    assert found


class OfItsData(nn.Module):
    """Is trained on its training data alone, as Gaussian processes are."""

    def __init__(self, *, all_of_it: bool) -> None:
        super().__init__()
        self.all_of_it = all_of_it
        self.net, self.rare = nn.Linear(5, 3), nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.all_of_it and self.training and not torch.equal(x, BATCH[0][0]):
            raise RuntimeError("train on the training inputs")
        return self.net(x) + self.rare * (x > 100).any()


def test_a_model_that_refuses_its_samples_in_another_order_is_not_blamed():
    report = Contract(
        model=lambda: OfItsData(all_of_it=True), batch=BATCH, loss=F.cross_entropy
    ).check(["backward", "gradients-exist", "weights-update"])
    assert [f.status for f in report.findings if f.check == "backward"] == ["passed"]
    assert {f.status for f in report.findings} == {"passed", "inconclusive"}
    assert any("in another order" in f.summary for f in report.findings)
