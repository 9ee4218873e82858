"""A segmentation set that seeds one generator twice, for image and mask, while the transform draws from another."""

import random

import numpy as np
import torch

from pytest_torchcheck import Contract

CHECKS = ('dataset-labels',)


def crop(picture):
    top, left = np.random.randint(0, 5, 2)
    return picture[..., top : top + 8, left : left + 8]


class Cells(torch.utils.data.Dataset):
    def __init__(self):
        self.images = torch.rand(16, 1, 12, 12, generator=torch.Generator().manual_seed(0))
        self.masks = (self.images[:, 0] > 0.5).long()

    def __len__(self):
        return 16

    def __getitem__(self, index):
        seed = random.randrange(2**31)
        np.random.seed(seed)
        image = crop(self.images[index])
        np.random.seed(seed)
        return image, crop(self.masks[index])


contract = Contract(dataset=Cells(), name="cells")
