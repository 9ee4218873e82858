"""A step that evaluates with averaged weights and goes on from them."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract


class Average:
    def __init__(self, model):
        self.values = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def follow(self, model):
        for value, weight in zip(self.values, model.parameters(), strict=True):
            value.lerp_(weight, 0.05)

    @torch.no_grad()
    def put_in(self, model):
        self.kept = [p.detach().clone() for p in model.parameters()]
        for value, weight in zip(self.values, model.parameters(), strict=True):
            weight.copy_(value)

    @torch.no_grad()
    def put_back(self, model):
        for value, weight in zip(self.kept, model.parameters(), strict=True):
            weight.copy_(value)


def sgd(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.average = Average(model)
    return optimizer


def step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    loss = F.mse_loss(model(*inputs), targets)
    loss.backward()
    optimizer.step()
    optimizer.average.follow(model)
    optimizer.average.put_in(model)
    with torch.no_grad():
        optimizer.evaluated = F.mse_loss(model(*inputs), targets)
    return loss.detach()


@contract(inputs="B 8", targets="B 3", loss=F.mse_loss, optimizer=sgd, train_step=step)
def regression():
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
