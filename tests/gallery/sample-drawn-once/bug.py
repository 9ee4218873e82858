"""A cache that is filled after the random crop: every epoch sees the first one."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('samples-unchanged',)


class Tracks(torch.utils.data.Dataset):
    def __init__(self):
        self.tracks = torch.randn(16, 40, generator=torch.Generator().manual_seed(0))
        self.loaded = {}

    def __len__(self):
        return 16

    def crop(self, track):
        start = int(torch.randint(0, 9, (1,)))
        return track[start : start + 32]

    def __getitem__(self, index):
        if index not in self.loaded:
            self.loaded[index] = self.crop(self.tracks[index])
        return self.loaded[index], index % 4


contract = Contract(dataset=Tracks(), loader={"batch_size": 4}, name="tracks")
