"""A sampler that ignores the seed."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('loader-order',)


class Images(torch.utils.data.Dataset):
    def __init__(self):
        self.data = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, index):
        return self.data[index], index % 3


class Shuffled(torch.utils.data.Sampler):
    def __len__(self):
        return 24

    def __iter__(self):
        return iter(torch.randperm(24).tolist())


contract = Contract(dataset=Images(), loader={"batch_size": 4, "sampler": Shuffled()}, name="images")
