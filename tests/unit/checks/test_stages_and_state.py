"""Parts that thaw in later steps, and state that callers reset, are meant."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.subject import Subject


class Tower(nn.Module):
    def __init__(self):
        super().__init__()
        self.low, self.high = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("done", torch.zeros((), dtype=torch.long))

    def forward(self, x):
        return self.high(self.low(x).tanh())


@pytest.mark.parametrize(("after", "status"), [(5, "passed"), (10_000, "violated")])
def test_a_part_that_the_step_thaws_later_is_waiting(after, status):
    def step(model, optimizer, inputs, targets):
        model.low.requires_grad_(bool(model.done >= after))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        model.done += 1
        return loss.detach()

    torch.manual_seed(0)
    (found,) = (
        Contract(
            model=Tower(),
            batch=(torch.randn(6, 4), torch.arange(6) % 3),
            train_step=step,
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        )
        .check(["weights-update"])
        .findings
    )
    assert found.status == status


class Gathering:
    """Adds up the gradients of some batches before it applies them."""

    def __init__(self, count, dropout=0.0):
        self.count, self.dropout, self.calls = count, dropout, 0

    def __call__(self, model, optimizer, inputs, targets):
        self.calls += 1
        x = F.dropout(inputs[0], self.dropout)
        loss = F.cross_entropy(model(x), targets)
        (loss / self.count).backward()
        if self.calls % self.count == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()


def never_steps(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    return loss.detach()


@pytest.mark.parametrize(
    ("step", "status"),
    [(Gathering(24), "passed"), (Gathering(48, dropout=0.1), "passed"), (never_steps, "violated")],
)
def test_a_step_may_gather_the_gradients_of_many_batches(step, status):
    torch.manual_seed(0)
    (found,) = (
        Contract(
            model=Tower(),
            batch=(torch.randn(6, 4), torch.arange(6) % 3),
            train_step=step,
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        )
        .check(["weights-update"])
        .findings
    )
    assert found.status == status


class Streaming(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.past = nn.GRUCell(4, 5), None

    def forward(self, x):
        fits = self.past is not None and len(self.past) == len(x)
        out = self.cell(x, self.past if fits else None)
        self.past = out.detach()
        return out


class Resettable(Streaming):
    def begin(self):
        """Forget the stream before."""
        self.past = None


@pytest.mark.parametrize(("model", "status"), [(Streaming, "violated"), (Resettable, "suspicious")])
def test_state_that_a_method_resets_is_its_callers_matter(model, status):
    (found,) = Contract(model=model(), inputs="B 4").check(["eval-purity"]).findings
    assert (found.code, found.status) == ("eval-not-repeatable", status)
    assert ("(begin)" in found.cause) == (status == "suspicious")


def of_each(output, targets):
    """Sums over the points of each sample, of which there are as many as its own list says."""
    total = 0.0
    for scores, target in zip(output, targets, strict=True):
        total = total + (scores.sum() - target["marks"].float().sum()) ** 2
    return total / len(output)


def test_entries_of_a_list_of_samples_are_no_batches_though_one_is_as_long():
    targets = [{"marks": torch.arange(n) % 3} for n in (2, 5, 1, 4)]
    made = Contract(model=nn.Linear(3, 2), batch=(torch.randn(4, 3), targets), loss=of_each)
    assert Subject(made).source.axes("B") == {"x": 0}
    pair = torch.zeros(4), torch.zeros(7)
    made = Contract(model=nn.Linear(3, 2), batch=(torch.randn(4, 3), pair), loss=of_each)
    assert Subject(made).source.axes("B") == {"x": 0, "y[0]": 0}


def test_a_gradient_that_the_step_holds_back_in_its_first_steps_is_waiting():
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        if model.done < 4:
            model.high.weight.grad = None
        optimizer.step()
        model.done += 1
        return loss.detach()

    torch.manual_seed(0)
    (found,) = (
        Contract(
            model=Tower(),
            batch=(torch.randn(6, 4), torch.arange(6) % 3),
            train_step=step,
            optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        )
        .check(["weights-update"])
        .findings
    )
    assert found.status == "passed"
