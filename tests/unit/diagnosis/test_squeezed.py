"""A squeeze that drops the batch of one sample: its line is the cause, whatever fails behind it."""

from __future__ import annotations

import pytest
import torch
from provoke import explain, line
from torch import nn


class Pooled(nn.Module):
    """Sentences of 5 words as 6 numbers each; how their mean is used is chosen."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(6, 6)
        self.register_buffer("table", torch.ones(1, 5, 6))

    def forward(self, x):
        h = self.layer(x)
        mean = h.mean(1, keepdim=True).squeeze()  # SQUEEZED
        return getattr(self, self.how)(h, mean)

    def expanded(self, h, mean):
        return h * mean.unsqueeze(1).expand(-1, h.shape[1], -1)

    def repeated(self, h, mean):
        return h + mean.unsqueeze(2).repeat(1, 1, 5).transpose(1, 2)

    def viewed(self, h, mean):
        return mean.unsqueeze(1).expand_as(h[:, :2]) + h[:, :2]

    def indexed(self, h, mean):
        return mean[:, 0]

    def turned(self, h, mean):
        return torch.relu(mean).permute(1, 0)

    def normalised(self, h, mean):
        return mean.softmax(dim=1)

    def multiplied(self, h, mean):
        return torch.bmm(h, mean.unsqueeze(2))

    def summed(self, h, mean):
        return torch.einsum("btd,bd->bt", h, mean)

    def unpacked(self, h, mean):
        batch, size = mean.shape
        return mean.view(batch, size)


METHODS = [n for n in vars(Pooled) if n not in ("forward", "__init__") and not n.startswith("_")]


@pytest.mark.parametrize("how", METHODS)
def test_the_squeeze_is_the_cause(how):
    model = Pooled(how)
    many, one = torch.randn(4, 5, 6), torch.randn(1, 5, 6)
    model(many)
    found = explain(lambda: model(one), model=model, batch=((one,), None))
    assert found.location.line == line(Pooled, "# SQUEEZED"), found
    assert "without the batch dimension" in found.cause
    assert "squeeze" in found.fix
    assert found.culprits[0].location == found.location
    assert len(found.culprits) <= 4


class Table(nn.Module):
    """The squeeze is of a table, whose first dimension is no batch, and the lengths differ."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("table", torch.ones(1, 4, 6))

    def forward(self, x):
        table = self.table.squeeze()
        return torch.cat([self.layer(x), table])  # DIFFERS


def test_a_squeeze_of_a_table_drops_no_batch():
    model, one = Table(), torch.randn(1, 5, 6)
    found = explain(lambda: model(one), model=model, batch=((one,), None))
    assert found.location.line == line(Table, "# DIFFERS"), found
    assert "batch dimension" not in found.cause


class Named(nn.Module):
    def forward(self, x):
        mean = x.mean(1, keepdim=True).squeeze(1)
        return x[:, :, :4] + mean  # DIFFERS


def test_a_squeeze_that_names_its_dimension_is_left_alone():
    model, one = Named(), torch.randn(1, 5, 6)
    found = explain(lambda: model(one), model=model, batch=((one,), None))
    assert found.location.line == line(Named, "# DIFFERS"), found
