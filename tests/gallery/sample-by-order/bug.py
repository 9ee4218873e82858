"""Classes that are numbered as they are met: each worker, and each order, gives them other labels."""

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

CHECKS = ("samples-unchanged",)
NAMES = ["wren", "robin", "finch", "wren", "tit", "robin", "finch", "tit"] * 3


class Birds(Dataset):
    def __init__(self):
        self.songs = torch.randn(len(NAMES), 10, generator=torch.Generator().manual_seed(0))
        self.numbers = {}

    def __len__(self):
        return len(NAMES)

    def __getitem__(self, place):
        label = self.numbers.setdefault(NAMES[place], len(self.numbers))
        return self.songs[place], label


net = Contract(dataset=Birds(), loader={"batch_size": 4, "shuffle": True})
