"""A wrapper that was made of a copy: its gradients are carried over to the model, which it no longer follows."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('weights-update',)


class Traced:
    """Runs a model, and hands its gradients on to the weights of another one."""

    def __init__(self, model):
        self.model = model

    def backward(self, loss, weights):
        found = torch.autograd.grad(loss, list(self.model.parameters()))
        for weight, gradient in zip(weights, found, strict=True):
            weight.grad = gradient


def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.1), Traced(model)


def train_step(model, made, inputs, targets):
    sgd, traced = made
    loss = F.cross_entropy(traced.model(*inputs), targets)
    traced.backward(loss, model.parameters())
    sgd.step()
    return loss.detach()


@contract(inputs="B 8", targets=Labels("B", classes=3), train_step=train_step, optimizer=optimizer)
def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
