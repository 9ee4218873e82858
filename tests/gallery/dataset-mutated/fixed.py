"""An augmentation in place: every reading changes the stored sample."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('samples-valid', 'samples-unchanged')


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        sample = self.data[index].clone()
        sample *= 0.5
        return sample, index % 3


contract = Contract(dataset=Images(), name="images")
