"""In how many directions parameters move outputs is measured where a batch is not memorised."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.runs.overfitting.one_batch import Budget
from pytest_torchcheck.runs.overfitting.tangent import tangent
from pytest_torchcheck.subject import Subject


class Shifted(nn.Module):
    """A fixed layer and a trained shift of it, which sees the first features of each sample, or of none."""

    def __init__(self, sees: int, width: int = 32) -> None:
        super().__init__()
        self.sees = sees
        self.fixed = nn.Linear(6, 1).requires_grad_(False)
        self.net = nn.Sequential(
            nn.Linear(6, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
        )

    def forward(self, x):
        seen = torch.cat([x[:, : self.sees], torch.ones_like(x[:, self.sees :])], dim=1)
        return self.fixed(x) + self.net(seen)


def contract(model, samples=8):
    torch.manual_seed(0)
    return Contract(
        model=model, batch=((torch.randn(samples, 6),), torch.randn(samples, 1)), loss=F.mse_loss
    )


def space(model, steps=40.0, samples=8):
    subject = Subject(contract(model, samples))
    return tangent(subject, subject.batch(), Budget(steps))


@pytest.mark.parametrize(
    ("model", "rank"),
    [
        (lambda: Shifted(0), 1),
        (lambda: Shifted(0, width=200), 1),  # more parameters than gradients are long
        (lambda: Shifted(6), 8),
        (lambda: Shifted(6, width=200), 8),
        (lambda: nn.Linear(6, 1), 7),  # six weights and a bias
        (lambda: nn.Sequential(nn.Linear(6, 2), nn.Linear(2, 1)), 7),
    ],
    ids=["blind", "blind and wide", "seeing", "seeing and wide", "linear", "two linear"],
)
def test_the_rank_is_that_of_the_outputs(model, rank):
    torch.manual_seed(1)
    found = space(model())
    assert (found.outputs, found.rank) == (8, rank)
    assert (found.share > 0.999) == (rank == 8)


def test_the_budget_decides_how_many_outputs_are_looked_at():
    assert space(Shifted(6), steps=10.0).outputs == 5
    assert space(Shifted(6), steps=6.0) is None


def test_two_samples_say_too_little():
    assert space(Shifted(6), samples=2) is None


def test_a_shift_that_sees_no_sample_is_not_learnt_and_the_reason_is_measured():
    torch.manual_seed(1)
    (found,) = contract(Shifted(0)).check(["overfit"]).findings
    assert found.status == "inconclusive"
    assert "all parameters together move them in 1 of 8 directions" in found.summary
    assert found.evidence["tangent space"]["rank"] == 1
    assert found.evidence["steps spent"] <= 40


def test_a_shift_that_sees_its_sample_is_learnt():
    torch.manual_seed(1)
    (found,) = contract(Shifted(6)).check(["overfit"]).findings
    assert found.status == "passed"
    assert "tangent space" not in found.evidence
