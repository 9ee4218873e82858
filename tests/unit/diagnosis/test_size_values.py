"""A layer's size is followed to where its value was assigned, through constructors and the call of the model."""

from __future__ import annotations

import pytest
import torch
from provoke import explain, line
from torch import Tensor, nn

from pytest_torchcheck.diagnosis.lines.size_values import value_lines


class Table(nn.Module):
    def __init__(self, sizes: Tensor, width: int) -> None:
        super().__init__()
        self.rows = nn.Embedding(int(sizes.sum()), width)
        doubled = 2 * width
        self.out = nn.Linear(doubled, 1)

    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.rows(ids)
        return made


class Net(nn.Module):
    def __init__(self, sizes: Tensor, width: int = 4) -> None:
        super().__init__()
        self.table = Table(sizes, width)

    def forward(self, ids: Tensor) -> Tensor:
        made: Tensor = self.table(ids)
        return made


class Twice(Net):
    """Built in two places, so that neither is said to be the one."""


def build(largest: Tensor) -> Net:
    counts = largest.clone()
    return Net(counts)


def build_twice(largest: Tensor) -> list[Net]:
    few = largest.clone()
    return [Twice(few), Twice(largest)]


def test_the_assignment_behind_a_table() -> None:
    model = build(torch.tensor([2, 3]))
    found = explain(
        lambda: model(torch.tensor([5])), model=model, batch=((torch.tensor([5]),), None)
    )
    assert found.code == "embedding-range"
    wanted = line(build, "counts = largest")
    assert wanted in [c.location.line for c in found.culprits if c.location is not None]
    assert f"its value comes from line {wanted}" in found.fix


def test_local_variables_of_a_constructor_are_followed() -> None:
    model = build(torch.tensor([2, 3]))
    assert [p.line for p in value_lines(model, "table.out")] == [line(Table, "doubled = 2")]


def test_a_model_that_is_built_in_two_places_has_no_one_line() -> None:
    for model in build_twice(torch.tensor([2, 3])):
        assert value_lines(model, "table.rows") == ()


@pytest.mark.parametrize("name", ["", "missing", "table"])
def test_what_has_no_size_has_no_lines(name: str) -> None:
    assert value_lines(build(torch.tensor([2, 3])), name) == ()
