"""An output that is fitted to several different targets at once, and sides that may be stretched."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(8, 5, generator=torch.Generator().manual_seed(0))
Y = torch.randn(8, 3, generator=torch.Generator().manual_seed(1))


def told(width, targets, loss=F.mse_loss):
    contract = Contract(model=lambda: nn.Linear(5, width), batch=((X,), targets), loss=loss)
    return [f for f in contract.check(["loss-shapes"]).findings if f.status != "passed"]


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss])
def test_one_output_for_several_targets(loss):
    (finding,) = told(1, Y, loss)
    assert (finding.status, finding.code) == ("violated", "loss-stretched")
    assert "3 targets at once" in finding.cause


@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize(
    ("width", "targets"), [(3, Y[:, :1]), (1, Y[:, :1].expand(8, 3).contiguous())]
)
def test_several_outputs_for_one_target_and_equal_targets(width, targets):
    (finding,) = told(width, targets)
    assert (finding.status, finding.code) == ("suspicious", "loss-stretched")


def test_equal_shapes():
    assert told(3, Y) == []
