"""A training step reads every loss that it computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 3) for _ in range(3))

    def forward(self, x):
        return [head(self.body(x).relu()) for head in self.heads]


def finish(optimizer: Any, loss: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def replacing(model, optimizer, inputs, targets):
    for scores in model(*inputs):
        loss = F.cross_entropy(scores, targets)  # BUG
    return finish(optimizer, loss)


def rebinding(model, optimizer, inputs, targets):
    first, *others = model(*inputs)
    loss = F.cross_entropy(first, targets)
    loss = sum(F.cross_entropy(scores, targets) for scores in others)  # BUG
    return finish(optimizer, loss)


def by_hand(model, optimizer, inputs, targets):
    for scores in model(*inputs):
        loss = -scores.log_softmax(1)[torch.arange(len(targets)), targets].mean()  # BUG
        F.cross_entropy(scores, targets).item()
    return finish(optimizer, loss)


def adding(model, optimizer, inputs, targets):
    loss = torch.zeros(())
    for scores in model(*inputs):
        loss = loss + F.cross_entropy(scores, targets)
    return finish(optimizer, loss)


def one_by_one(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    for scores in model(*inputs):
        loss = F.cross_entropy(scores, targets)
        loss.backward(retain_graph=True)
    optimizer.step()
    return loss.detach()


def stopping(model, optimizer, inputs, targets):
    """The last loss decides to stop, by another number than itself."""
    for turn in range(4):
        scores = model(*inputs)[0]
        loss = F.cross_entropy(scores, targets)
        F.cross_entropy(scores, targets).item()
        if turn == 3:
            break
        done = finish(optimizer, loss)
    return done


def logging(model, optimizer, inputs, targets):
    first, second, third = model(*inputs)
    with torch.no_grad():
        loss = F.cross_entropy(first, targets)
    loss = F.cross_entropy(first, targets) + F.cross_entropy(second, targets)
    return finish(optimizer, loss + F.cross_entropy(third, targets))


def check(step: Any) -> Any:
    batch = ((torch.randn(6, 4),), torch.randint(0, 3, (6,)))
    return Contract(
        model=Heads, batch=batch, train_step=step, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    ).check(["step-losses"])  # fmt: skip


@pytest.mark.parametrize("step", [replacing, rebinding, by_hand])
def test_a_loss_that_is_replaced_unread_is_told(step: Any) -> None:
    [found] = check(step).failing
    assert (found.status, found.code) == ("violated", "result-unread")
    assert "# BUG" in found.location.text


@pytest.mark.parametrize("step", [adding, one_by_one, logging, stopping])
def test_losses_that_are_read_are_right(step: Any) -> None:
    assert not check(step).failing
