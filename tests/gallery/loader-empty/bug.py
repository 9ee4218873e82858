"""A batch that is larger than the data, with drop_last."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('last-batch',)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], index % 3


LOADER = {"batch_size": 32, "drop_last": True}


contract = Contract(dataset=Images(), loader=LOADER, name="images")
