from __future__ import annotations

import gc
import inspect
from collections import deque

import pytest
import torch
from memory_zoo import ZOO
from torch import nn

from pytest_torchcheck.probes.holding.leaks import count_hooks, find_leak
from pytest_torchcheck.probes.holding.live_bytes import LiveBytes

KEPT: list[object] = []


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        KEPT.append(ctx)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad * ctx.x


class Net(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.body = nn.Linear(16, 16)
        self.history: list[torch.Tensor] = []
        self.cache: dict[int, torch.Tensor] = {}
        self.recent: deque[torch.Tensor] = deque(maxlen=1000)
        self.register_buffer("bank", torch.zeros(0, 16))

    def forward(self, x):
        h = self.body(x).relu()
        if self.how == "list":
            self.history.append(h)
        if self.how == "detached":
            self.history.append(h.detach())
        if self.how == "dict":
            self.cache[len(self.cache)] = h.mean()
        if self.how == "deque":
            self.recent.append(h.detach())
        if self.how == "filling" and len(self.history) < 5:
            self.history.append(h.detach())
        if self.how == "cat":
            self.bank = torch.cat([self.bank, h.detach()])
        if self.how == "hook":
            self.body.register_forward_hook(lambda module, args, output: None)
        if self.how == "ctx":
            h = Square.apply(h)
        if self.how == "cycle":
            knot: list[object] = [h]
            knot.append(knot)
        return h


def make(how: str):
    model = Net(how)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(32, 16)
    total = torch.zeros(())
    losses: list[torch.Tensor] = []

    def step() -> None:
        nonlocal total
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward(retain_graph=how == "total")
        optimizer.step()
        if how == "total":
            total = total + loss
        if how == "losses":
            losses.append(loss)
        if how == "scalars":
            losses.append(loss.detach())

    return model, step


@pytest.fixture(autouse=True)
def _empty():
    yield
    KEPT.clear()
    gc.collect()


@pytest.mark.parametrize(
    ("how", "kind", "holder", "text"),
    [
        ("list", "graph", "Net.history", "self.history.append(h)"),
        ("detached", "tensors", "Net.history", "self.history.append("),
        ("dict", "graph", "Net.cache", "self.cache[len(self.cache)] = h.mean()"),
        ("cat", "tensors", "Net.bank", "self.bank = torch.cat("),
        ("ctx", "graph", "global KEPT of module test_memory_leaks", "KEPT.append(ctx)"),
        ("total", "graph", "variable total in the closure of step", "total = total + loss"),
        ("losses", "graph", "variable losses in the closure of step", "losses.append(loss)"),
    ],
)
def test_what_grows_is_found_with_its_holder_and_line(how, kind, holder, text):
    model, step = make(how)
    leak = find_leak(step, model, steps=3, warmup=1)
    assert leak.kind == kind
    assert leak.holder == holder
    assert text in leak.location.text
    assert leak.chain[0].startswith("float32 tensor")
    assert holder in leak.chain
    assert leak.live_bytes[0] == 0
    assert leak.bytes_per_step == leak.live_bytes[1] == leak.live_bytes[-1] // 3


def test_what_stays_is_described_with_the_line_that_made_it():
    model, step = make("list")
    leak = find_leak(step, model, steps=2, warmup=1)
    kept = leak.tensors[0]
    lines, start = inspect.getsourcelines(Net.forward)
    assert (kept.shape, kept.dtype, kept.bytes_per_step, kept.count_per_step) == (
        (32, 16),
        "float32",
        2048,
        1,
    )
    assert kept.op == "aten.relu.default"
    assert kept.location.line == start + 1
    assert kept.location.text == lines[1].strip()


def test_one_growing_tensor_is_told_from_many():
    model, step = make("cat")
    leak = find_leak(step, model, steps=2, warmup=1)
    assert leak.tensors[0].count_per_step == 0
    assert leak.tensors[0].bytes_per_step == 2048


def test_hooks_are_counted_and_their_line_found():
    model, step = make("hook")
    leak = find_leak(step, model, steps=2, warmup=1)
    assert leak.kind == "hooks"
    assert leak.hooks == {"body": 1}
    assert "register_forward_hook" in leak.location.text


@pytest.mark.parametrize("how", ["none", "deque", "filling", "cycle"])
def test_what_is_bounded_or_collected_is_no_leak(how):
    model, step = make(how)
    assert find_leak(step, model, steps=3, warmup=1) is None


def test_a_history_of_detached_scalars_may_be_ignored_but_not_one_of_graphs():
    for how, ignored in (("scalars", True), ("losses", False)):
        model, step = make(how)
        assert (find_leak(step, model, steps=2, warmup=1, ignore_bytes=64) is None) is ignored, how


@pytest.mark.parametrize("name", ZOO)
def test_ten_correct_models_leak_nothing(name):
    entry = ZOO[name]
    torch.manual_seed(0)
    model, (args, targets) = entry.build(), entry.batch()
    optimizer = entry.optimizer(model)

    def step() -> None:
        optimizer.zero_grad()
        entry.loss(model(*args), targets).backward()
        optimizer.step()

    assert find_leak(step, model, steps=2, warmup=2) is None


def test_without_a_leak_no_object_is_searched(monkeypatch):
    def refuse(*_):
        raise AssertionError("searched")

    monkeypatch.setattr(gc, "get_objects", refuse)
    monkeypatch.setattr(gc, "get_referrers", refuse)
    model, step = make("none")
    assert find_leak(step, model) is None


def test_live_bytes_count_what_only_a_graph_holds():
    x = torch.randn(100, requires_grad=True)
    counter = LiveBytes()
    with counter:
        y = x.exp()  # saved by its own node
        z = y.sum()
        del y
    assert counter.live == 400 + 4
    z.backward()
    assert counter.live == 4
    del z
    assert counter.live == 0


def test_hooks_on_parameters_count_too():
    model = nn.Linear(2, 2)
    assert not count_hooks(model)
    model.weight.register_hook(lambda grad: grad)
    model.bias.register_post_accumulate_grad_hook(lambda p: None)
    model.register_forward_pre_hook(lambda m, a: None)
    assert count_hooks(model) == {"weight": 1, "bias": 1, "Linear": 1}
    assert not count_hooks(None)


def test_the_arguments_are_checked():
    for wrong in ({"steps": 1}, {"warmup": -1}):
        with pytest.raises(ValueError, match="a leak shows over"):
            find_leak(lambda: None, **wrong)


def test_errors_of_the_step_come_through():
    def step() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        find_leak(step)
