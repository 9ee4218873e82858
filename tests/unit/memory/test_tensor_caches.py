"""Functions that are cached by tensors: those that never hit, and those whose keys come again."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

WIDTH = 512


@functools.cache
def angles(positions):
    return torch.sin(positions * 0.1)


@functools.lru_cache(maxsize=4)
def bounded(positions):
    return torch.sin(positions * 0.1)


@functools.cache
def by_length(length):
    return torch.sin(torch.arange(length) * 0.1)


@functools.cache
def of_input(x):
    return torch.sin(x.detach())


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(WIDTH, 2)
        self.register_buffer("positions", torch.arange(float(WIDTH)))

    def forward(self, x):
        return self.head(x + self.shift(x))


class Anew(Net):
    def shift(self, x):
        return angles(torch.arange(x.shape[1]))  # HERE


class Method(Net):
    @functools.lru_cache(maxsize=None)  # noqa: B019, UP033
    def table(self, positions):
        return torch.sin(positions * 0.1)

    def shift(self, x):
        return self.table(torch.arange(x.shape[1]))  # HERE


class Bounded(Net):
    def shift(self, x):
        return bounded(torch.arange(x.shape[1]))


class ByLength(Net):
    def shift(self, x):
        return by_length(x.shape[1])


class ByBuffer(Net):
    def shift(self, x):
        return angles(self.positions)


class ByInput(Net):
    """May hit where the data set keeps its tensors, which nobody sees here."""

    def shift(self, x):
        return of_input(x)


def findings(model):
    contract = Contract(model=model, inputs=f"B {WIDTH}", targets="B 2", loss=F.mse_loss)
    report = contract.check(["step-leak", "inference-memory"])
    return [f for f in report.findings if f.status in ("violated", "suspicious")]


@pytest.mark.parametrize(("model", "name"), [(Anew, "angles"), (Method, "Method.table")])
def test_a_cache_that_every_step_misses_is_named_with_the_line_that_calls_it(model, name):
    found = [f for f in findings(model) if f.root is None]
    assert found
    for finding in found:
        assert (finding.status, finding.code) == ("violated", "leak-tensors")
        assert "# HERE" in finding.location.text
        called, made = finding.culprits
        assert called.name == made.name == name
        assert made.location.text.startswith("@functools.")


@pytest.mark.parametrize("model", [Bounded, ByLength, ByBuffer, ByInput])
def test_a_cache_that_is_bounded_or_whose_keys_may_come_again_breaks_no_promise(model):
    assert not [f for f in findings(model) if f.status == "violated" or "anew" in f.summary]
