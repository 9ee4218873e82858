"""What a second finding says of a step holds of it: gradients that are left, and passes that split nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from loop_bugs import Net

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import Accumulates


def _told(step: Any, check: str, *promises: Any) -> Any:
    torch.manual_seed(0)
    contract = Contract(
        model=Net,
        batch=((torch.randn(8, 6),), torch.arange(8) % 3),
        loss=F.cross_entropy,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        train_step=step,
        promises=promises,
    )
    return contract.check(["step-protocol", check]).findings


def _error(model: Any, inputs: Any, targets: Any) -> torch.Tensor:
    return F.cross_entropy(model(*inputs), targets)


def clears(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    _error(model, inputs, targets).backward()
    optimizer.step()


def clears_a_part(model, optimizer, inputs, targets):
    model.body.zero_grad()
    _error(model, inputs, targets).backward()
    optimizer.step()


def test_gradients_that_are_left_are_the_cause_of_another_run() -> None:
    protocol, resumed = _told(clears_a_part, "resume")
    assert protocol.code == "zero-grad-missing"
    assert resumed.code == "resume-differs"
    assert resumed.root == "step-protocol/zero-grad-missing"
    assert "no state_dict holds gradients" in resumed.cause
    assert "zero_grad" in resumed.fix
    assert [f.status for f in _told(clears, "resume")] == ["passed", "passed"]


def goes_twice(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    error = _error(model, inputs, targets)
    error.backward(retain_graph=True)
    error.backward()
    optimizer.step()


def halves_undivided(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    for x, y in zip(inputs[0].chunk(2), targets.chunk(2), strict=True):
        _error(model, (x,), y).backward()
    optimizer.step()


def test_passes_through_the_whole_batch_are_no_micro_batches() -> None:
    protocol, accumulated = _told(goes_twice, "accumulation")
    assert protocol.code == "loss-counted-twice"
    assert accumulated.status == "not-applicable"
    *_, promised = _told(goes_twice, "accumulation", Accumulates(2))
    assert "the batch is not split" in promised.cause


@pytest.mark.parametrize("promises", [(), (Accumulates(2),)])
def test_micro_batches_that_are_not_divided(promises) -> None:
    *_, accumulated = _told(halves_undivided, "accumulation", *promises)
    assert accumulated.code == "accumulation-scale"
    assert "without being divided by 2" in accumulated.cause
