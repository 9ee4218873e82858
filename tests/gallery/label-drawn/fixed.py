"""A label that is drawn at each read, beside stored inputs."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('samples-valid', 'dataset-labels')


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], int(self.data[index].sum() > 0)


contract = Contract(dataset=Images(), name="images")
