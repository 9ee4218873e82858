"""Parameter groups by names: tests that no name meets, and others that are right as they are."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

PARTS = ("bias", "norm")


class Net(nn.Module):
    def __init__(self, bias=True):
        super().__init__()
        self.stem, self.head = nn.Linear(4, 6, bias=bias), nn.Linear(6, 2, bias=bias)
        self.token = nn.Parameter(torch.zeros(6))

    def forward(self, x):
        return self.head(torch.tanh(self.stem(x) + self.token))


def adamw(decayed, others):
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=1e-3)


def in_a_loop(model):
    decayed, others = [], []
    for n, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if n in PARTS:  # HERE
            others.append(p)
        else:
            decayed.append(p)
    return adamw(decayed, others)


def in_a_lookup(model):
    parts = {"bias"}
    known = dict(model.named_parameters())
    decayed = [p for n, p in known.items() if n not in parts]  # HERE
    return adamw(decayed, [p for n, p in known.items() if n in parts])


def by_parts(model):
    named = list(model.named_parameters())
    meant = {n for n, _ in named if any(part in n for part in PARTS)}
    return adamw([p for n, p in named if n not in meant], [p for n, p in named if n in meant])


def by_full_names(model):
    named, full = list(model.named_parameters()), ["stem.bias", "head.bias", "norm.bias"]
    return adamw([p for n, p in named if n not in full], [p for n, p in named if n in full])


def by_leaf(model):
    decayed, others = [], []
    for n, p in model.named_parameters():
        n = n.rpartition(".")[2]
        (others if n in PARTS else decayed).append(p)
    return adamw(decayed, others)


def by_shape_too(model):
    """The names add nothing to the shapes."""
    decayed, others = [], []
    for n, p in model.named_parameters():
        (others if p.dim() < 2 or n in PARTS else decayed).append(p)
    return adamw(decayed, others)


def by_shape_alone(model):
    decayed = [p for n, p in model.named_parameters() if n not in PARTS]
    return adamw([p for p in decayed if p.dim() > 1], [p for p in decayed if p.dim() < 2])


def once_each(model):
    seen, kept = set(), []
    for n, p in model.named_parameters():
        if n in seen:
            continue
        seen.add(n)
        kept.append(p)
    return torch.optim.AdamW(kept, lr=1e-3)


def empty_for_later(model):
    return torch.optim.AdamW([{"params": list(model.parameters())}, {"params": []}], lr=1e-3)


def one_name_alone(model):
    """Of one parameter that has such a part nobody knows whether it is meant."""
    decayed = [
        p for n, p in model.named_parameters() if n not in ("stem.weight.raw", "token.raw", "other")
    ]
    return adamw(decayed, [])


def findings(make, model=Net):
    contract = Contract(model=model, inputs="B 4", targets="B 2", loss=F.mse_loss, optimizer=make)
    return [f for f in contract.check(["optimizer-coverage"]).findings if f.status != "passed"]


@pytest.mark.parametrize("make", [in_a_loop, in_a_lookup])
def test_a_test_of_whole_names_that_none_meets_is_named(make):
    (found,) = findings(make)
    assert (found.status, found.code) == ("violated", "names-compared-whole")
    assert "# HERE" in found.location.text
    assert found.evidence["parameters"] == ["stem.bias", "head.bias"]


@pytest.mark.parametrize(
    "make",
    [by_parts, by_full_names, by_leaf, by_shape_too, by_shape_alone, once_each, empty_for_later, one_name_alone],
)  # fmt: skip
def test_groups_that_hold_what_is_meant_are_no_finding(make):
    assert not findings(make)


@pytest.mark.parametrize("make", [in_a_loop, in_a_lookup])
def test_a_model_without_such_parts_is_no_finding(make):
    assert not findings(make, lambda: Net(bias=False))


class Normed(nn.Module):
    """A norm at the top whose name is also the end of the names of others."""

    def __init__(self):
        super().__init__()
        self.norm, self.stem = nn.LayerNorm(4), nn.Linear(4, 4)
        self.layers = nn.ModuleList(nn.ModuleDict({"norm": nn.LayerNorm(4)}) for _ in range(2))

    def forward(self, x):
        x = self.stem(self.norm(x))
        for layer in self.layers:
            x = x + layer["norm"](x).tanh()
        return x


def of_normed(excepted, *, parts=False):
    def made(model):
        named = list(model.named_parameters())
        if parts:
            others = [p for n, p in named if any(part in n for part in excepted)]
            return adamw([p for n, p in named if all(part not in n for part in excepted)], others)
        return adamw([p for n, p in named if n not in excepted], [p for n, p in named if n in excepted])  # fmt: skip

    (found,) = (
        Contract(model=Normed, batch=((torch.randn(3, 4),), None), optimizer=made)
        .check(checks=["optimizer-coverage"])
        .findings
    )
    return found


def test_a_name_that_is_met_by_chance_among_others_of_its_kind_is_found():
    found = of_normed(["bias", "norm.weight"])
    assert found.code == "names-compared-whole"
    assert "True for norm.weight only" in found.summary


@pytest.mark.parametrize("excepted", [["norm.weight", "norm.bias"], ["stem.bias"], ["norm.weight"]])
def test_whole_names_that_are_meant_pass(excepted):
    assert of_normed(excepted).status == "passed"


def test_parts_of_names_pass():
    assert of_normed(["bias", "norm.weight"], parts=True).status == "passed"
