"""A flip that mirrors the corners of boxes: above and below change places."""

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract
from pytest_torchcheck.promises import RandomAugmentation

CHECKS = ('dataset-labels',)


def flip(image, boxes):
    if torch.rand(()) < 0.5:
        return image, boxes
    boxes = boxes.clone()
    boxes[:, [1, 3]] = image.shape[-2] - boxes[:, [1, 3]]
    return image.flip(-2), boxes


class Signs(Dataset):
    """Photographs of roads, with the corners of each traffic sign as x1, y1, x2, y2."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        corners = torch.rand(12, 3, 2, generator=generator) * 20
        sizes = torch.rand(12, 3, 2, generator=generator) * 8 + 4
        self.images = torch.rand(12, 3, 32, 32, generator=generator)
        self.boxes = torch.cat([corners, corners + sizes], dim=2)
        self.labels = torch.randint(0, 4, (12, 3), generator=generator)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image, boxes = flip(self.images[index], self.boxes[index])
        return image, {"boxes": boxes, "labels": self.labels[index]}


contract = Contract(dataset=Signs(), loader={"batch_size": 4}, promises=[RandomAugmentation()], name="signs")
