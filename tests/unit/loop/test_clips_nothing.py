"""A clipping that is given nothing: an iterator that was used up, or a group that is empty on purpose."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises

X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(1, -1, 16).view(8, 2)


def findings(clip, make=None, promised=()):
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        clip(model)
        optimizer.step()
        return loss.detach()

    report = Contract(
        model=nn.Linear(3, 2),
        batch=((X,), Y),
        loss=F.mse_loss,
        train_step=step,
        optimizer=make or (lambda m: torch.optim.SGD(m.parameters(), lr=1e-2)),
        promises=promised,
    ).check(["step-protocol", *(["gradient-clipping"] if promised else [])])
    return [f for f in report.findings if f.status != "passed"]


def test_a_generator_that_the_first_call_used_up():
    class Keeper:
        def make(self, model):
            self.weights = (p for p in model.parameters())
            return torch.optim.SGD(model.parameters(), lr=1e-2)

        def clip(self, model):
            nn.utils.clip_grad_norm_(self.weights, 1.0)

    keeper = Keeper()
    (found,) = findings(keeper.clip, keeper.make)
    assert found.code == "clip-nothing"
    assert found.location.text == "self.weights = (p for p in model.parameters())"
    assert "in an earlier call" in found.cause


def trained(model):
    return itertools.islice(model.parameters(), 2)


@pytest.mark.parametrize("helper", [False, True])
def test_an_iterator_that_a_logged_norm_reads_first(helper):
    def chained(model):
        weights = itertools.chain.from_iterable([[model.weight], [model.bias]])
        size = sum(p.grad.norm() for p in weights)
        nn.utils.clip_grad_norm_(weights, 1e-3 + 0 * float(size))

    def sliced(model):
        chosen = trained(model)
        size = sum(p.grad.norm() for p in chosen)
        nn.utils.clip_grad_norm_(chosen, 1e-3 + 0 * float(size))

    (found,) = findings(sliced if helper else chained)
    assert found.code == "clip-nothing"
    assert found.location.text.startswith("chosen = " if helper else "weights = ")


def test_parameters_that_are_chosen_through_an_iterator_with_nothing_left():
    def clip(model):
        biases = map(id, [model.bias])
        chosen = [p for p in model.parameters() if id(p) in biases]
        nn.utils.clip_grad_norm_(chosen, 1.0)

    (found,) = findings(clip, promised=(promises.ClipsGradients(1e-3),))
    assert found.code == "clip-nothing"
    assert found.location.text == "biases = map(id, [model.bias])"
    assert "the first `in`" in found.cause
    assert "biases = set(...)" in found.fix


def test_an_empty_group_is_no_finding():
    def clip(model):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        nn.utils.clip_grad_norm_([], 1.0)
        frozen = filter(lambda p: not p.requires_grad, model.parameters())
        nn.utils.clip_grad_norm_(frozen, 1.0)

    assert not findings(clip)


def is_weight(p):
    return p.dim() > 1


def test_an_iterator_under_another_name_is_told_by_the_line_that_makes_it():
    kept, held = {}, {}

    def by_lambda(model):
        trained = filter(lambda p: p.requires_grad, model.parameters())  # HERE
        kept["all"] = kept["trained"] = trained
        return torch.optim.SGD(trained, lr=1e-2)  # READ

    def by_function(model):
        held["trained"] = trained = filter(is_weight, model.parameters())  # HERE
        return torch.optim.SGD(trained, lr=1e-2)  # READ

    def clips_kept(model):
        nn.utils.clip_grad_norm_(kept["trained"], 1.0)

    def clips_held(model):
        nn.utils.clip_grad_norm_(held["trained"], 1.0)

    for clip, make in ((clips_kept, by_lambda), (clips_held, by_function)):
        (found,) = findings(clip, make)
        assert found.code == "clip-nothing"
        assert "an exhausted iterator" in found.summary
        assert "# HERE" in found.location.text
        assert any("# READ" in c.location.text for c in found.culprits)


def test_a_filter_that_lets_nothing_through_is_no_finding_though_a_line_reads_it_after():
    def clip(model):
        frozen = filter(lambda p: not p.requires_grad, model.parameters())
        nn.utils.clip_grad_norm_(frozen, 1.0)
        for p in frozen:
            p.grad = None

    assert not findings(clip)


def test_a_gradient_of_zero_is_clipped_in_the_right_order():
    """A dead model, a loss that was made anew, gradients that are set by hand: the clipping stands where it should."""

    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Linear(3, 2)
            nn.init.constant_(self.body.bias, -100.0)

        def forward(self, x):
            return torch.relu(self.body(x))

    def plain(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    def by_hand(model, optimizer, inputs, targets):
        weights = list(model.parameters())
        loss = F.mse_loss(model(*inputs), targets)
        for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.grad = gradient
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        return loss.detach()

    def too_early(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    def codes(model, step):
        report = Contract(model=model, batch=((X,), Y), loss=F.mse_loss, train_step=step,
                          optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=1e-2))  # fmt: skip
        return [f.code for f in report.check(["step-protocol"]).causes]

    assert codes(Dead, plain) == []
    assert codes(nn.Linear(3, 2), by_hand) == []
    assert codes(nn.Linear(3, 2), too_early) == ["clip-before-backward"]


class Trainer:
    """Calls a hook that clips, and a closure that differentiates, in one order or the other."""

    def __init__(self, *, first):
        self.first = first

    def clip(self, model):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    def run(self, model, optimizer, inputs, targets):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(*inputs), targets)
            loss.backward()
            return loss

        def wrapped():
            if self.first:
                self.clip(model)  # too early
                return closure()
            loss = closure()
            self.clip(model)
            return loss

        return optimizer.step(wrapped)


@pytest.mark.parametrize("first", [False, True])
def test_an_order_is_told_in_the_function_that_leads_to_both_calls(first):
    report = Contract(
        model=lambda: nn.Linear(3, 2), batch=((torch.randn(6, 3),), torch.randn(6, 2)),
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), train_step=Trainer(first=first).run,
    ).check(["step-protocol"])  # fmt: skip
    assert report.ok is not first
    for found in report.failing:
        assert found.code == "clip-before-backward"
        assert found.location.text.endswith("# too early")
        assert found.culprits[0].location.text.startswith("nn.utils.clip_grad_norm_")
