"""A dataset that hands out the same buffer for every sample."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('samples-unchanged',)


class Frames(torch.utils.data.Dataset):
    def __init__(self):
        self.video = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
        self.buffer = torch.zeros(4)

    def __len__(self):
        return 24

    def __getitem__(self, index):
        self.buffer.copy_(self.video[index]).mul_(2)
        return self.buffer.clone(), index % 3


contract = Contract(dataset=Frames(), name="frames")
