"""Samples that stand in both splits."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('split-hygiene',)


class Points(torch.utils.data.Dataset):
    def __init__(self, data):
        self.data = data

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], index % 3


DATA = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
SPLITS = {"train": Points(DATA[:20]), "eval": Points(DATA[20:])}


contract = Contract(dataset=SPLITS, name="images")
