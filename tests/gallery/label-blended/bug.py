"""Masks that are resized as images are: between ground and crops stands water."""

import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

CHECKS = ('dataset-labels',)


class Tiles(Dataset):
    """Images with a class for each pixel: ground, water or crops."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.rand(12, 3, 16, 16, generator=generator)
        self.masks = torch.randint(0, 3, (12, 2, 2), generator=generator).repeat_interleave(8, 1).repeat_interleave(8, 2)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = F.interpolate(self.images[index][None], size=(48, 48), mode="bilinear")[0]
        mask = F.interpolate(self.masks[index][None, None].float(), size=(48, 48), mode="bilinear")[0, 0]
        return image, mask.round().long()


contract = Contract(dataset=Tiles(), loader={"batch_size": 4}, name="tiles")
