"""Losses that a training step computes itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

SIZE = 6


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 12)
        self.kind, self.value = nn.Linear(12, 4), nn.Linear(12, 1)

    def forward(self, x):
        h = torch.tanh(self.body(x))
        return self.kind(h), self.value(h)


def check(kind_loss, value_loss):
    def step(model, optimizer, inputs, targets):
        labels, returns = targets
        kind, value = model(*inputs)
        loss = kind_loss(kind, labels) + value_loss(value, returns)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(SIZE, 5, generator=generator)
    labels = torch.randint(0, 4, (SIZE,), generator=generator)
    returns = torch.randn(SIZE, generator=generator)
    return (
        Contract(
            model=TwoHeads,
            batch=((x,), (labels, returns)),
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
            train_step=step,
        )
        .check(checks=["step-losses"])
        .findings
    )


def right(value, returns):
    return F.mse_loss(value.squeeze(1), returns)


def all_pairs(value, returns):
    return F.mse_loss(value, returns)


def of_probabilities(kind, labels):
    return F.cross_entropy(kind.softmax(-1), labels)


def test_a_sound_step_passes() -> None:
    (found,) = check(F.cross_entropy, right)
    assert found.status == "passed"


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_value_of_b_by_one_against_b_is_found_in_the_step() -> None:
    (found,) = check(F.cross_entropy, all_pairs)
    assert (found.status, found.code) == ("violated", "loss-broadcast")
    assert found.location is not None
    assert found.location.text == "return F.mse_loss(value, returns)"


def test_a_softmax_before_cross_entropy_is_found_in_the_step() -> None:
    (found,) = check(of_probabilities, right)
    assert (found.status, found.code) == ("violated", "double-softmax")


@pytest.mark.filterwarnings("ignore:Using a target size")
def test_two_mistakes_are_two_findings() -> None:
    found = check(of_probabilities, all_pairs)
    assert {f.code for f in found} == {"loss-broadcast", "double-softmax"}


def test_a_step_without_torchs_losses_does_not_concern_it() -> None:
    (found,) = check(
        lambda kind, labels: (kind.logsumexp(-1) - kind[range(SIZE), labels]).mean(),
        lambda value, returns: (value[:, 0] - returns).square().mean(),
    )
    assert found.status == "not-applicable"
