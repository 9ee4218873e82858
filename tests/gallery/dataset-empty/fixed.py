"""A pattern that matches no file."""

from pathlib import Path

import torch

from pytest_torchcheck import Contract

CHECKS = ('samples-valid', 'dataset-labels')


class Images(torch.utils.data.Dataset):
    def __init__(self, folder):
        self.files = sorted(Path(folder).glob("*.py"))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        return torch.tensor([float(self.files[index].stat().st_size)]), index % 3


contract = Contract(dataset=Images(Path(torch.__file__).parent / "nn"), name="images")
