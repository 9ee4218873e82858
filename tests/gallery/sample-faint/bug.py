"""Images that are divided by 255, and normalised with statistics of bytes."""

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

CHECKS = ('samples-valid',)


class Digits(Dataset):
    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.images = torch.randint(0, 256, (16, 8, 8), generator=generator, dtype=torch.uint8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index].float() / 255
        image = (image - 127.5) / 64
        return image[None], index % 10


contract = Contract(dataset=Digits(), loader={"batch_size": 4}, name="digits")
