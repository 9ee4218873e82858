"""Complex buffers and a conversion of the model to a real dtype."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


class Rotated(nn.Module):
    """Turns pairs of features by a table of angles."""

    def __init__(self, kind: str = "buffer") -> None:
        super().__init__()
        self.lin, self.kind = nn.Linear(6, 6), kind
        table = torch.polar(torch.ones(3), torch.tensor([0.3, 1.1, 2.0]))
        if kind == "real":
            table = torch.ones(3).to(torch.complex64)  # no imaginary part to lose
        if kind == "pairs":
            table = torch.view_as_real(table)
        self.register_buffer("table", table)

    def forward(self, x):
        pairs = torch.view_as_complex(self.lin(x).unflatten(-1, (3, 2)).contiguous())
        if self.kind == "unused":
            return torch.view_as_real(pairs).flatten(-2)
        table = torch.view_as_complex(self.table) if self.kind == "pairs" else self.table
        return torch.view_as_real(pairs * table).flatten(-2)


class Spectral(nn.Module):
    """Complex weights, as Fourier layers have."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(6, 6)
        self.weight = nn.Parameter(torch.randn(4, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.irfft(torch.fft.rfft(self.lin(x)) * self.weight, n=6)


def _findings(model: nn.Module, **fields) -> list:
    torch.manual_seed(0)
    x, y = torch.randn(5, 6), torch.randn(5, 6)
    contract = Contract(model=model, batch=((x,), y), loss=F.mse_loss, **fields)
    return [f for f in contract.check(["dtype-conversion"]).findings if f.status == "violated"]


@pytest.mark.parametrize("dtypes", [("float64",), ("float32", "float64")])
def test_a_table_that_loses_its_imaginary_part_is_named(dtypes):
    model = Rotated()
    before = model.table.clone()
    (found,) = _findings(model, dtypes=dtypes)
    assert found.code == "complex-cast"
    assert found.location.text == 'self.register_buffer("table", table)'
    assert found.culprits[0].name == "table"
    assert torch.equal(model.table, before)
    assert model.lin.weight.dtype == torch.float32


@pytest.mark.parametrize("kind", ["pairs", "real", "unused"])
def test_a_table_that_keeps_its_values_passes(kind):
    assert not _findings(Rotated(kind), dtypes=("float64",))


def test_what_is_not_declared_or_only_float32_passes():
    assert not _findings(Rotated())
    assert not _findings(Rotated(), dtypes=("float32",))


def test_complex_weights_are_another_matter():
    assert not _findings(Spectral(), dtypes=("float64",))
