"""Images of a training set that are scaled to [0, 1], beside those of an evaluation set that are not."""

import torch

from pytest_torchcheck import Contract

CHECKS = ("split-hygiene",)


class Images(torch.utils.data.Dataset):
    def __init__(self, images, labels, scale=1.0):
        self.images, self.labels, self.scale = images, labels, scale

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index].float() * self.scale, int(self.labels[index])


g = torch.Generator().manual_seed(0)
images = torch.randint(256, (60, 1, 6, 6), generator=g, dtype=torch.uint8)
labels = torch.randint(3, (60,), generator=g)
SPLITS = {
    "train": Images(images[:40], labels[:40], 1 / 255),
    "eval": Images(images[40:], labels[40:], 1 / 255),
}


contract = Contract(dataset=SPLITS, name="images")
