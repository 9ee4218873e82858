"""A target network that is the trained network: ``.to()`` returns the module itself."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('backward', 'averages-follow')


class Agent(nn.Module):
    def __init__(self, network, device="cpu"):
        super().__init__()
        self.policy = network.to(device)
        self.target = copy.deepcopy(network).to(device)

    def forward(self, state):
        return self.policy(state)


def train_step(agent, optimizer, inputs, targets):
    state, = inputs
    action, reward, following = targets
    with torch.no_grad():
        wanted = reward + 0.9 * agent.target(following).amax(1)
    loss = F.mse_loss(agent(state).gather(1, action[:, None]).squeeze(1), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        for slow, fast in zip(agent.target.parameters(), agent.policy.parameters()):
            slow.lerp_(fast, 0.05)


def transitions(seed):
    g = torch.Generator().manual_seed(seed)
    state, following = torch.randn(2, 8, 4, generator=g)
    return (state,), (torch.randint(0, 3, (8,), generator=g), torch.randn(8, generator=g), following)


@contract(batch=transitions, train_step=train_step, optimizer=lambda agent: torch.optim.Adam(agent.policy.parameters(), lr=1e-3))
def agent():
    return Agent(nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3)))
