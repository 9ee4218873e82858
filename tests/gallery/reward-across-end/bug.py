"""An actor and critic whose advantages run through the ends of episodes: the flag cuts the bootstrap alone."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ("step-losses",)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.Tanh())
        self.policy, self.value = nn.Linear(16, 2), nn.Linear(16, 1)

    def forward(self, states):
        hidden = self.body(states)
        return self.policy(hidden), self.value(hidden).squeeze(-1)


def advantages(rewards, dones, values, gamma=0.97, decay=0.9):
    made, carried = [], torch.zeros_like(rewards[0])
    for t in reversed(range(len(rewards))):
        error = rewards[t] + gamma * (1 - dones[t]) * values[t + 1] - values[t]
        carried = error + gamma * decay * carried
        made.insert(0, carried)
    return torch.stack(made)


def train_step(model, optimizer, inputs, targets):
    actions, rewards, dones = targets
    scores, values = model(inputs[0])
    gained = advantages(rewards, dones, values.detach())
    chosen = scores[:-1].log_softmax(-1).gather(-1, actions[..., None]).squeeze(-1)
    loss = F.mse_loss(values[:-1], gained + values[:-1].detach()) - (chosen * gained).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def rollout(seed):
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(13, 3, 4, generator=generator)
    actions = torch.randint(0, 2, (12, 3), generator=generator)
    dones = (torch.rand(12, 3, generator=generator) < 0.2).float()
    return (states,), (actions, torch.randn(12, 3, generator=generator), dones)


@contract(batch=rollout, batch_dim=None, train_step=train_step, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.01))
def agent():
    return Agent()
