"""What an optimizer function adds to a model, and what a promise leaves without a gradient, is no finding."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from tests.unit.checks.bugs import Net, classify
from tests.unit.checks.bugs_of_loops import finished, teacher_that_is_trained


def test_model_finished_by_the_optimizer_function_trains_and_resumes() -> None:
    torch.manual_seed(0)
    contract = classify(Net, optimizer=lambda model: finished(model, buggy=False))
    report = contract.check(["weights-update", "optimizer-coverage", "resume"])
    assert not [f for f in report.findings if f.status == "violated"], str(report)


def test_frozen_parameter_needs_no_gradient() -> None:
    torch.manual_seed(0)
    report = teacher_that_is_trained(False).check(["gradients-exist"])
    assert [f.status for f in report.findings] == ["passed"], str(report)


class Shifted(nn.Module):
    """A shift of every score, which cross entropy ignores: its gradient is rounding, too small to move it."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 40)
        self.shift_of_scores = nn.Parameter(torch.full((1,), 300.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) * 3 + self.shift_of_scores


def test_rounding_that_moves_nothing_is_no_standstill() -> None:
    torch.manual_seed(0)
    contract = Contract(
        model=Shifted(), batch=((torch.randn(64, 8),), torch.arange(64) % 40), loss=F.cross_entropy,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.01),
    )  # fmt: skip
    report = contract.check("weights-update")
    assert report.ok, str(report)
