"""What ends a test from outside (Ctrl-C, a timeout's plugin) ends the check: nothing runs the model again."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.catalogue import catalogue

CALLS: list[nn.Module] = []


class EndedError(KeyboardInterrupt):
    """As Ctrl-C is: no Exception."""


class Ended(nn.Module):
    """Ends the test as soon as it runs."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        CALLS.append(self)
        raise EndedError


def contract() -> Contract:
    batch = ((torch.ones(2, 4),), torch.zeros(2, 2))
    return Contract(model=Ended(), batch=batch, loss=nn.functional.mse_loss)


APPLY = [name for name, check in catalogue().items() if check.missing(contract()) is None]


@pytest.mark.parametrize("name", APPLY)
def test_an_interrupt_in_the_forward_is_the_last_call(name: str) -> None:
    CALLS.clear()
    with contextlib.suppress(EndedError):
        contract().check([name])
    assert len(CALLS) <= 1
    assert CALLS or name != "backward"
