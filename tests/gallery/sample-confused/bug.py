"""A dataset whose cache has one key for samples of different folders."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('samples-unchanged',)


class Scans(torch.utils.data.Dataset):
    def __init__(self):
        self.scans = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
        self.files = [(patient, number) for patient in range(4) for number in range(6)]
        self.loaded = {}

    def __len__(self):
        return 24

    def load(self, number, index):
        if number not in self.loaded:
            self.loaded[number] = self.scans[index] * 2
        return self.loaded[number]

    def __getitem__(self, index):
        patient, number = self.files[index]
        return self.load(number, index), patient


contract = Contract(dataset=Scans(), name="scans")
