"""An augmentation from the operating system's random numbers."""

import random

import numpy as np
import torch

from pytest_torchcheck import Contract, promises

CHECKS = ('random-augmentation',)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        noise = torch.from_numpy(np.random.default_rng().normal(size=4)).float()
        return self.data[index] + 0.1 * noise, index % 3


contract = Contract(dataset=Images(), promises=(promises.RandomAugmentation(),), name="images")
