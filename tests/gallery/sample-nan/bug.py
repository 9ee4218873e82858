"""NaN in some of the samples."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('samples-valid',)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        sample = torch.rand(4, generator=torch.Generator().manual_seed(index))
        sample[0] = float("nan") if index % 5 == 0 else sample[0]
        return sample, index % 3


contract = Contract(dataset=Images(), name="images")
