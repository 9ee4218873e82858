"""A lambda as an attribute of a dataset."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('dataset-pickling',)


class Scaled(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(12, 4, generator=torch.Generator().manual_seed(0))
        self.transform = lambda x: x / 2

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.transform(self.data[index]), index % 3


contract = Contract(dataset=Scaled(), name="scaled")
