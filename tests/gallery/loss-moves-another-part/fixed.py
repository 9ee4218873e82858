"""An actor and its critic in one optimizer: the actor's loss moves the critic as well."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('step-protocol',)


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))

    def value(self, state, action):
        return self.critic(torch.cat([state, action], dim=-1))

    def forward(self, state):
        return self.actor(state)


def train_step(model, optimizer, inputs, targets):
    state, = inputs
    action, returns = targets
    optimizer.zero_grad()
    critic_loss = F.mse_loss(model.value(state, action), returns)
    critic_loss.backward()
    model.critic.requires_grad_(False)
    actor_loss = -model.value(state, model.actor(state)).mean()
    actor_loss.backward()
    model.critic.requires_grad_(True)
    optimizer.step()


def transitions(seed):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(8, 4, generator=g),), (torch.rand(8, 2, generator=g), torch.randn(8, 1, generator=g))


@contract(batch=transitions, train_step=train_step, optimizer=lambda model: torch.optim.Adam(model.parameters(), lr=1e-3))
def agent():
    return ActorCritic()
