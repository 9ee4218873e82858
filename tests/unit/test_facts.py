"""The facts of a forward are taken once, from the pristine state, and are those of a plain call."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.loop import checkpoints
from pytest_torchcheck.loop.resume import is_resumed
from pytest_torchcheck.objects.trees import tensors
from pytest_torchcheck.runs.facts import evaluated, forward_facts, outputs
from pytest_torchcheck.runs.losses.consumption import evidence as loss_evidence
from pytest_torchcheck.runs.training import steps
from pytest_torchcheck.runs.training.few import later_batch
from pytest_torchcheck.runs.training.observation import observe
from pytest_torchcheck.runs.training.steps import trajectory
from pytest_torchcheck.subject import Subject


class Counted(nn.Module):
    """Counts its calls, and does what ``extra`` does."""

    def __init__(self, extra=None):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("total", torch.zeros(1))
        self.extra = extra
        self.kept = []

    def forward(self, x):
        calls.append(self.training)
        y = self.layer(x)
        return y if self.extra is None else self.extra(self, x, y)


calls: list[bool] = []


def subject_of(extra=None):
    calls.clear()
    torch.manual_seed(0)
    return Subject(Contract(model=Counted(extra), batch=((torch.randn(4, 4),), None)))


def count(module, x, y):
    module.total += 1
    return y


def count_into_output(module, x, y):
    module.total += 1
    return y + module.total


def keep(module, x, y):
    module.kept.append(y)
    return y


def double_input(module, x, y):
    x.mul_(2)
    return y


def draw(module, x, y):
    torch.rand(1)
    return y


def random_output(module, x, y):
    return y + torch.rand(1)


def own_graph(module, x, y):
    with torch.enable_grad():
        return module.layer(x)


def return_buffer(module, x, y):
    module.total += y.sum()
    return module.total


def test_one_look_serves_every_question():
    subject = subject_of()
    first = forward_facts(subject)
    assert forward_facts(subject) is first
    assert outputs(subject) is first.outputs
    assert outputs(subject, subject.batch()) is first.outputs
    # of some samples, of all, and of some again with another seed under the count of bytes
    assert calls == [False] * 3
    assert outputs(subject, subject.few(subject.batch()))
    assert calls == [False] * 3
    assert forward_facts(subject, train=True).repeats is None
    assert calls[3:] == [True]


def test_outputs_are_those_of_a_plain_call():
    subject = subject_of()
    with torch.no_grad():
        expected = subject.model.eval()(subject.batch().args[0])
    assert torch.equal(outputs(subject)["output"], expected)
    fresh = outputs(subject, subject.batch().clone())
    assert torch.equal(fresh["output"], expected)
    assert len(calls) == 1 + 2 + 1 + 1


@pytest.mark.parametrize("extra", [keep, random_output])
def test_what_is_not_decided_by_another_seed_is_asked_with_the_same(extra):
    subject = subject_of(extra)
    seen = forward_facts(subject)
    assert calls == [False] * 4
    assert (seen.repeats, seen.steady) == (True, extra is keep)


@pytest.mark.parametrize("draws", ["torch", "numpy", "random"])
def test_whose_random_state_moved(draws):
    def extra(module, x, y):
        module.number = {
            "torch": lambda: torch.rand(1),
            "numpy": lambda: np.random.rand(),
            "random": lambda: random.random(),
        }[draws]()
        return y

    seen = forward_facts(subject_of(extra))
    assert (seen.consumed, seen.others_moved) == (draws == "torch", draws != "torch")


def pair(module, x, y):
    return {"scores": y, "both": [y, (x, 3)]}


class Odd:
    """Holds a tensor in its own way."""

    def __init__(self, scores):
        self.scores = scores


@pytest.mark.parametrize(("extra", "more"), [(None, 0), (pair, 0), (lambda m, x, y: Odd(y), 1)])
def test_the_evaluated_output_is_a_copy_of_the_one_that_was_seen(extra, more):
    subject = subject_of(extra)
    forward_facts(subject)
    count_then = len(calls)
    first, second = evaluated(subject), evaluated(subject)
    assert len(calls) - count_then == 2 * more
    assert type(first) is type(second) is type(subject.forward())
    pairs = list(zip(tensors(first).values(), tensors(second).values(), strict=True))
    assert all(made.is_leaf and torch.equal(made, again) for made, again in pairs)
    for made, again in pairs:
        made.fill_(7.0)
        assert not torch.equal(made, again)
    if extra is pair:
        assert first["scores"] is first["both"][0]


class Dropped(nn.Module):
    """Drops out, and may seed torch first."""

    def __init__(self, seed=None):
        super().__init__()
        self.layer, self.seed = nn.Linear(4, 3), seed

    def forward(self, x):
        calls.append(self.training)
        if self.seed is not None and self.training:
            torch.manual_seed(self.seed)
        return F.dropout(self.layer(x), 0.5, self.training)


@pytest.mark.parametrize(("seed", "status"), [(None, "passed"), (0, "violated"), (1, "violated")])
def test_seeding_asks_the_steps_that_ran_anyway(seed, status):
    contract = Contract(
        model=Dropped(seed),
        batch=((torch.randn(4, 4),), torch.tensor([0, 1, 2, 0])),
        loss=F.cross_entropy,
    )
    calls.clear()
    contract.check(["backward", "output-stability"])
    before = len(calls)
    calls.clear()
    found = [
        f
        for f in contract.check(["backward", "output-stability", "seeding"]).findings
        if f.check == "seeding"
    ]
    assert [f.status for f in found] == [status]
    # one run more looks for noise that samples share, unless the steps have shown that only a dropout draws
    assert (len(calls) > before) if seed is not None else (len(calls) <= before + 1)


@pytest.mark.parametrize(
    ("extra", "repeats", "grows"),
    [
        (None, True, False),
        (count, False, False),
        (count_into_output, False, False),
        (keep, True, True),
        (draw, True, False),
    ],
)
def test_what_a_call_leaves_behind(extra, repeats, grows):
    seen = forward_facts(subject_of(extra))
    assert (seen.repeats, seen.grows) == (repeats, grows)


def test_a_second_call_that_raises_is_a_reason_to_look():
    def once(module, x, y):
        if len(calls) > 2:
            raise RuntimeError("full")
        return y

    seen = forward_facts(subject_of(once))
    assert (seen.repeats, seen.grows) == (False, True)


@pytest.mark.parametrize("train", [False, True])
def test_inputs_graphs_and_random_numbers(train):
    assert forward_facts(subject_of(double_input), train=train).changed_inputs == ("x",)
    assert forward_facts(subject_of(own_graph), train=train).with_graph == ("output",)
    assert forward_facts(subject_of(draw), train=train).consumed
    plain = forward_facts(subject_of(), train=train)
    assert (plain.changed_inputs, plain.with_graph, plain.consumed) == ((), (), False)
    assert plain.inputs == 1


def test_an_output_that_is_the_models_own_is_copied():
    subject = subject_of(return_buffer)
    seen = forward_facts(subject).outputs["output"]
    assert bool(seen != 0)
    assert bool(subject.model.total == 0)  # put back
    assert torch.equal(outputs(subject, subject.batch().clone())["output"], seen)


def trained(optimizer, loss=F.cross_entropy):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.Linear(8, 3))
    batch = ((torch.randn(6, 4),), torch.randint(0, 3, (6,)))
    return Subject(Contract(model=model, batch=batch, loss=loss, optimizer=optimizer))


def adam(model):
    return torch.optim.Adam(model.parameters(), lr=1e-2)


class Forgetful(torch.optim.Adam):
    def state_dict(self):
        return super().state_dict() | {"state": {}}


def test_the_first_step_shows_the_gradients_of_a_plain_backward():
    subject = trained(adam)
    trajectory(subject)
    assert ("gradients", 0, 0, None, True) in subject.cache
    assert subject.gradients() == trained(adam).gradients()


def test_a_resumed_run_is_compared_with_the_steps_that_ran_anyway():
    held = is_resumed(trained(adam))
    assert held is not None
    assert {"model", "optimizer"} <= set(held)
    assert is_resumed(trained(lambda m: Forgetful(m.parameters(), lr=1e-2))) is None


def test_the_step_before_the_checkpoint_is_the_first_of_those_that_ran_anyway(monkeypatch):
    class Counting(torch.optim.Adam):
        def step(self, closure=None):
            steps.append(1)
            super().step(closure)

    steps = []
    subject = trained(lambda m: Counting(m.parameters(), lr=1e-2))
    assert is_resumed(subject) == ("model", "optimizer")
    assert len(steps) == 3 + 2
    # what was loaded has been written to: asked again, it takes a checkpoint of its own, as for a large model
    assert is_resumed(subject) == ("model", "optimizer")
    assert len(steps) == 5 + 3
    monkeypatch.setattr(checkpoints, "_KEPT_BYTES", 16)
    large = trained(adam)
    assert is_resumed(large) == ("model", "optimizer")
    assert not any("checkpoint" in str(key) for key in large.cache)


def test_a_state_that_cannot_be_taken_is_told_by_the_run_that_needs_it():
    class Silent(torch.optim.Adam):
        def state_dict(self):
            raise ValueError("no state")

    subject = trained(lambda m: Silent(m.parameters(), lr=1e-2))
    assert len(trajectory(subject).losses) == 3
    with pytest.raises(ValueError, match="no state"):
        is_resumed(subject)


def test_what_is_done_every_third_step_shows_in_a_resumed_run():
    class Lookahead(torch.optim.SGD):
        """Halves the weights at every third step, which it counts and does not save."""

        def __init__(self, parameters):
            super().__init__(parameters, lr=1e-2)
            self.count = 0

        def step(self, closure=None):
            super().step(closure)
            self.count += 1
            if self.count % 3 == 0:
                with torch.no_grad():
                    for parameter in self.param_groups[0]["params"]:
                        parameter.mul_(0.5)

    assert is_resumed(trained(lambda m: Lookahead(m.parameters()))) is None


@pytest.fixture
def nothing_compiled(monkeypatch):
    """As in a process in which no other test has compiled anything."""
    frames = pytest.importorskip("torch._dynamo.eval_frame")
    monkeypatch.setattr(frames, "cached_backends", {id(None): None})


@pytest.mark.usefixtures("nothing_compiled")
def test_the_first_step_is_watched_and_shows_what_a_step_of_its_own_shows():
    def loss(output, target):
        return F.cross_entropy(output, target)

    def told(subject):
        seen = loss_evidence(subject)
        (one,) = seen.consumed
        place = (one.place.file, one.place.line)
        return seen.value, seen.outputs, seen.broadcasts, place, one.weight, one.entropy, one.rising

    subject, other = trained(adam, loss), trained(adam, loss)
    made = trajectory(subject)
    assert {"observation", "loss"} <= set(subject.cache)
    again = steps._steps(other, later_batch(other, few=True))
    assert made == dataclasses.replace(again, few=made.few, live_bytes=made.live_bytes)
    assert not {"observation", "loss"} & set(other.cache)
    assert subject.gradients() == other.gradients()
    seen, own = observe(subject), observe(other)
    assert repr(seen.signals) == repr(own.signals)
    assert (seen.held, seen.changed, seen.late, seen.regions) == ((), (), (), 0)
    assert told(subject) == told(other)
    assert made.end is not None
    assert is_resumed(subject) is not None


@pytest.mark.usefixtures("nothing_compiled")
def test_a_step_that_raises_is_told_by_one_that_nobody_watches():
    def refuse(module, x, y):
        raise ValueError("no")

    subject = subject_of(refuse)
    made = trajectory(subject)
    assert len(calls) == 3  # what raises is called again once: does it raise each time?
    assert made.error is not None
    assert str(made.error.error) == "no"
    assert "observation" not in subject.cache


def freeze(model):
    model[0].weight.requires_grad_(False)
    return adam(model)


def scale(model):
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    return adam(model)


def mark(model):
    model.note = [1, 2]
    return adam(model)


@pytest.mark.usefixtures("nothing_compiled")
@pytest.mark.parametrize("optimizer", [freeze, scale, mark])
def test_a_model_that_making_the_optimizer_changes_is_watched_by_itself(optimizer):
    subject = trained(optimizer)
    other, made = trained(optimizer), trajectory(subject)
    again = steps._steps(other, later_batch(other, few=True))
    assert made == dataclasses.replace(again, few=made.few, live_bytes=made.live_bytes)
    assert not {"observation", "loss"} & set(subject.cache)


def test_where_something_is_compiled_no_step_is_watched(monkeypatch):
    frames = pytest.importorskip("torch._dynamo.eval_frame")
    monkeypatch.setitem(frames.cached_backends, 1, object())
    subject = trained(adam)
    trajectory(subject)
    assert not {"observation", "loss"} & set(subject.cache)


@pytest.mark.usefixtures("nothing_compiled")
def test_a_loss_that_is_called_again_by_its_evidence_is_watched_apart():
    losses = []

    def loss(output, target):
        losses.append(1)
        return F.mse_loss(output, target)

    torch.manual_seed(0)
    batch = ((torch.randn(6, 4),), torch.randn(6, 3))
    subject = Subject(Contract(model=nn.Linear(4, 3), batch=batch, loss=loss))
    trajectory(subject)
    assert len(losses) == 3
    assert "loss" not in subject.cache
    assert "observation" in subject.cache
