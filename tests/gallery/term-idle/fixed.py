"""A generator whose adversarial term is computed from a detached result: only the other term trains it."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("step-losses",)


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4))
        self.critic = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.generator(x)


def optimizers(model):
    return (
        torch.optim.SGD(model.generator.parameters(), lr=0.05),
        torch.optim.SGD(model.critic.parameters(), lr=0.05),
    )


def train_step(model, optimizers, inputs, targets):
    generator, critic = optimizers
    fake = model(*inputs)
    critic.zero_grad()
    (model.critic(fake.detach()).mean() - model.critic(targets).mean()).backward()
    critic.step()

    generator.zero_grad()
    verdict = model.critic(fake)
    adversarial = F.softplus(-verdict).mean()
    loss = adversarial + F.l1_loss(fake, targets)
    loss.backward()
    generator.step()
    return loss.detach()


@contract(inputs="B 6", targets="B 4", optimizer=optimizers, train_step=train_step)
def translator():
    return Translator()
