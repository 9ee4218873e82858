"""Samples that are put back into their order, beside values that a sort has left in its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pytest_torchcheck import Contract


class Pooled(nn.Module):
    """Means over the words of sentences, which are sorted by their lengths in between."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.words, self.out = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, words: Tensor, lengths: Tensor) -> Tensor:
        order = lengths.argsort(descending=True, stable=True)
        ordered = lengths[order]
        seen = torch.arange(words.shape[1]) < ordered[:, None]
        states = torch.tanh(self.words(words[order])) * seen[..., None]
        if self.how == "in-order":
            return self.out(states.sum(1) / ordered[:, None])[order.argsort()]
        states = states[order.argsort()]
        if self.how == "restored":
            ordered = ordered[order.argsort()]
        if self.how == "own":
            ordered = lengths
        return self.out(states.sum(1) / ordered[:, None])  # divided


def report(how: str) -> Any:
    words = torch.randint(0, 20, (6, 7))
    return Contract(
        model=Pooled(how), batch=((words, torch.tensor([3, 7, 1, 6, 2, 5])), torch.zeros(6)), inputs=("B T", "B"), targets="B", sizes={"B": (1, 6)}
    ).check(["batch-independence", "batch-sizes"])  # fmt: skip


def test_the_line_where_two_orders_meet_is_named() -> None:
    found = report("sorted").causes
    assert [one.code for one in found] == ["samples-mixed"]
    assert found[0].location.text.endswith("# divided")
    assert "in the order of a sort (ordered = lengths[order])" in found[0].cause
    assert any(c.location.text == "ordered = lengths[order]" for c in found[0].culprits)


@pytest.mark.parametrize("how", ["in-order", "restored", "own"])
def test_orders_that_agree_pass(how: str) -> None:
    assert report(how).ok, str(report(how))


class Shared(nn.Module):
    """Sorts without harm, and shares a statistic of the batch elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = x[:, 0].argsort()
        x = torch.tanh(x[order])[order.argsort()]
        return self.out(x - x.mean(0))  # shared


def test_another_mixture_beside_a_sort_that_is_undone_keeps_its_line() -> None:
    found = Contract(model=Shared, inputs="B 4", sizes={"B": (2, 6)}).check(["batch-independence"])
    assert [one.location.text for one in found.failing if one.location] == [
        "return self.out(x - x.mean(0))  # shared"
    ]
