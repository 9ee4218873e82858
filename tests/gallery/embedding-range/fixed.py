"""An embedding with a row too few for its vocabulary."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(5, 16)
        self.head = nn.Linear(16, 3)

    def forward(self, ids):
        return self.head(self.tokens(ids).mean(1))


IDS = torch.tensor([[0, 1, 2, 3], [4, 4, 1, 2]])


@contract(batch=((IDS,), torch.tensor([0, 2])), targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
