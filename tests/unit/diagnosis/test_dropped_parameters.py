"""Parameters that a list held while the optimizer was made, and that another list then replaced."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


def model():
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2))


def replaced(model):
    groups = {}
    for _, parameter in model.named_parameters():
        groups["decay" if parameter.ndim > 1 else "plain"] = [parameter]  # HERE
    return torch.optim.SGD([{"params": group} for group in groups.values()], lr=0.1)


def always_new(model):
    groups = {}
    for name, parameter in model.named_parameters():
        key = name.split(".")[0]
        new = bool(key)  # HERE
        if new:
            groups[key] = {"params": []}
        groups[key]["params"].append(parameter)
    return torch.optim.SGD(list(groups.values()), lr=0.1)


def other_key(model):
    groups = {}
    for name, parameter in model.named_parameters():
        if name not in groups:  # HERE
            groups[name.split(".")[0]] = {"params": []}
        groups[name.split(".")[0]]["params"].append(parameter)
    return torch.optim.SGD(list(groups.values()), lr=0.1)


@pytest.mark.parametrize("optimizer", [replaced, always_new, other_key])
def test_the_line_that_drops_them(optimizer):
    contract = Contract(
        model=model,
        inputs="B 3",
        batch=(torch.randn(4, 3), torch.randn(4, 2)),
        loss=F.mse_loss,
        optimizer=optimizer,
    )
    (finding,) = contract.check(["optimizer-coverage"]).findings
    assert finding.code == "optimizer-missing"
    assert finding.location.text.endswith("# HERE")
