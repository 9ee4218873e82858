"""Operations whose derivative is zero: seen in a run, and named where a loss stops falling behind one."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.probes.gradient.surrogates import Stepwise


class Counts(nn.Module):
    """Gives whole numbers, by a rounding or by a softer way."""

    def __init__(self, *, rounds: bool) -> None:
        super().__init__()
        self.rounds, self.lin = rounds, nn.Linear(24, 2)

    def forward(self, x):
        count = self.lin(x)
        return count.round() if self.rounds else count


def _finding(*, rounds: bool):
    torch.manual_seed(0)
    model = Counts(rounds=rounds)

    def loss(output, target):
        return F.mse_loss(output, target) + 1e-3 * model.lin.weight.square().sum()

    contract = Contract(
        model=model, batch=((torch.randn(8, 24),), 3 + 2 * torch.randn(8, 2)), loss=loss
    )
    return contract.check(["overfit"]).findings[0]


def test_a_rounding_is_named_where_nothing_is_learnt():
    found = _finding(rounds=True)
    assert (found.status, found.code) == ("violated", "overfit-stuck")
    assert found.culprits[0].name == "Tensor.round"
    assert "count.round()" in found.location.text
    assert "passes no gradient to" in found.cause


def test_without_one_none_is_named():
    found = _finding(rounds=False)
    assert all(one.name != "Tensor.round" for one in found.culprits)


def _grid(mode: str, *, trains: bool) -> list[str]:
    image, grid = torch.rand(1, 1, 4, 4), torch.zeros(1, 4, 4, 2, requires_grad=trains)
    with Stepwise() as watch:
        F.grid_sample(image, grid, mode=mode, align_corners=False)
    return [op.name for op, _ in watch.found.values()]


@pytest.mark.parametrize(
    ("mode", "trains", "seen"),
    [("nearest", True, ["F.grid_sample"]), ("nearest", False, []), ("bilinear", True, [])],
)
def test_a_grid_gets_a_gradient_but_by_nearest(mode, trains, seen):
    assert _grid(mode, trains=trains) == seen
