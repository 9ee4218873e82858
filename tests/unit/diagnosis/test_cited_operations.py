"""The operation that does the damage is cited, not one that only carries it on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, promises


@pytest.fixture(autouse=True)
def _fixed_seed():
    torch.manual_seed(0)


class Slopes(nn.Module):
    """Appends to each observation the slope up to it, or from it on, at times that are a vector."""

    def __init__(self, ahead):
        super().__init__()
        self.ahead, self.head = ahead, nn.Linear(6, 3)

    def forward(self, x):
        times = torch.arange(x.shape[1], dtype=x.dtype, device=x.device)
        slopes = (x[:, 1:] - x[:, :-1]) / (times[1:] - times[:-1]).unsqueeze(-1)
        if self.ahead:
            slopes = torch.cat((slopes, slopes[:, -1:]), dim=1)  # AHEAD
        else:
            slopes = torch.cat((slopes[:, :1] * 0, slopes), dim=1)
        return self.head(torch.cat((x, slopes), dim=-1))


def test_a_slope_of_later_observations_is_cited_beside_a_vector_of_times():
    contract = Contract(
        model=lambda: Slopes(ahead=True),
        inputs="B T 3",
        sizes={"B": 3, "T": 8},
        promises=(promises.Causal(),),
    )
    (found,) = contract.check(["causality"]).findings
    assert (found.status, found.code) == ("violated", "future-leak")
    assert found.location is not None, str(found)
    assert found.location.text.endswith("# AHEAD"), str(found)


def test_a_slope_of_earlier_observations_is_causal():
    contract = Contract(
        model=lambda: Slopes(ahead=False),
        inputs="B T 3",
        sizes={"B": 3, "T": 8},
        promises=(promises.Causal(),),
    )
    assert {f.status for f in contract.check(["causality"]).findings} == {"passed"}
