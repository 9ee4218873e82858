"""An evaluation that drops its last samples."""

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


TRAIN, EVAL = Images(), Images()
EVAL.data = EVAL.data[:15] + 1
LOADER = {"batch_size": 4}


contract = Contract(dataset={"train": TRAIN, "eval": EVAL}, loader=LOADER, name="images")
