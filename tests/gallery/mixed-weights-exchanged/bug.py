"""Mixup that gives each label the weight of the other image."""

import torch
import torch.nn.functional as F
from torch.utils.data import default_collate

from pytest_torchcheck import Contract

CHECKS = ("collate-pairing",)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.rand(24, 3, 6, 6, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], index % 4


def mixup(samples):
    images, labels = default_collate(samples)
    labels = F.one_hot(labels, 4).float()
    lam = torch.distributions.Beta(0.4, 0.4).sample()
    images = lam * images.roll(1, 0) + (1 - lam) * images
    return images, lam * labels + (1 - lam) * labels.roll(1, 0)


contract = Contract(dataset=Images(), loader={"batch_size": 8, "collate_fn": mixup}, name="images")
