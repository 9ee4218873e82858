"""Graphs that outlive a step: statistics that grow one, a memory of old embeddings, and what is meant so."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

X, Y = torch.linspace(-1, 1, 24).view(8, 3), torch.linspace(1, -1, 16).view(8, 2)


class Centred(nn.Module):
    """Subtracts the mean of the batch, and keeps a running one in a buffer that the training does not use."""

    def __init__(self, *, detach: bool) -> None:
        super().__init__()
        self.detach = detach
        self.linear = nn.Linear(3, 2)
        self.register_buffer("average", torch.zeros(2))

    def forward(self, x):
        h = self.linear(x)
        mean = h.mean(0)
        kept = mean.detach() if self.detach else mean
        if self.training:
            self.average = 0.9 * self.average + 0.1 * kept
        return h - (mean if self.training else self.average)


class Shows(nn.Module):
    """Keeps its last activation, with its graph, for whoever wants to look at it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x):
        self.shown = torch.tanh(self.linear(x))
        return self.shown


def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def contract(model: nn.Module, **fields: object) -> Contract:
    fields = {
        "loss": F.mse_loss,
        "optimizer": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
    } | fields
    return Contract(model=model, batch=((X,), Y), **fields)


def test_statistics_that_grow_a_graph_are_found_with_both_lines():
    report = contract(Centred(detach=False), train_step=step).check(["graph-kept", "step-leak"])
    found = {f.check: f for f in report.findings}
    kept = found["graph-kept"]
    assert (kept.status, kept.code) == ("violated", "graph-carried"), report
    assert kept.location.text.startswith("self.average = 0.9")
    assert "model.average" in kept.summary
    assert [c.location.text for c in kept.culprits if c.name == "kept"] == [
        "kept = mean.detach() if self.detach else mean"
    ]
    assert found["step-leak"].root == "graph-kept/graph-carried"


def test_the_plain_step_tells_it_too():
    (found,) = contract(Centred(detach=False)).check(["step-leak"]).findings
    assert (found.status, found.code) == ("violated", "leak-graph")
    assert found.location.text.startswith("self.average = 0.9")


@pytest.mark.parametrize("model", [Centred(detach=True), Shows()])
@pytest.mark.parametrize("train_step", [step, None])
def test_what_does_not_grow_is_no_finding(model, train_step):
    report = contract(model, train_step=train_step).check(["graph-kept", "step-leak"])
    assert not [f for f in report.findings if f.status == "violated"], report


def test_losses_that_are_summed_until_the_optimizer_steps_are_no_finding():
    state = {"calls": 0, "total": None}

    def every_tenth(model, optimizer, inputs, targets):
        loss = F.mse_loss(model(*inputs), targets)
        state["total"] = loss if state["total"] is None else state["total"] + loss
        state["calls"] += 1
        if state["calls"] % 10 == 0:
            optimizer.zero_grad()
            state["total"].backward()
            optimizer.step()
            state["total"] = None
        return loss.detach()

    report = contract(nn.Linear(3, 2), train_step=every_tenth).check(["graph-kept"])
    assert [f.status for f in report.findings] == ["passed"], report


class Bank:
    def __init__(self) -> None:
        self.old = None

    def put(self, z):
        self.old = z if self.old is None else torch.cat([z, self.old])[:16]


