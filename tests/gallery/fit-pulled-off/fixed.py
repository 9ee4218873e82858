"""An actor and a critic in one loss: the advantage is a constant in the actor's term."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.policy, self.value = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, state):
        h = self.body(state)
        return self.policy(h), self.value(h).squeeze(-1)


def loss(output, target):
    (logits, value), (actions, returns) = output, target
    advantage = returns - value.detach()
    surprise = F.cross_entropy(logits, actions, reduction="none")
    return (advantage * surprise).mean() + 0.5 * F.mse_loss(value, returns)


@contract(inputs="B 6", targets=(Labels("B", classes=4), "B"), loss=loss)
def agent():
    return Agent()
