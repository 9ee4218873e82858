"""A generator that is stepped with gradients of the critic's loss."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('step-protocol',)


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 6))
        self.critic = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, z):
        return self.critic(self.generator(z))


def optimizer(model):
    return torch.optim.Adam(model.generator.parameters(), 1e-3), torch.optim.Adam(model.critic.parameters(), 1e-3)


def train_step(model, optimizers, inputs, targets):
    opt_g, opt_d = optimizers
    opt_g.zero_grad()
    opt_d.zero_grad()
    fake = model.generator(*inputs)
    loss_d = F.softplus(model.critic(fake)).mean()
    loss_d.backward()
    opt_d.step()
    loss_g = F.softplus(-model.critic(model.generator(*inputs))).mean()
    loss_g.backward()
    opt_g.step()
    return loss_g.detach()


@contract(inputs="B 8", optimizer=optimizer, train_step=train_step)
def net():
    return Gan()
