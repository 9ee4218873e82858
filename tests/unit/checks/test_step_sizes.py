"""A training step runs on a batch with a sample less; what equal sizes hide is told, and steps that keep a batch are sound."""

from __future__ import annotations

import contextlib
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


def halves(*, caught: bool = True, raised: bool = False, skips: bool = False) -> Any:
    """Contrast the first half of the waves with the second one."""

    def step(model: nn.Module, optimizer: Any, inputs: Any, levels: Tensor) -> Tensor | None:
        (waves,) = inputs
        optimizer.zero_grad()
        if skips and len(waves) % 2:
            return None
        try:
            if raised and len(waves) % 2:
                raise ValueError("no pairs")
            made = model(waves)
            if not caught:
                made = made[: len(made) // 2 * 2]
            one, two = made.view(2, -1, 12)
        except (RuntimeError, ValueError):
            return None
        with contextlib.suppress(RuntimeError):  # as it does for every batch
            waves.view(len(waves), 5)
        loss = (one - two).square().mean() + levels.mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def test_a_step_that_swallows_the_error_of_a_smaller_batch_learns_nothing_from_it() -> None:
    found = judged(halves(), ((WAVES,), LEVELS))
    assert (found.status, found.code) == ("violated", "error-swallowed")
    assert found.location is not None
    assert found.location.text == "one, two = made.view(2, -1, 12)"


def test_batches_that_a_step_leaves_out_on_purpose() -> None:
    for step in (halves(caught=False), halves(raised=True), halves(skips=True)):
        assert judged(step, ((WAVES,), LEVELS)).status == "passed"
