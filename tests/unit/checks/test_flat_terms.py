"""A term of a loss that is one number at all weights trains nothing; a hinge at rest will train again."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(8) % 3


class Mixture(nn.Module):
    """Returns its scores and a penalty on how unevenly it chooses."""

    def __init__(self, penalty):
        super().__init__()
        self.gate = nn.Linear(6, 4)
        self.experts = nn.ModuleList(nn.Linear(6, 3) for _ in range(4))
        self.penalty = penalty

    def forward(self, x):
        gates = self.gate(x).softmax(-1)
        mixed = sum(gates[:, i, None] * expert(x) for i, expert in enumerate(self.experts))
        return mixed, self.penalty(gates)


def over_the_wrong_axis(gates):
    share = gates.mean(-1)  # HERE
    return (share * share).sum()


def even(gates):
    share = gates.mean(0)
    return (share * share).sum()


def at_rest(gates):
    return 1.0 + F.relu(gates.mean(0) - 2.0).sum()


def clamped(gates):
    return gates.log().sum(-1).clamp(max=-100.0).mean()


def beside_a_sum_of_one(gates):
    drawn = torch.distributions.Categorical(probs=gates.detach()).sample()
    return gates.gather(1, drawn[:, None]).log().clamp(max=-100.0).mean()


def larger(gates):
    chosen = gates.log().sum(-1)
    return torch.stack([chosen, torch.full_like(chosen, -1.0)]).amax(0).mean()


def from_a_state_of_zeros(gates):
    state = gates.new_zeros(8 if len(gates) == 8 else 3, 2).sum(1)
    return (state + gates.log().sum(-1).clamp(max=-100.0)).mean()


def told(penalty):
    def loss(output, labels):
        scores, extra = output
        return F.cross_entropy(scores, labels) + 0.1 * extra

    contract = Contract(model=lambda: Mixture(penalty), batch=((X,), Y), loss=loss)
    return [f for f in contract.check(["loss-sound"]).findings if f.status != "passed"]


def test_a_penalty_that_is_always_the_same():
    (finding,) = told(over_the_wrong_axis)
    assert (finding.status, finding.code) == ("violated", "term-flat")
    assert finding.location.text.endswith("# HERE")
    assert "0.1875" in finding.summary  # of three samples


@pytest.mark.parametrize(
    "penalty", [even, at_rest, clamped, beside_a_sum_of_one, larger, from_a_state_of_zeros]
)
def test_penalties_that_move_or_rest(penalty):
    assert told(penalty) == []


def test_a_loss_of_one_term_is_not_looked_at():
    contract = Contract(model=lambda: nn.Linear(6, 3), batch=((X,), Y), loss=F.cross_entropy)
    assert [f.status for f in contract.check(["loss-sound"]).findings] == ["passed"]


def test_what_a_loss_computes_and_drops():
    def loss(scores, labels):
        scores.masked_fill(scores < 0, 0.0)  # HERE
        return F.cross_entropy(scores, labels)

    contract = Contract(model=lambda: nn.Linear(6, 3), batch=((X,), Y), loss=loss)
    (finding,) = contract.check(["loss-sound"]).findings
    assert (finding.status, finding.code) == ("violated", "result-unread")
    assert finding.location.text.endswith("# HERE")
    assert "of the loss" in finding.because


def test_what_a_loss_writes_in_place_is_read():
    def loss(scores, labels):
        scores = scores.clone()
        scores.masked_fill_(scores < -1, -1.0)
        return F.cross_entropy(scores, labels)

    contract = Contract(model=lambda: nn.Linear(6, 3), batch=((X,), Y), loss=loss)
    assert [f.status for f in contract.check(["loss-sound"]).findings] == ["passed"]


class Tasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.heads = nn.ModuleList(nn.Linear(8, 1) for _ in range(3))

    def forward(self, x):
        h = self.body(x).relu()
        return torch.cat([head(h) for head in self.heads], 1)


def measured_only(output, labels):
    known = ~labels.isnan()
    return F.mse_loss(output[known], labels[known])


def first_only(output, labels):
    return measured_only(output[:, :2], labels[:, :2])


@pytest.mark.parametrize(("loss", "blamed"), [(measured_only, False), (first_only, True)])
def test_a_head_whose_targets_were_not_measured_here(loss, blamed):
    labels = torch.randn(8, 3, generator=torch.Generator().manual_seed(2))
    labels[:, 2] = torch.nan
    contract = Contract(model=Tasks, batch=((X,), labels), loss=loss)
    found = contract.check(["gradients-exist", "weights-update"]).findings
    wrong = [f for f in found if f.status == "violated"]
    assert bool(wrong) is blamed


def test_a_sum_that_is_read_again_and_again_is_taken_apart_once():
    def loss(output, labels):
        total = F.cross_entropy(output, labels) + output.square().mean()
        for _ in range(60):
            total = (total + total) / 2  # twice as many ways to the same terms each time
        return total

    contract = Contract(model=lambda: nn.Linear(6, 3), batch=((X,), Y), loss=loss)
    assert [f.status for f in contract.check(["loss-sound"]).findings] == ["passed"]
