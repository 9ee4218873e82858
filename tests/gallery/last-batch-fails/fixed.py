"""A last batch of one in front of a BatchNorm."""

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract

CHECKS = ('last-batch',)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], index % 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(x))


LOADER = {"batch_size": 23, "drop_last": True}


contract = Contract(model=Net(), batch=((torch.randn(4, 4),), torch.tensor([0, 1, 2, 0])), dataset=Images(), loader=LOADER, loss=F.cross_entropy, name="images")
