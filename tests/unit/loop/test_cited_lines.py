"""The lines beside the call at fault: the forward that finds old gradients, the line that turned gradients off."""

from __future__ import annotations

import inspect

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels


def model():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))


def line(function, text):
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, one in enumerate(lines) if text in one)


def check(step, name):
    torch.manual_seed(0)
    made = Contract(
        model=model,
        inputs="B 4",
        targets=Labels("B", classes=3),
        loss=F.cross_entropy,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        train_step=step,
    )
    return [f for f in made.check([name]).findings if f.status in ("violated", "suspicious")]


def never_cleared(model, optimizer, inputs, targets):
    logits = model(*inputs)
    loss = F.cross_entropy(logits, targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_the_forward_that_finds_old_gradients_is_cited():
    (found,) = check(never_cleared, "step-protocol")
    assert found.code == "zero-grad-missing"
    assert line(never_cleared, "model(*inputs)") in {
        c.location.line for c in found.culprits if c.location is not None
    }


def named_only(model, optimizer, inputs, targets):
    optimizer.zero_grad  # noqa: B018
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def test_a_call_without_parentheses_is_cited():
    (found,) = check(named_only, "step-protocol")
    assert found.code == "zero-grad-missing"
    assert found.location.line == line(named_only, "optimizer.zero_grad")
    assert "does not call it" in found.cause
    assert "add the parentheses" in found.fix


def by_block(model, inputs):
    with torch.no_grad():
        return model(*inputs)


@torch.no_grad()
def by_decorator(model, inputs):
    return model(*inputs)


def by_call(model, inputs):
    torch.set_grad_enabled(False)
    try:
        return model(*inputs)
    finally:
        torch.set_grad_enabled(True)


def stepping(evaluation, *, right=False):
    def validate(model, inputs):
        model.train(not right)
        evaluation(model, inputs)
        model.train()

    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        validate(model, inputs)
        return loss.detach()

    return step


WAYS = [(by_block, "with torch.no_grad"), (by_decorator, "@torch.no_grad"), (by_call, "enabled(False)")]  # fmt: skip


@pytest.mark.parametrize(("way", "text"), WAYS)
def test_the_line_that_turned_gradients_off_is_cited(way, text, monkeypatch):
    # the name of the function says that it evaluates
    code = way.__wrapped__ if hasattr(way, "__wrapped__") else way
    renamed = code.__code__.replace(co_name="evaluate", co_qualname="evaluate")
    monkeypatch.setattr(code, "__code__", renamed)
    (found,) = check(stepping(way), "evaluation-leaves-trace")
    assert found.code == "evaluation-updates-statistics"
    missing = next(c for c in found.culprits if c.name == "eval")
    assert missing.location.line == line(code, text)
    assert not check(stepping(way, right=True), "evaluation-leaves-trace")


class Players(nn.Module):
    def __init__(self):
        super().__init__()
        self.maker, self.judge = nn.Linear(4, 4), nn.Linear(4, 1)

    def forward(self, x):
        return self.judge(self.maker(x))


def clears_its_own(model, optimizers, inputs, targets):
    makes, judges = optimizers
    makes.zero_grad()
    F.softplus(-model(*inputs)).mean().backward()
    makes.step()
    makes.zero_grad()  # once more
    loss = F.softplus(model(*inputs)).mean()
    loss.backward()
    judges.step()
    return loss.detach()


def clears_nothing(model, optimizers, inputs, targets):
    makes, judges = optimizers
    makes.zero_grad()
    F.softplus(-model(*inputs)).mean().backward()
    makes.step()
    loss = F.softplus(model(*inputs)).mean()
    loss.backward()
    judges.step()
    return loss.detach()


@pytest.mark.parametrize(
    ("step", "text"), [(clears_its_own, "# once more"), (clears_nothing, "loss.backward()")]
)
def test_the_zero_grad_of_the_wrong_optimizer_is_cited(step, text):
    def both(model):
        return tuple(
            torch.optim.SGD(part.parameters(), lr=0.1) for part in (model.maker, model.judge)
        )

    torch.manual_seed(0)
    made = Contract(model=Players, inputs="B 4", optimizer=both, train_step=step)
    found = [f for f in made.check(["step-protocol"]).findings if f.code == "zero-grad-missing"]
    assert [f.location.line for f in found] == [line(step, text)]


def windows(rest):
    def step(model, optimizer, inputs, targets):
        parts = list(zip(inputs[0].split(2), targets.split(2), strict=True))
        optimizer.zero_grad()
        for number, (x, y) in enumerate(parts):
            loss = F.cross_entropy(model(x), y)
            (loss / 2).backward()
            full = (number + 1) % 2 == 0 or (rest and number + 1 == len(parts))  # HERE
            if full:
                optimizer.step()
                optimizer.zero_grad()
        return loss.detach()

    return step


def carried_on(model, optimizer, inputs, targets):
    for x, y in zip(inputs[0].split(2), targets.split(2), strict=True):
        loss = F.cross_entropy(model(x), y)
        (loss / 2).backward()
        model.seen = getattr(model, "seen", 0) + 1
        if model.seen % 2 == 0:
            optimizer.step()
            optimizer.zero_grad()
    return loss.detach()


@pytest.mark.parametrize(
    ("step", "blamed"),
    [(windows(rest=False), True), (windows(rest=True), False), (carried_on, False)],
    ids=["dropped", "applied", "carried on"],
)
def test_the_last_pass_of_a_call_that_no_step_applies(step, blamed):
    torch.manual_seed(0)
    batch = (torch.randn(6, 4),), torch.arange(6) % 3
    made = Contract(
        model=lambda: nn.Linear(4, 3), batch=batch, loss=F.cross_entropy, train_step=step,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    )  # fmt: skip
    found = [f for f in made.check(["step-protocol"]).findings if f.code == "pass-lost"]
    assert bool(found) is blamed
    for one in found:
        assert one.location.text.endswith("# HERE")


def given(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def own(model, optimizer, inputs, targets):
    return given(model, torch.optim.Adam(model.parameters(), lr=0.01), inputs, targets)  # HERE


def also_own(model, optimizer, inputs, targets):
    own(model, optimizer, inputs, targets)
    return given(model, optimizer, inputs, targets)


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=0.01)


def plain(model):
    return torch.optim.SGD(model.parameters(), lr=0.01)


@pytest.mark.parametrize(
    ("step", "optimizer", "status"),
    [
        (own, adam, "violated"),
        (own, plain, "suspicious"),
        (also_own, adam, None),
        (given, adam, None),
    ],
)
def test_an_optimizer_that_each_call_makes(step, optimizer, status):
    torch.manual_seed(0)
    made = Contract(
        model=model, inputs="B 4", targets=Labels("B", classes=3), loss=F.cross_entropy,
        optimizer=optimizer, train_step=step,
    )  # fmt: skip
    findings = made.check(["optimizer-coverage"]).findings
    found = [f for f in findings if f.code == "optimizer-remade"]
    assert [f.status for f in found] == ([status] if status else [])
    for one in found:
        assert one.location.text.endswith("# HERE")


class Wrapped(torch.optim.Optimizer):
    """Lets another optimizer step."""

    def __init__(self, base):
        super().__init__(base.param_groups, base.defaults)
        self.base, self.param_groups = base, base.param_groups

    def step(self, closure=None):
        return self.base.step(closure)


def two(model):
    made = torch.optim.SGD(model.parameters(), lr=0.1)
    made.other = torch.optim.Adam(model[0].parameters())
    return made


def both(model, made, inputs, targets):
    loss = given(model, made, inputs, targets)
    made.other.step()
    return loss


@pytest.mark.parametrize(
    ("optimizer", "step", "blamed"),
    [(two, both, True), (two, given, False), (lambda m: Wrapped(adam(m)), given, False)],
    ids=["both step", "one steps", "wrapped"],
)
def test_two_optimizers_of_which_one_hangs_on_the_other(optimizer, step, blamed):
    torch.manual_seed(0)
    made = Contract(
        model=model, inputs="B 4", targets=Labels("B", classes=3), loss=F.cross_entropy,
        optimizer=optimizer, train_step=step,
    )  # fmt: skip
    found = [f for f in made.check(["optimizer-coverage"]).findings if f.status == "violated"]
    assert [f.code for f in found] == (["optimizer-twice"] if blamed else [])
