"""Windows of measured curves that are given noise first, several times each, and are split afterwards."""

import torch

from pytest_torchcheck import Contract

CHECKS = ("split-hygiene",)


class Windows(torch.utils.data.Dataset):
    def __init__(self, windows, labels):
        self.windows, self.labels = windows, labels

    def __len__(self):
        return len(self.windows)

    def __getitem__(self, index):
        return self.windows[index], int(self.labels[index])


g = torch.Generator().manual_seed(0)
windows, labels = torch.randn(40, 12, generator=g), torch.randint(3, (40,), generator=g)


def noisy(rows):
    return rows + 1e-3 * torch.randn(rows.shape, generator=g)


copies = torch.cat((noisy(windows), noisy(windows)))
order = torch.randperm(80, generator=g)
copies, labels = copies[order], labels.repeat(2)[order]
SPLITS = {"train": Windows(copies[:60], labels[:60]), "eval": Windows(copies[60:], labels[60:])}


contract = Contract(dataset=SPLITS, name="curves")
