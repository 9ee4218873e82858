"""Loops over positions: where each turn throws away what the one before it computed, only the last position counts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, Tokens


class Frames(nn.Module):
    """Encodes every frame, and keeps the last one's code."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.head = nn.Linear(4, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for t in range(x.shape[1]):
            code = torch.tanh(self.encode(x[:, t]))
        return self.head(code)


class Kept(Frames):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = [torch.tanh(self.encode(frame)) for frame in x.unbind(1)]
        return self.head(torch.stack(codes).amax(0))


class Cells(nn.Module):
    """An LSTM whose cell starts anew with each token."""

    carries = False

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell, self.head = nn.Embedding(9, 4), nn.LSTMCell(4, 5), nn.Linear(5, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = None
        for word in self.words(ids).unbind(1):
            hidden = self.cell(word, state)
            state = hidden if self.carries else None
        return self.head(hidden[0])


class Carried(Cells):
    carries = True


class EachTurn(Carried):
    """Sound, if wasteful: each turn gives scores, and the last ones are returned."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        state = None
        for word in self.words(ids).unbind(1):
            state = self.cell(word, state)
            scores = self.head(state[0])
        return scores


class Newest(nn.Module):
    """Sound: of the features the newest alone is meant to count, and each step gives scores of which the last are read."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(1, 5), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = None
        for step in x[..., -1:].unbind(1):
            state = self.cell(step, state)
            scores = self.head(state)
        return scores


def told(model: Any) -> list[str]:
    tokens = issubclass(model, Cells)
    inputs: Any = Tokens("B T", vocab=9) if tokens else "B 6 4"
    report = Contract(model=model, inputs=inputs).check("dead-modules")
    assert not list(report.with_status("error")), str(report)
    return [str(f) for f in report.findings if f.status == "violated"]


@pytest.mark.parametrize("model", [Frames, Cells])
def test_a_loop_of_which_the_last_turn_alone_counts(model: Any) -> None:
    (found,) = told(model)
    assert "only the last one counts" in found
    assert ("self.encode(x[:, t])" if model is Frames else "self.cell(word, state)") in found


@pytest.mark.parametrize("model", [Kept, Carried, EachTurn, Newest])
def test_a_loop_that_passes_on_what_it_computes(model: Any) -> None:
    assert told(model) == []
