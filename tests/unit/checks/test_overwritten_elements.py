"""What turns of one line write over each other unread is lost; sums, parts and what is read in between are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 3


class Experts(nn.Module):
    """Sends each sample to two of four layers."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.layers = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        parts = []
        for number, layer in enumerate(self.layers):
            row, slot = torch.where(chosen == number)
            parts.append((row, weights[row, slot, None] * layer(x[row])))
        return self.joined(x.new_zeros(len(x), 3), parts)


class Assigns(Experts):
    def joined(self, out, parts):
        for row, part in parts:
            out[row] = part  # HERE
        return out


class AddsAndAssigns(Experts):
    def joined(self, out, parts):
        for row, part in parts:
            out[row] = out[row] + part
        return out


class AddsInPlace(Experts):
    def joined(self, out, parts):
        for row, part in parts:
            out[row] += part
        return out


class AddsByIndex(Experts):
    def joined(self, out, parts):
        for row, part in parts:
            out = out.index_add(0, row, part)
        return out


class ReadsEachTurn(Experts):
    """Overwrites what it has added to a sum."""

    def joined(self, out, parts):
        total = torch.zeros_like(out)
        for row, part in parts:
            out = torch.zeros_like(out)
            out[row] = part
            total = total + out
        return total


class ReadsThroughAView(Experts):
    def joined(self, out, parts):
        total, flat = torch.zeros_like(out), out.view(-1)
        for row, part in parts:
            out[row] = part
            total = total + flat.view_as(total)
        return total


class WritesParts(nn.Module):
    """Fills a sequence position by position."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        out = x.new_zeros(len(x), 3)
        for number in range(len(x)):
            out[number] = self.layer(x[number])
        return out


class CorrectsElsewhere(nn.Module):
    """Writes a default, and on another line what differs from it."""

    def __init__(self):
        super().__init__()
        self.layer, self.other = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        out = x.new_zeros(len(x), 3)
        out[:] = self.layer(x)
        out[x[:, 0] > 0] = self.other(x[x[:, 0] > 0])
        return out


def told(model):
    contract = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy)
    found = contract.check(["dead-modules"]).findings
    return [f for f in found if f.status in ("violated", "suspicious")]


def test_experts_that_replace_each_other():
    (finding,) = told(Assigns)
    assert (finding.status, finding.code) == ("violated", "result-unread")
    assert finding.location.text.endswith("# HERE")
    assert finding.summary.startswith("24 of the 48 elements")
    assert "out" in {c.name for c in finding.culprits}


@pytest.mark.parametrize(
    "model",
    [
        AddsAndAssigns,
        AddsInPlace,
        AddsByIndex,
        ReadsEachTurn,
        ReadsThroughAView,
        WritesParts,
        CorrectsElsewhere,
    ],
)
def test_what_is_added_read_or_apart(model):
    assert told(model) == []


class ReadsTheFirstTwice(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(6, 3)

    def forward(self, one, two):
        first = self.embed(one)
        second = self.embed(one)  # HERE
        return torch.cat([first, second], 1)


class ReadsTheSecondTwice(ReadsTheFirstTwice):
    def forward(self, one, two):
        first = self.embed(two)  # HERE
        second = self.embed(two)
        return torch.cat([first, second], 1)


@pytest.mark.parametrize(
    ("model", "name"), [(ReadsTheFirstTwice, "two"), (ReadsTheSecondTwice, "one")]
)
def test_the_call_that_repeats_another_in_place_of_reading_an_input(model, name):
    contract = Contract(model=model, batch=((X, X.flip(0)), Y))
    (finding,) = contract.check(["input-influence"]).findings
    assert (finding.status, finding.code) == ("violated", "input-ignored")
    assert finding.location.text.endswith("# HERE")
    assert f"read {name}" in finding.fix
