"""A loss that takes a sample of one label by itself takes a sample of another: labels are no places of samples."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(24, 6, generator=GENERATOR)
TIME = torch.rand(24, generator=GENERATOR)
EVENT = (torch.rand(24, generator=GENERATOR) < 0.7).long()


def partial_likelihood(choose):
    def loss(hazard, targets):
        time, event = targets
        order = torch.argsort(time)
        hazard, event = hazard[order], event[order]
        likelihood = hazard - torch.logcumsumexp(hazard.flip(0), 0).flip(0)
        likelihood = choose(likelihood, event)
        return -likelihood.sum() / max(len(likelihood), 1)

    return loss


def told(loss, *targets, low=1):
    contract = Contract(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1), nn.Flatten(0)),
        batch=((X,), targets),
        inputs="B 6",
        sizes={"B": (low, 24)},
        loss=loss,
    )
    found = contract.check(["edge-targets"]).findings
    return [f for f in found if f.status in ("violated", "suspicious")]


def by_place(values, flags):
    return values[flags]  # HERE


def test_flags_that_are_taken_for_places():
    (finding,) = told(partial_likelihood(by_place), TIME, EVENT)
    assert (finding.status, finding.code) == ("violated", "edge-targets-raise")
    assert finding.location.text.endswith("# HERE")
    assert {"flags", "targets[1]"} & {c.name for c in finding.culprits}
    assert ".bool()" in finding.fix


def test_labels_of_samples_beyond_the_first_ones():
    rare = torch.zeros(24, dtype=torch.int64)
    rare[20] = 1
    (finding,) = told(partial_likelihood(by_place), TIME, rare)
    assert finding.code == "edge-targets-raise"


def test_a_mask():
    assert told(partial_likelihood(lambda values, flags: values[flags.bool()]), TIME, EVENT) == []


def test_where_no_batch_of_one_is_declared():
    assert told(partial_likelihood(by_place), TIME, EVENT, low=2) == []


def of_pairs(scores, targets):
    time, _ = targets
    one, two = torch.nonzero(time[:, None] < time[None], as_tuple=True)
    return torch.stack(
        [F.softplus(scores[j] - scores[i]) for i, j in zip(one, two, strict=True)]
    ).mean()


def refuses_by_itself(scores, targets):
    time, event = targets
    if not event.any():
        raise ValueError("no event in this batch")
    return F.mse_loss(scores[event.bool()], time[event.bool()])


def asserts(scores, targets):
    time, event = targets
    assert event.any()
    return F.mse_loss(scores[event.bool()], time[event.bool()])


@pytest.mark.parametrize("loss", [of_pairs, refuses_by_itself, asserts])
def test_losses_that_need_several_samples_or_say_what_they_refuse(loss):
    assert told(loss, TIME, EVENT) == []


def test_places_of_partners():
    def loss(scores, targets):
        time, partner = targets
        return F.mse_loss(scores, time) + (scores - scores[partner]).square().mean()

    partners = torch.randperm(24, generator=torch.Generator().manual_seed(1))
    partners[0], partners[partners == 0] = 0, int(partners[0])  # one sample is its own
    assert told(loss, TIME, partners) == []


def test_labels_choose_a_row_of_a_table():
    table = torch.randn(3, generator=GENERATOR)

    def loss(scores, targets):
        time, kind = targets
        return (F.mse_loss(scores, time, reduction="none") * table[kind].square()).mean()

    assert told(loss, TIME, torch.arange(24) % 3) == []
