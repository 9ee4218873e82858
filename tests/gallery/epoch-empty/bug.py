"""A batch sampler that keeps its batches as an iterator: the second epoch has none."""

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


class Batches(torch.utils.data.Sampler):
    def __init__(self):
        self.groups = map(list, torch.arange(24).split(4))

    def __len__(self):
        return 6

    def __iter__(self):
        groups = [[int(index) for index in group] for group in self.groups]
        yield from (groups[n] for n in torch.randperm(len(groups)).tolist())


contract = Contract(dataset=Images(), loader={"batch_sampler": Batches()}, name="images")
