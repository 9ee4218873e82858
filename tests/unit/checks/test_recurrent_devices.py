"""Hidden states that the forward makes are found on whichever function takes them; dropout in functional attention is dropout."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding
from pytest_torchcheck.specs import Packed

X = torch.randn(4, 5, 6, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 0])


class Cell(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(6, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.start(x)
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state)

    def start(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), 8)


class Layer(Cell):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(6, 8, batch_first=True)
        del self.cell

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = self.start(x)[None]
        return self.head(self.layer(x, (state, state))[0][:, -1])


class CellOfInput(Cell):
    def start(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(len(x), 8)


class LayerOfInput(Layer):
    def start(self, x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(len(x), 8)


class Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(6, 24), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate()).mean(1))

    def rate(self) -> float:
        return 0.2


class AttendsByMode(Attends):
    def rate(self) -> float:
        return 0.2 if self.training else 0.0


def told(model: Any, check: str) -> list[Finding]:
    torch.manual_seed(0)
    findings = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy).check(checks=[check]).findings  # fmt: skip
    return [f for f in findings if f.status in ("violated", "suspicious", "error")]


@pytest.mark.parametrize("model", [Cell, Layer])
def test_a_state_made_on_the_cpu_is_found_in_recurrent_layers(model: type[nn.Module]) -> None:
    (finding,) = told(model, "device-portability")
    assert (finding.status, finding.code) == ("violated", "cpu-factory")
    assert finding.location is not None
    assert "torch.zeros" in finding.location.text


@pytest.mark.parametrize("model", [CellOfInput, LayerOfInput])
def test_a_state_made_of_the_input_is_sound(model: type[nn.Module]) -> None:
    assert told(model, "device-portability") == []


def test_dropout_that_attention_keeps_in_evaluation_is_violated() -> None:
    (finding,) = told(Attends, "eval-determinism")
    assert (finding.status, finding.code) == ("violated", "random-in-eval")
    assert told(AttendsByMode, "eval-determinism") == []


class OfPacked(nn.Module):
    """Reads rows of different lengths, sorted by torch; perhaps with an index of its own."""

    def __init__(self, cell, own=False):
        super().__init__()
        self.cell, self.head, self.own = cell, nn.Linear(8, 3), own

    def forward(self, rows):
        state = self.cell(rows)[1]
        state = state[0] if isinstance(state, tuple) else state
        if self.own:
            state = state.index_select(1, torch.as_tensor([1, 0]))
        return self.head(state[-1])


@pytest.mark.parametrize("cell", [nn.GRU, nn.LSTM, nn.RNN])
def test_the_indices_of_a_packed_sequence_go_where_its_data_goes(cell):
    contract = Contract(model=lambda: OfPacked(cell(4, 8)), inputs=Packed("B T 4"))
    (finding,) = contract.check(["device-portability"]).findings
    assert finding.status == "passed", str(finding)


def test_an_index_of_the_models_own_stays():
    contract = Contract(model=lambda: OfPacked(nn.GRU(4, 8), own=True), inputs=Packed("B T 4"))
    (finding,) = contract.check(["device-portability"]).findings
    assert (finding.status, finding.code) == ("violated", "cpu-factory")
    assert "torch.as_tensor" in finding.location.text
