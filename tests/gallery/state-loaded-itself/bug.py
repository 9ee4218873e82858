"""A target network that is given its own state in place of the online one's."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import contract

CHECKS = ('step-protocol',)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online, self.target = nn.Linear(4, 2), nn.Linear(4, 2)
        self.target.load_state_dict(self.online.state_dict())

    def forward(self, state):
        return self.online(state)

    def follow(self):
        self.target.load_state_dict(self.target.state_dict())


def train_step(model, optimizer, inputs, targets):
    optimizer.zero_grad()
    with torch.no_grad():
        best = model.target(targets).amax(1, keepdim=True)
    loss = F.mse_loss(model(*inputs).amax(1, keepdim=True), 1 + 0.9 * best)
    loss.backward()
    optimizer.step()
    model.follow()
    return loss.detach()


@contract(batch=((torch.randn(8, 4),), torch.randn(8, 4)), train_step=train_step,
          optimizer=lambda model: torch.optim.SGD(model.online.parameters(), lr=0.1))
def net():
    return Agent()
