"""What is told of gradients does not depend on an optimizer that can be built, and steps are looked at first."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Unread(nn.Module):
    def __init__(self):
        super().__init__()
        self.used = nn.Linear(4, 3)
        self.spare = nn.Linear(4, 3)

    def forward(self, x):
        return self.used(x)


class Gated(nn.Module):
    """Its gate begins at zero, so that what stands behind it has no gradient before the first step."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 3)
        self.outer = nn.Linear(4, 3)
        self.gate = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.outer(x) + self.gate * self.inner(x)


def refusing(model):
    raise ValueError("no such rate")


def gradients(model, **more):
    torch.manual_seed(0)
    batch = ((torch.randn(6, 4),), torch.tensor([0, 1, 2, 0, 1, 2]))
    made = Contract(model=model, batch=batch, loss=F.cross_entropy, **more)
    (found,) = made.check(["gradients-exist"]).findings
    return found


@pytest.mark.parametrize("more", [{}, {"optimizer": refusing}], ids=["default", "refusing"])
def test_a_missing_gradient_is_told(more):
    found = gradients(Unread, **more)
    assert (found.status, found.code) == ("violated", "grad-none")
    assert {culprit.name for culprit in found.culprits} >= {"spare.weight", "spare.bias"}


@pytest.mark.parametrize("more", [{}, {"optimizer": refusing}], ids=["default", "refusing"])
def test_a_gate_of_zeros_hides_nothing(more):
    assert gradients(Gated, **more).status == "passed"
