"""Photos that are listed folder by folder, and a training loader that does not shuffle them."""

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

CHECKS = ('loader-order', 'samples-valid')


class Photos(Dataset):
    def __init__(self):
        self.listed = [(kind, number) for kind in range(3) for number in range(12)]

    def __len__(self):
        return len(self.listed)

    def __getitem__(self, index):
        kind, number = self.listed[index]
        generator = torch.Generator().manual_seed(100 * kind + number)
        return torch.randn(3, 8, 8, generator=generator), kind


contract = Contract(
    dataset={"train": Photos()},
    loader={"batch_size": 6},
    name="photos",
)
