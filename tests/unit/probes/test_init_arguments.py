"""What the caller of ``__init__`` gives belongs to the caller."""

from __future__ import annotations

import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.probes.holding.held_by_models import given_to_init

G = torch.Generator().manual_seed(0)
X = torch.randn(6, 3, generator=G)


class Neighbours(nn.Module):
    """A kernel regression on stored examples."""

    def __init__(self, examples, labels=None, width=1.0):
        super().__init__()
        self.examples, self.labels = examples, labels.clone().float()
        self.width = nn.Parameter(torch.tensor(width))
        self.count = len(examples)

    def forward(self, x):
        weights = torch.softmax(-torch.cdist(x, self.examples) * self.width, -1)
        return weights @ self.labels


class Drawn(Neighbours):
    """Draws them itself: they are lost with the instance."""

    def __init__(self):
        super().__init__(torch.zeros(9, 3), torch.zeros(9))
        drawn = torch.randn(9, 4)
        self.table = drawn

    def forward(self, x):
        weights = torch.softmax(-torch.cdist(x, self.table[:, :3]) * self.width, -1)
        return weights @ self.table[:, 3]


def fresh():
    return Neighbours(torch.randn(9, 3), torch.randn(9))


def test_arguments_are_told_from_what_init_makes():
    model = nn.Sequential(nn.Identity(), fresh())
    assert given_to_init(model, "1.examples")
    assert given_to_init(model, "1.labels")
    assert not given_to_init(model, "1.count")
    assert not given_to_init(model, "1.width")
    assert not given_to_init(model, "1.unknown")


def test_training_data_are_no_lost_state():
    checks = ["state-dict-roundtrip", "device-portability", "unregistered-tensors"]
    report = Contract(model=fresh, batch=((X,), None)).check(checks)
    assert report.ok, str(report)
    assert {"state-lost", "cpu-tensor"} <= {f.code for f in report.with_status("suspicious")}
    report = Contract(model=Drawn, batch=((X,), None)).check(checks)
    assert {"state-lost", "cpu-tensor"} <= {f.code for f in report.with_status("violated")}
