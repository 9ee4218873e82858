"""Modules of a list that are registered under one name: the line that makes it."""

from __future__ import annotations

import pytest
import torch
from provoke import line
from torch import nn

from pytest_torchcheck import Contract


class Chain(nn.Module):
    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


class ByWidth(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.layers = []
        for width in (4, 4, 4):
            layer = nn.Linear(4, width)
            key = "layer" + str(width)  # MADE
            self.add_module(key, layer)  # REGISTERED
            self.layers.append(layer)


class ByKind(Chain):
    def __init__(self, numbered: bool = False) -> None:
        super().__init__()
        layers = []
        for number, kind in enumerate(["a", "b", "a"]):
            layer = nn.Linear(4, 4)
            key = f"layer_{kind}"  # MADE
            if numbered:
                key = f"{kind}_{number}"
            layers.append(layer)
            setattr(self, key, layer)
        self.layers = layers


class Inline(Chain):
    def __init__(self) -> None:
        super().__init__()
        self.layers = []
        for width in (4, 4):
            layer = nn.Linear(4, width)
            self.layers.append(layer)
            self.register_module(f"layer{width}", layer)  # MADE


class Sometimes(Chain):
    """Only one layer is registered at all: no name is given twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = []  # HELD
        for number in range(3):
            layer = nn.Linear(4, 4)
            if number == 0:
                self.add_module(f"layer{number}", layer)
            self.layers.append(layer)


def found(model):
    contract = Contract(
        model=model, batch=((torch.randn(5, 4),), torch.randn(5, 4)), loss=nn.functional.mse_loss
    )
    return [f for f in contract.check(["registration"]).findings if f.status == "violated"]


@pytest.mark.parametrize(("kind", "left"), [(ByWidth, "layer4"), (Inline, "layer4")])
def test_the_line_that_makes_the_name(kind, left):
    (one,) = found(kind())
    assert one.code == "module-hidden"
    assert one.location.line == line(kind, "# MADE")
    assert left in one.cause
    assert "replaces" in one.cause


def test_the_line_that_registers_comes_behind():
    (one,) = found(ByWidth())
    assert one.culprits[-1].location.line == line(ByWidth, "# REGISTERED")


def test_a_list_of_which_only_one_is_registered_at_all():
    (one,) = found(Sometimes())
    assert one.location is None or one.location.line == line(Sometimes, "# HELD")
    assert "replaces" not in one.cause


def test_a_name_that_numbers_the_modules_is_not_the_one():
    (one,) = found(ByKind())
    assert one.location.line == line(ByKind, "# MADE")
    assert found(ByKind(numbered=True)) == []
