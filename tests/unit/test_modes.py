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


class Loads(Body):
    def train(self, data=None, epochs=3):
        if data is None:
            raise ValueError("no data")
        return super().train()


class Counts(Body):
    def train(self, epochs=3):
        super().train()
        raise SystemExit(f"trains {epochs} epochs")


class Named(Body):
    def train(self, *, mode=True):
        return super().train(mode)


class Scores(Body):
    def eval(self, data):
        return [self(x) for x in data]


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


@pytest.mark.parametrize("cls", [Loop, Without, Optional, Loads, Counts, Named, Scores])
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
    assert own_trains(Outer(Scores)) == ("body",)


def test_a_train_that_needs_the_mode_is_given_it():
    def build():
        model = Outer(Freezes)
        with pytest.raises(TypeError):
            model.body.train()
        return model

    report = Contract(model=build, batch=((X,), Y), loss=F.cross_entropy).check(
        ["mode-flags", "backward", "gradients-exist", "eval-determinism"]
    )
    assert report.ok, str(report)
    assert {f.status for f in report.findings} == {"passed"}, str(report)


class Refuses(Body):
    def train(self, mode=True):
        if mode:
            raise RuntimeError("prepare() comes first")
        return super().train(mode)


class Set(Body):
    def __setattr__(self, name, value):
        if name == "training" and "drop" in self._modules:
            raise RuntimeError("prepare() comes first")
        super().__setattr__(name, value)


@pytest.mark.parametrize("cls", [Refuses, Set])
def test_a_train_that_raises_is_said_in_plain_words(cls):
    for make in (cls, lambda: Outer(cls), cls()):
        report = Contract(model=make, batch=((X,), Y), loss=F.cross_entropy).check()
        assert not list(report.with_status("error")), str(report)
        assert not list(report.with_status("violated")), str(report)
        said = {f.summary for f in report.findings if f.code == "not-measurable"}
        (text,) = said
        assert text.startswith("train() of the model raises RuntimeError: prepare() comes first;")


class Listless(Body):
    def buffers(self, recurse=True):
        raise RuntimeError("no list of buffers")


class Childless(Body):
    def children(self):
        raise RuntimeError("no list of children")


@pytest.mark.parametrize("cls", [Listless, Childless])
def test_a_model_whose_parts_cannot_be_listed_is_told_once(cls):
    report = Contract(model=lambda: Outer(cls), batch=((X,), Y), loss=F.cross_entropy).check()
    assert [f.code for f in report.with_status("violated")] == ["crash"]
    assert not list(report.with_status("error")), str(report)


class Fixed(Body):
    def _apply(self, fn, recurse=True):
        raise RuntimeError("the weights are packed")


def test_a_model_that_refuses_another_dtype_is_not_blamed():
    report = Contract(model=Fixed, batch=((X,), Y), loss=F.cross_entropy).check()
    assert report.ok, str(report)
    assert any("cannot be cast to torch.float64" in f.summary for f in report.findings)
