"""Two datasets are put together that each count the classes they happen to hold."""

import torch
from torch.utils.data import ConcatDataset, Dataset

from pytest_torchcheck import Contract

CHECKS = ('dataset-labels',)
NAMES = (["crack", "dent", "scratch"] * 4, ["dent", "hole", "scratch"] * 4)


class Plant(Dataset):
    def __init__(self, names, classes):
        self.images = torch.rand(len(names), 3, 8, 8, generator=torch.Generator().manual_seed(0))
        self.names = names
        self.class_to_idx = {name: label for label, name in enumerate(classes)}

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return self.images[index], self.class_to_idx[self.names[index]]


plants = ConcatDataset([Plant(names, sorted({*NAMES[0], *NAMES[1]})) for names in NAMES])
contract = Contract(dataset=plants, name="plants")
