"""A mask value that float16 cannot hold."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Labels, contract

CHECKS = ('backward',)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        scores = (self.query(x) @ x.transpose(1, 2)).half()
        future = torch.ones_like(scores, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, torch.finfo(scores.dtype).min).softmax(-1).to(x.dtype)
        return self.head((weights @ x).mean(1))


@contract(inputs="B T 8", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return Net()
