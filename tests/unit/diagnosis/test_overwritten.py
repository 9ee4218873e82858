"""A variable that is reassigned before it is read."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding


class Tower(nn.Module):
    """Two layers that follow each other, or not."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.layers, self.head = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)]), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        if self.how == "anew":
            h = self.second(
                x,
            )  # the statement that binds h anew
            return self.last(h)
        if self.how == "branch":
            if x.shape[0] > 1:
                h = x * 2  # branch
            return self.last(self.second(h))
        if self.how == "right":
            for layer in self.layers:
                h = layer(h)
        h = self.second(h)
        return self.last(h)

    def last(self, h: Tensor) -> Tensor:
        out: Tensor = h
        for layer in self.layers:
            if self.how == "loop":  # noqa: SIM108
                out = layer(h)  # loop
            else:
                out = layer(out)
        made: Tensor = self.head(out)
        return made


def _judge(how: str) -> Finding:
    batch = ((torch.randn(3, 4),), torch.randn(3, 2))
    contract = Contract(model=Tower(how), batch=batch, loss=F.mse_loss)
    return contract.check(["gradients-exist"]).findings[0]


@pytest.mark.parametrize(
    ("how", "text"), [("anew", "h = self.second("), ("branch", "h = x * 2  # branch")]
)
def test_the_line_that_binds_it_anew_is_named(how: str, text: str) -> None:
    found = _judge(how)
    assert found.code == "grad-none"
    assert found.location is not None
    assert found.location.text == "h = torch.relu(self.first(x))"
    anew = [c for c in found.culprits if c.detail == "reassigned before it is read"]
    assert [c.location.text for c in anew if c.location] == [text]
    assert "reassigns h before it is read" in found.cause


def test_each_turn_of_a_loop_binds_it_anew() -> None:
    found = _judge("loop")
    assert found.location is not None
    assert found.location.text == "out = layer(h)  # loop"
    assert "reassigns out in the next iteration of the loop" in found.cause
    assert not any("anew" in c.detail for c in found.culprits)


def test_a_value_that_is_read_passes() -> None:
    assert _judge("right").status == "passed"


class Conditioned(nn.Module):
    """Adds a condition, or the input in its place."""

    def __init__(self, *, anew: bool) -> None:
        super().__init__()
        self.anew, self.project, self.head = anew, nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        condition = self.project(x if self.anew else condition)
        out: Tensor = self.head(x + condition)
        return out


class Replaced(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        with torch.no_grad():
            condition = torch.tanh(x)
        out: Tensor = self.head(x + condition)
        return out


def _ignored(model: nn.Module) -> Finding:
    batch = ((torch.randn(3, 4), torch.randn(3, 4)), None)
    return Contract(model=model, batch=batch).check(["input-influence"]).findings[0]


def test_an_input_that_is_bound_anew() -> None:
    found = _ignored(Replaced())
    assert found.code == "input-ignored"
    anew = [c for c in found.culprits if c.detail == "reassigned before it is read"]
    assert [c.location.text for c in anew if c.location] == ["condition = torch.tanh(x)"]
    assert "let line" in found.fix


def test_an_input_on_a_line_that_reads_it_is_not_called_unread() -> None:
    found = _ignored(Conditioned(anew=True))
    assert found.code == "input-ignored"
    assert not any("anew" in c.detail for c in found.culprits)
    assert _ignored(Conditioned(anew=False)).status == "passed"
