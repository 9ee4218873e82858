from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck.probes.numbers.activations import watch_activations


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True)), nn.Linear(8, 3))


@pytest.mark.parametrize("own", [False, True])
def test_each_output_with_its_gradient(own):
    model, x, y = net(), torch.randn(5, 4), torch.tensor([0, 1, 2, 0, 1])
    criterion = nn.CrossEntropyLoss()

    def run():
        loss = criterion(model(x), y)
        if own:
            loss.backward()
        return loss

    rows = watch_activations(run, model)
    assert [row.module for row in rows] == ["0.0", "0.1", "0", "1", ""]
    assert [row.leaf for row in rows] == [True, True, False, True, False]
    first, rectified, block, head, whole = rows
    h = F.linear(x, model[0][0].weight, model[0][0].bias).detach()
    assert first.rms == pytest.approx(float(h.square().mean().sqrt()))
    assert first.low == pytest.approx(float(h.min()))  # as it was before the in-place ReLU
    assert first.zeros == 0.0
    assert rectified.zeros == pytest.approx(float((h <= 0).float().mean()))
    assert (rectified.rms, rectified.high) == (block.rms, block.high)
    logits = model(x).detach().requires_grad_()
    (expected,) = torch.autograd.grad(F.cross_entropy(logits, y), logits)
    assert head.gradient_rms == pytest.approx(float(expected.square().mean().sqrt()))
    assert whole.gradient_rms == head.gradient_rms
    assert (head.shape, head.dtype, head.module_class) == ((5, 3), "float32", "Linear")
    assert all(p.grad is None for p in model.parameters())


def test_a_module_called_twice_and_one_without_gradient():
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Linear(4, 2)
            self.spare = nn.Linear(4, 2)

        def forward(self, a, b):
            self.spare(a)
            return self.encoder(a) - self.encoder(b)

    model = Siamese()
    rows = watch_activations(lambda: model(torch.randn(3, 4), torch.randn(3, 4)), model)
    assert [(row.module, row.call) for row in rows] == [
        ("spare", 0),
        ("encoder", 0),
        ("encoder", 1),
        ("", 0),
    ]
    assert rows[0].gradient_rms is None
    assert rows[1].gradient_rms == pytest.approx(1.0)


def test_several_outputs_and_what_is_not_finite():
    class Pair(nn.Module):
        def forward(self, x):
            return {"bad": x / 0, "index": x.argmax(), "good": x}

    rows = watch_activations(lambda: Pair()(torch.tensor([0.0, 1.0, -1.0])), model := Pair())
    assert rows == ()  # another object than the watched one
    rows = watch_activations(lambda: model(torch.tensor([0.0, 1.0, -1.0])), model)
    assert [(row.output, row.nonfinite) for row in rows] == [(0, 3), (2, 0)]
    assert math.isnan(rows[0].rms)
    assert rows[1].zeros == pytest.approx(1 / 3)
