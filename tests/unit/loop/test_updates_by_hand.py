"""Parameters that the user's step updates without a torch optimizer."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 5, generator=G), torch.randint(0, 3, (8,), generator=G)


def classifier():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


def by_data(model, optimizer, inputs, targets):
    model.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    for parameter in model.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
    return loss


def by_foreach(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(*inputs), targets)
    held = list(model.parameters())
    with torch.no_grad():
        torch._foreach_add_(held, torch.autograd.grad(loss, held), alpha=-0.1)
    return loss


def never(model, optimizer, inputs, targets):
    model.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    return loss


@pytest.mark.parametrize(
    ("step", "codes"),
    [(by_data, []), (by_foreach, []), (never, ["step-missing"])],
    ids=["data", "foreach", "never"],
)
def test_what_counts_is_that_the_parameters_move(step, codes):
    contract = Contract(model=classifier, batch=((X,), Y), loss=F.cross_entropy, train_step=step)
    report = contract.check(["step-protocol", "weights-update"])
    assert [f.code for f in report.causes] == codes, str(report)
    if not codes:
        assert {f.status for f in report.findings} == {"passed"}
        assert "4 of 4 parameters" in str(report.findings[0].summary)
