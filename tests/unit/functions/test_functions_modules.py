"""A whole module over inputs and parameters: quick, and down to the submodule and Function at fault."""

from __future__ import annotations

import time

import functions_wrong as wrong
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import Function

from pytest_torchcheck.functions.modules import check_module


class HalfScale(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x, scale)
        return x * scale[:, None, None]

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        grad_scale = 0.5 * (g * x).sum((0, 2, 3))  # BUG
        return g * scale[:, None, None], grad_scale


class Gain(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(channels))

    def forward(self, x):
        return HalfScale.apply(x, self.scale)


class ConvNet(nn.Module):
    def __init__(self, wrong=True):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        middle = Gain(16) if wrong else nn.Identity()
        self.body = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), middle, nn.MaxPool2d(2)
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.body(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def test_a_halved_parameter_gradient_is_located():
    torch.manual_seed(0)
    (finding,) = check_module(ConvNet(), torch.randn(2, 3, 32, 32))
    assert finding.status == "violated"
    assert finding.code == "gradcheck-scale"
    assert finding.evidence["factor"] == pytest.approx(0.5, rel=1e-4)
    assert finding.location.text.endswith("# BUG")
    names = {(c.kind, c.name) for c in finding.culprits}
    assert {("function", "HalfScale"), ("module", "body.2"), ("parameter", "body.2.scale")} <= names


def spent(run, times):
    """Least CPU time of several runs, so that a busy machine decides as little as possible."""
    found = []
    for _ in range(times):
        start = time.process_time()
        run()
        found.append(time.process_time() - start)
    return min(found)


def test_it_takes_a_tenth_of_a_second():
    """Explanation included: 0.06 s where this was written, about 40 steps of the model; a slower machine gets 100."""
    torch.manual_seed(0)
    model, x = ConvNet(), torch.randn(2, 3, 32, 32)
    step = spent(lambda: model(x).square().sum().backward(), 10)
    assert spent(lambda: check_module(model, x), 5) < max(0.1, 100 * step)


@pytest.mark.parametrize("seed", range(4))
def test_right_models_pass(seed):
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    for model, x in (
        (ConvNet(wrong=False), torch.randn(2, 3, 16, 16)),
        (nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 5, 16)),
        (nn.GRU(4, 6, 2, batch_first=True), torch.randn(2, 7, 4)),
    ):
        (finding,) = check_module(model, x)
        assert finding.status == "passed", finding.summary


def test_ties_are_not_blamed():
    """All pixels equal: each maximum has many places, and each ReLU sits at its kink."""
    torch.manual_seed(0)
    pool = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(3 * 16, 4))
    (finding,) = check_module(pool, torch.zeros(2, 3, 8, 8))
    assert finding.status == "passed", finding.summary


def test_a_module_is_put_back():
    model = ConvNet(wrong=False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    model.weight_seen = 0
    state = torch.get_rng_state()
    check_module(model, torch.randn(2, 3, 8, 8))
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.dtype == torch.float32 and p.grad is None for p in model.parameters())
    assert not torch.equal(state, torch.zeros_like(state))
    assert model.training


def test_a_cut_graph_is_named():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x):
            return self.b(self.a(x).detach())

    (finding,) = check_module(Cut(), torch.randn(2, 3))
    assert finding.code == "gradcheck-module"
    assert "cuts the graph" in finding.cause
    assert {"a.weight", "a.bias"} <= {c.name for c in finding.culprits}


def test_a_million_parameters_in_twenty_steps():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 700), nn.ReLU(), nn.Linear(700, 100)
    )
    assert sum(p.numel() for p in model.parameters()) > 1_000_000
    x, y = torch.randn(64, 256), torch.randint(0, 100, (64,))
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    spent(step, 3)
    assert spent(lambda: check_module(model, x), 2) <= 20 * spent(step, 10)


def test_functions_of_several_inputs_and_keywords():
    class Two(nn.Module):
        def forward(self, x, *, y):
            return wrong.SwappedProduct.apply(x, y)

    (finding,) = check_module(Two(), {"x": torch.randn(2, 3), "y": torch.randn(2, 3)})
    assert finding.code == "gradcheck-swapped"


def test_a_module_that_refuses_float64_is_inconclusive():
    class Refuses(nn.Module):
        def forward(self, x):
            if x.dtype == torch.float64:
                raise TypeError("float32 only")
            return x

    (finding,) = check_module(Refuses(), torch.randn(2))
    assert finding.status == "inconclusive"
