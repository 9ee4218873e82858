"""A training step runs on a batch with a sample less; what equal sizes hide is told, and steps that keep a batch are sound."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding

WAVES = torch.randn(6, 2, 6, generator=torch.Generator().manual_seed(0))
LEVELS = torch.rand(6, generator=torch.Generator().manual_seed(1))


def judged(step: Any, batch: Any) -> Finding:
    contract = Contract(
        model=lambda: nn.Conv1d(2, 2, 3, padding=1),
        batch=batch,
        train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.01),
    )
    (found,) = contract.check(["batch-sizes"]).findings
    return found


def noising(*, wrong: bool) -> Any:
    def step(model: nn.Module, optimizer: Any, inputs: Any, levels: Tensor) -> Tensor:
        (waves,) = inputs
        level = levels if wrong else levels[:, None, None]
        loss = F.mse_loss(model(waves + level * torch.randn_like(waves)), waves)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def test_a_weight_for_each_sample_that_meets_another_axis_of_that_size() -> None:
    found = judged(noising(wrong=True), ((WAVES,), LEVELS))
    assert (found.status, found.code) == ("violated", "broadcast-shapes")
    assert "runs on 6 samples and not on 5" in found.summary
    assert found.location is not None
    assert "level * torch.randn_like" in found.location.text


def test_a_weight_that_is_spread_over_its_sample() -> None:
    assert judged(noising(wrong=False), ((WAVES,), LEVELS)).status == "passed"


def test_pairs_whose_labels_are_as_many_as_the_first_batch_had() -> None:
    labels = torch.arange(6)

    def step(model: nn.Module, optimizer: Any, inputs: Any, targets: Tensor) -> Tensor:
        one, two = (model(t).flatten(1) for t in inputs)
        optimizer.zero_grad()
        loss = F.cross_entropy(one @ two.T, labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    contract = Contract(
        model=Pair, batch=((WAVES, WAVES.flip(2)), LEVELS), train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), 0.01),
    )  # fmt: skip
    (found,) = contract.check(["batch-sizes"]).findings
    assert found.status == "violated"
    assert "not on 5" in found.summary


class Pair(nn.Conv1d):
    def __init__(self) -> None:
        super().__init__(2, 2, 3, padding=1)

    def forward(self, one: Tensor, two: Tensor | None = None) -> Tensor:
        return super().forward(one if two is None else one + two)


def test_a_table_beside_the_samples_is_not_cut() -> None:
    def step(model: nn.Module, optimizer: Any, inputs: Any, targets: Any) -> Tensor:
        (waves,) = inputs
        centres, levels = targets
        made = model(waves).flatten(1)
        loss = ((made[:, None] - centres) ** 2).mean() + 0 * levels.sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    assert judged(step, ((WAVES,), (torch.randn(3, 12), LEVELS))).status == "passed"
