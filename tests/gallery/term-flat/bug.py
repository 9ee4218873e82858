"""A mixture of experts whose penalty on an uneven choice averages over the experts: it is always the same."""

import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(nn.Linear(8, 3) for _ in range(4))

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        mixed = sum(gates[:, i, None] * expert(x) for i, expert in enumerate(self.experts))
        chosen = F.one_hot(gates.argmax(-1), 4).float().mean(0)
        share = gates.mean(-1, keepdim=True)
        return mixed, 4 * (chosen * share).mean()


def loss(output, labels):
    scores, unevenness = output
    return F.cross_entropy(scores, labels) + 0.01 * unevenness


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=loss)
def mixture():
    return Mixture()
