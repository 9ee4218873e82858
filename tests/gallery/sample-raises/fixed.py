"""A dataset that says it is longer than it is."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('samples-valid',)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], index % 3


contract = Contract(dataset=Images(), name="images")
