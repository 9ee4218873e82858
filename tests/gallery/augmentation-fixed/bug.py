"""An augmentation that draws once and is the same in every epoch."""

import torch

from pytest_torchcheck import Contract, promises

CHECKS = ('random-augmentation',)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        return self.data[index] + 0.1 * torch.randn(4, generator=g), index % 3


contract = Contract(dataset=Images(), promises=(promises.RandomAugmentation(),), name="images")
