"""Two views of one shape, with a step of its own that takes their gradients in one order and hands them out in another."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("backward", "weights-update")


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(6, 8, bias=False)
        self.right = nn.Linear(6, 8, bias=False)
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, x, y):
        return self.head(torch.tanh(self.left(x)) * torch.tanh(self.right(y)))


def train_step(model, optimizer, inputs, targets):
    loss = F.cross_entropy(model(*inputs), targets)
    weights = (model.right.weight, model.left.weight, model.head.weight)
    gradients = torch.autograd.grad(loss, weights)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient.clamp(-1, 1)
    optimizer.step()
    return loss.detach()


def batch(seed):
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(2, 9, 6, generator=g)
    return (x, y), torch.randint(3, (9,), generator=g)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


@contract(batch=batch, loss=F.cross_entropy, optimizer=sgd, train_step=train_step)
def views():
    return Views()
