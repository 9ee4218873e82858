"""The mode of a training step is that of the forwards whose gradients it applies, not of those that ask for an input's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from loop_bugs import Net, sgd, task
from test_loop_bugs import findings


def _by_autograd(model, x, targets):
    given = x.clone().requires_grad_()
    (grad,) = torch.autograd.grad(F.cross_entropy(model(given), targets), given)
    return grad


def _by_backward(model, x, targets):
    """Leaves gradients of the parameters too, which the step throws away."""
    given = x.clone().requires_grad_()
    F.cross_entropy(model(given), targets).backward()
    return given.grad


def _trained(back=True, first=False, gradient=_by_autograd):
    def train_step(model, optimizer, inputs, targets):
        loss = F.cross_entropy(model(*inputs), targets) if first else 0.0
        model.eval()
        shifted = inputs[0] + 0.1 * gradient(model, inputs[0], targets)
        if back:
            model.train()
        optimizer.zero_grad()
        loss = loss + F.cross_entropy(model(shifted), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return findings(task(Net(norm=True), train_step, optimizer=sgd))["evaluation-leaves-trace"]


@pytest.mark.parametrize("gradient", [_by_autograd, _by_backward])
@pytest.mark.parametrize("first", [False, True], ids=["alone", "beside the plain loss"])
def test_gradient_of_the_input_in_eval_mode(gradient, first) -> None:
    (finding,) = _trained(gradient=gradient, first=first)
    assert finding.status == "passed", finding.summary


@pytest.mark.parametrize(("first", "code"), [(False, "trains-in-eval"), (True, "eval-mode-left")])
def test_step_that_stays_in_eval_mode(first, code) -> None:
    (finding,) = _trained(back=False, first=first)
    assert finding.code == code
