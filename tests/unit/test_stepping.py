"""Optimizers whose step evaluates the loss get a closure; others none."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.stepping import take_step

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 5, generator=G), torch.randint(0, 3, (8,), generator=G)


class Twice(torch.optim.SGD):
    """Asks for a closure, as sharpness-aware optimizers do, although its default is None."""

    def step(self, closure=None):
        if closure is None:
            raise ValueError("Twice evaluates the loss: give a closure")
        closure()
        super().step()


class Counting(torch.optim.SGD):
    calls = 0

    def step(self, closure=None):
        Counting.calls += closure is not None
        return super().step(closure)


def classifier():
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3))


@pytest.mark.parametrize(
    "make",
    [
        lambda model: torch.optim.LBFGS(model.parameters(), max_iter=4),
        lambda model: Twice(model.parameters(), lr=0.1),
    ],
    ids=["lbfgs", "twice"],
)
def test_a_closure_is_given_where_the_step_needs_one(make):
    contract = Contract(model=classifier, batch=((X,), Y), loss=F.cross_entropy, optimizer=make)
    report = contract.check(["backward", "weights-update", "repeatable-steps", "resume"])
    assert {f.status for f in report.findings} <= {"passed", "not-applicable"}, str(report)


def test_other_optimizers_get_none_and_their_errors_keep_their_message():
    model = classifier()
    take_step(Counting(model.parameters(), lr=0.1), lambda: pytest.fail("not to be called"))
    assert Counting.calls == 0

    class Broken(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError("the schedule has no steps")

    with pytest.raises(ZeroDivisionError, match="no steps"):
        take_step(Broken(model.parameters(), lr=0.1), lambda: torch.zeros(()))


class Decodes(nn.Module):
    """Generates token ids greedily; nothing floating-point comes out."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(9, 6), nn.Linear(6, 9)

    def forward(self, ids):
        for _ in range(3):
            following = self.head(self.table(ids).mean(1)).argmax(-1, keepdim=True)
            ids = torch.cat([ids, following], 1)
        return ids


class Cut(Decodes):
    """Returns scores that carry no graph: that is a mistake."""

    def forward(self, ids):
        return self.head(self.table(ids).mean(1)).detach()


def test_a_module_that_only_generates_integers_has_nothing_to_train_on():
    ids = torch.randint(0, 9, (4, 5), generator=G)
    report = Contract(model=Decodes, batch=((ids,), None)).check(["backward", "gradients-exist"])
    assert {f.status for f in report.findings} == {"not-applicable"}, str(report)
    report = Contract(model=Cut, batch=((ids,), None)).check(["backward"])
    assert not report.ok
