"""A random flip that is called once for the photograph and once for its mask: each call draws by itself."""

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import RandomAugmentation

CHECKS = ('dataset-labels',)


class RandomFlip:
    def __call__(self, *images):
        if torch.rand(()) < 0.5:
            images = [image.flip(-1) for image in images]
        return images


class Leaves(Dataset):
    """Photographs of leaves, with a mask of the spots on each."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.masks = (torch.rand(10, 24, 24, generator=generator) < 0.2).long()
        self.photographs = self.masks.unsqueeze(1) + torch.rand(10, 3, 24, 24, generator=generator)
        self.flip = RandomFlip()

    def __len__(self):
        return len(self.masks)

    def __getitem__(self, index):
        photograph, mask = self.photographs[index], self.masks[index]
        (photograph,), (mask,) = self.flip(photograph), self.flip(mask)
        return photograph, mask


contract = Contract(dataset=Leaves(), loader={"batch_size": 5}, promises=[RandomAugmentation()], name="leaves")
