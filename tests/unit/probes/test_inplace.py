from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck.probes.gradient.inplace import find_inplace


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.encoder = nn.Linear(4, 8)
        self.head = nn.Linear(8, 3)

    def middle(self, h):
        return h

    def forward(self, x):
        return self.head(self.middle(self.encoder(x)))


class AddToTanh(Net):
    def middle(self, h):
        h = torch.tanh(h)  # SAVED
        h += 1  # CHANGED
        return h


class ZeroColumn(Net):
    def middle(self, h):
        y = h.exp()  # SAVED
        y[:, 0] = 0  # CHANGED
        return y


class ThroughView(Net):
    def middle(self, h):
        y = h.sigmoid()  # SAVED
        rows = y.view(-1)
        rows.mul_(2)  # CHANGED
        return y


class Operand(Net):
    def middle(self, h):
        y = h * h.cos()  # SAVED
        h.add_(1)  # CHANGED
        return y


class InPlaceRelu(Net):
    def middle(self, h):
        g = torch.sigmoid(h)  # SAVED
        return F.relu(g - 0, inplace=True) + F.relu(g, inplace=True)  # CHANGED


class Module(Net):
    def __init__(self):
        super().__init__()
        self.act = nn.Sequential(nn.Softplus(), nn.Dropout(0.3, inplace=True))

    def middle(self, h):
        return self.act(h.sigmoid() * 1) * h  # nothing saved is written here


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        return 2 * ctx.saved_tensors[0] * g


class Custom(Net):
    def middle(self, h):
        h = h + 0
        y = Square.apply(h)  # SAVED
        h.zero_()  # CHANGED
        return y


MODELS = [AddToTanh, ZeroColumn, ThroughView, Operand, InPlaceRelu, Custom]


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("cls", MODELS)
def test_who_saved_and_who_changed(cls, own):
    model, x = cls(), torch.randn(5, 4)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(x).sum().backward()

    def run():
        loss = model(x).sum()
        if own:
            loss.backward()
        return loss

    model.zero_grad()
    found = find_inplace(run, model)
    assert found.saver.location.text.endswith("# SAVED"), found
    assert found.changer.location.text.endswith("# CHANGED"), found
    assert found.found_version > found.saved_version
    assert found.tensor == "float32 [5, 8]"
    assert all(p.grad is None for p in model.parameters())


def test_the_fact_tells_operand_from_result():
    model, x = AddToTanh(), torch.randn(5, 4)
    found = find_inplace(lambda: model(x).sum(), model)
    assert found.role == "result"
    assert found.fact == (
        "torch.tanh saved its result float32 [5, 8] at version 0; Tensor.add_ wrote it, and the "
        "backward found version 1"
    )
    assert find_inplace(lambda: Operand()(x).sum()).role == "operand"
    custom = find_inplace(lambda: Custom()(x).sum())
    assert custom.saver.name == "Square.apply"


def test_a_step_between_forward_and_backward():
    model, x = Net(), torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def run():
        first = model(x).square().sum()
        second = model(x).sum()
        first.backward(retain_graph=True)
        optimizer.step()  # CHANGED
        second.backward()

    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    found = find_inplace(run, model)
    assert found.name == "head.weight"
    assert found.saver.module == "head"
    assert found.changer.location.text.endswith("# CHANGED")
    assert not torch.equal(model.head.weight, weights["head.weight"])  # the run is the caller's


@pytest.mark.parametrize("cls", [Net, Module])
def test_harmless_writes_are_no_conflict(cls):
    model, x = cls(), torch.randn(5, 4)

    def run():
        y = torch.zeros(5, 3)
        y += model(x)
        y.data.mul_(2)
        return y.sum()

    assert find_inplace(run, model) is None
