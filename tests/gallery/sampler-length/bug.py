"""A sampler that balances the classes, given one weight for each class instead of one for each sample."""

import torch
from torch.utils.data import DataLoader, WeightedRandomSampler

from pytest_torchcheck import Contract

CHECKS = ('loader-order',)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.labels = torch.tensor([0, 0, 0, 1, 0, 2] * 4)
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], self.labels[index]


def loader(dataset):
    weights = 1 / torch.bincount(dataset.labels)
    sampler = WeightedRandomSampler(weights, num_samples=len(dataset))
    return DataLoader(dataset, batch_size=4, sampler=sampler)


IMAGES = Images()
contract = Contract(dataset=IMAGES, loader=loader(IMAGES), name="images")