@pytest.mark.parametrize("detach", [False, True])
def test_a_memory_with_its_graph_is_one_cause(detach):
    bank = Bank()

    def optimizer(model):
        bank.old = None
        return torch.optim.SGD(model.parameters(), lr=1e-2)

    def remember(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        z = model(*inputs)
        loss = F.mse_loss(z, targets)
        if bank.old is not None:
            loss = loss + (z @ bank.old.t()).square().mean()
        loss.backward()
        optimizer.step()
        bank.put(z.detach() if detach else z)
        return loss.detach()

    report = contract(nn.Linear(3, 2), optimizer=optimizer, train_step=remember).check(
        ["backward", "graph-kept"]
    )
    bad = [f for f in report.findings if f.status == "violated"]
    if detach:
        assert not bad, report
        return
    first, second = bad
    assert (first.code, second.root) == ("second-backward", "backward/second-backward")
    assert first.location.text.startswith("self.old = z")
    assert "bank.old" in first.summary
    lines = {c.location.text for f in bad for c in f.culprits}
    assert "bank.put(z.detach() if detach else z)" in lines


class Shared(nn.Module):
    """Counts by how much each of two gates is used, and keeps all counts."""

    def __init__(self, *, detach: bool) -> None:
        super().__init__()
        self.detach = detach
        self.gate, self.linear = nn.Linear(3, 2), nn.Linear(3, 2)
        self.loads = []

    def count(self, weights):
        load = weights.sum(0)
        if self.detach:
            load = load.detach()
        self.loads.append(load / load.sum())
        del self.loads[:-500]

    def forward(self, x):
        weights = self.gate(x).softmax(1)
        self.count(weights)
        return self.linear(x) * weights


def test_what_brings_the_graph_into_a_kept_value_is_named():
    (found,) = contract(Shared(detach=False)).check(["step-leak"]).findings
    assert (found.status, found.code) == ("violated", "leak-graph")
    brought = {c.name: c.location.text for c in found.culprits if c.detail == "brings its graph"}
    assert brought == {"load": "load = weights.sum(0)"}
    assert "reads load" in found.because


def test_counts_without_a_graph_are_no_leak():
    report = contract(Shared(detach=True)).check(["step-leak"])
    assert not [f for f in report.findings if f.code == "leak-graph"], report


class Tally:
    """Adds up what it is given, and divides on another line."""

    def __init__(self) -> None:
        self.total, self.mean, self.seen = 0, 0, 0

    def record(self, number):
        self.total = self.total + number
        self.seen += 1
        self.mean = self.total / self.seen


def tallied(*, number: bool) -> Contract:
    tally = Tally()

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        loss = F.mse_loss(model(*inputs), targets)
        loss.backward()
        optimizer.step()
        tally.record(loss.item() if number else loss)
        return loss.detach()

    return contract(nn.Linear(3, 2), train_step=train_step)


def test_the_call_that_hands_a_loss_to_a_meter_is_named():
    (found,) = contract_findings(tallied(number=False))
    assert found.code == "graph-carried"
    assert found.culprits[0].name.startswith("tally.")
    call = "tally.record(loss.item() if number else loss)"
    assert call in [c.location.text for c in found.culprits if c.location is not None]


def test_a_meter_of_numbers_keeps_no_graph():
    assert not contract_findings(tallied(number=True))


def contract_findings(checked: Contract) -> list:
    return [f for f in checked.check(["graph-kept"]).findings if f.status == "violated"]


class Memory:
    """States of some steps, written into one tensor."""

    def __init__(self) -> None:
        self.states, self.slot = torch.zeros(4, 8, 2), 0

    def store(self, state):
        self.states[self.slot % 4] = state
        self.slot += 1


@pytest.mark.parametrize("detach", [False, True])
def test_a_tensor_that_is_written_to_in_every_step_is_told_by_the_writing_line(detach):
    memory = Memory()

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        output = model(*inputs)
        loss = F.mse_loss(output, targets)
        loss.backward()
        optimizer.step()
        memory.store(output.detach() if detach else output)
        return loss.detach()

    found = contract_findings(contract(nn.Linear(3, 2), train_step=train_step))
    assert len(found) == (not detach)
    for one in found:
        assert one.location.text == "self.states[self.slot % 4] = state"
        assert any("memory.store(" in c.location.text for c in one.culprits if c.location)
        assert "pass state.detach()" in one.fix


class Pairs(nn.Module):
    """A loss that compares outputs with those of steps before, which it keeps in a buffer."""

    def __init__(self, *, detach: bool) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(16, 2))
        self.detach, self.place = detach, 0

    def forward(self, z):
        index = (torch.arange(len(z)) + self.place) % len(self.seen)
        self.place += len(z)
        if self.detach:
            self.seen[index] = z.detach()
        else:
            self.seen[index] = z
        return (z @ self.seen.t()).square().mean()


@pytest.mark.parametrize("detach", [False, True])
def test_a_loss_that_keeps_graphs_in_a_buffer_of_its_own_is_named(detach):
    pairs = Pairs(detach=detach)

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        z = model(*inputs)
        loss = F.mse_loss(z, targets) + pairs(z)
        loss.backward()
        optimizer.step()
        return loss.detach()

    report = contract(nn.Linear(3, 2), train_step=train_step).check(["backward"])
    assert report.ok is detach, report
    for found in report.failing:
        assert found.code == "second-backward"
        assert found.culprits[0].name == "pairs.seen"
        assert found.location.text == "self.seen[index] = z"


class Sealed(nn.Parameter):
    """A tensor of somebody else's that refuses every function of torch."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise TypeError(f"{func} is not for a Sealed")


@pytest.mark.parametrize("detach", [False, True])
def test_a_tensor_elsewhere_that_refuses_torchs_functions_changes_no_verdict(detach):
    bystander = Sealed(torch.ones(3))
    (found,) = contract(Shared(detach=detach)).check(["step-leak"]).findings
    assert found.status == ("passed" if detach else "violated"), str(found)
    del bystander
