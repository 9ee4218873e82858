"""Parts of a loss that read no sample, under accumulation: counted per batch, per step, or per training set."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding, promises

SAMPLES = 12


class Weighed(nn.Module):
    """Gives its penalty beside its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(5, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        penalty = sum(0.5 * (p * p).sum() - 0.1 * p.sum() for p in self.parameters())
        return self.leave(torch.tanh(self.enter(x))), penalty


def by_batch(output: Any, targets: Any) -> Any:
    values, penalty = output
    penalty = penalty / len(targets)  # HERE
    return F.mse_loss(values, targets) + penalty


def summed(output: Any, targets: Any) -> Any:
    values, penalty = output
    scaled = 0.5 * penalty  # HERE
    return (F.mse_loss(values, targets, reduction="sum") + scaled) / len(targets)


def by_data(output: Any, targets: Any) -> Any:
    values, penalty = output
    return F.mse_loss(values, targets) + penalty / SAMPLES


def plain(output: Any, targets: Any) -> Any:
    values, penalty = output
    return F.mse_loss(values, targets) + 0.01 * penalty


def alone(output: Any, targets: Any) -> Any:
    return F.mse_loss(output[0], targets)


def coupled(output: Any, targets: Any) -> Any:
    """Relates samples to each other, which no sum over micro-batches does."""
    values, penalty = output
    return (values @ values.T).logsumexp(1).mean() + 0.01 * penalty


def accumulated(loss: Any, micro_step: Any = None) -> Finding:
    def divided(model: Any, inputs: Any, targets: Any, n: int) -> Any:
        value = loss(model(*inputs), targets) / n
        value.backward()
        return value.detach()

    contract = Contract(
        model=Weighed,
        batch=((torch.randn(SAMPLES, 5),), torch.randn(SAMPLES, 2)),
        inputs="B 5",
        loss=loss,
        promises=[promises.Accumulates(3, micro_step=micro_step or divided)],
    )
    return contract.check(["accumulation"]).findings[0]


@pytest.mark.parametrize("loss", [by_batch, summed])
def test_a_part_that_is_divided_by_the_size_of_each_batch(loss: Any) -> None:
    found = accumulated(loss)
    assert (found.status, found.code) == ("violated", "accumulation-scale")
    assert found.location.text.endswith("# HERE")
    assert "reads no sample, and is divided by the number of samples of each batch" in found.cause
    assert "3 times the length on 4 of the 12 samples" in found.because
    assert "holds it 3 times" in found.because
    assert found.culprits[0].name in ("penalty", "scaled")


def test_a_part_that_each_micro_batch_adds_whole() -> None:
    def micro_step(model: Any, inputs: Any, targets: Any, n: int) -> Any:
        values, penalty = model(*inputs)
        loss = F.mse_loss(values, targets) / n + 0.01 * penalty
        loss.backward()
        return loss.detach()

    found = accumulated(plain, micro_step)
    assert (found.status, found.code) == ("violated", "accumulation-scale")
    assert "micro-batches count it otherwise" in found.cause
    assert "holds it 3 times" in found.because
    assert "once per optimizer step" in found.fix


@pytest.mark.parametrize("loss", [by_data, plain, alone])
def test_parts_that_are_scaled_as_they_must_be(loss: Any) -> None:
    assert accumulated(loss).status == "passed"


def test_samples_that_are_related_to_each_other_are_no_constant_part() -> None:
    found = accumulated(coupled)
    assert found.status == "violated"
    assert "reads no sample" not in found.cause


def test_a_loss_that_is_not_divided_keeps_its_reason() -> None:
    def micro_step(model: Any, inputs: Any, targets: Any) -> Any:
        value = plain(model(*inputs), targets)
        value.backward()
        return value.detach()

    found = accumulated(plain, micro_step)
    assert found.cause == "the micro-batches' losses are added without being divided by 3"
