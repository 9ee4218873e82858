"""Classes whose ``train`` is a training loop are checked all the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.objects.modes import own_trains

G = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 5, generator=G), torch.randint(0, 3, (8,), generator=G)


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.drop = nn.Linear(5, 3), nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.inner(x))


class Loop(Body):
    def train(self, data, epochs=3):
        return [self(x) for x in data for _ in range(epochs)]


class Without(Body):
    def train(self):
        raise SystemExit("trains for an hour")


class Optional(Body):
    def train(self, data=None, epochs=3):
        raise SystemExit("trains for an hour")


class Freezes(Body):
    def train(self, flag):
        super().train(flag)
        self.inner.eval()
        return self


class Outer(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.body = inner()

    def forward(self, x):
        return self.body(x)


@pytest.mark.parametrize("cls", [Loop, Without, Optional])
def test_another_meaning_of_train_is_reported_once_and_hides_nothing(cls):
    for make in (cls, lambda: Outer(cls)):
        report = Contract(model=make, batch=((X,), Y), loss=F.cross_entropy).check(
            ["mode-flags", "backward", "gradients-exist", "eval-determinism", "copy-and-pickle"]
        )
        assert [f.code for f in report.with_status("suspicious")] == ["train-overridden"]
        assert report.ok, str(report)
        assert not list(report.with_status("inconclusive")), str(report)


def test_the_users_instance_is_put_back_and_its_own_train_still_runs():
    model = Loop()
    before = dict(vars(model))

    def step(model, optimizer, inputs, targets):
        assert len(model.train([inputs[0]], epochs=2)) == 2
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        return loss

    report = Contract(
        model=model,
        batch=((X,), Y),
        loss=F.cross_entropy,
        train_step=step,
        optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3),
    ).check(["backward", "eval-purity"])
    assert report.ok, str(report)
    assert vars(model).keys() == before.keys()


def test_a_train_that_takes_the_mode_is_left_alone():
    assert own_trains(Outer(Freezes)) == ()
    assert own_trains(Outer(Loop)) == ("body",)
