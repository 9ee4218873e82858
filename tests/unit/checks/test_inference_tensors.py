"""What was created under inference mode cannot be written to: neither by a load nor by a step."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Scaled(nn.Module):
    """Makes a buffer, or all of its weights, where nothing may write to them."""

    def __init__(self, mode, weights=False):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        with mode():
            self.register_buffer("scale", torch.full((3,), 2.0))
            if weights:
                self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x) * self.scale.clone()


BATCH = (torch.randn(6, 4),), torch.arange(6) % 3


def check(*args, checks=None):
    contract = Contract(model=lambda: Scaled(*args), batch=BATCH, loss=F.cross_entropy)
    return contract.check(checks)


def test_a_buffer_that_no_load_can_fill():
    (found,) = check(torch.inference_mode, checks=["state-dict-roundtrip"]).findings
    assert (found.status, found.code) == ("violated", "state-strict")
    assert "scale cannot be written to" in found.summary
    assert "inference_mode" in found.cause
    assert check(torch.no_grad).ok


def test_weights_that_no_step_can_update():
    report = check(torch.inference_mode, True)
    assert not report.ok
    assert not list(report.with_status("error"))
    assert any("created under torch.inference_mode" in f.summary for f in report.findings)
