"""Parameter groups that look for whole names where only parts of names are listed."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('optimizer-coverage',)
NO_DECAY = ("bias", "norm")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.norm, self.head = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


def optimizer(model):
    decayed = [p for n, p in model.named_parameters() if n not in NO_DECAY]
    others = [p for n, p in model.named_parameters() if n in NO_DECAY]
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3)


@contract(inputs="B 8", targets=Labels("B", classes=3), loss=F.cross_entropy, optimizer=optimizer)
def net():
    return Net()
