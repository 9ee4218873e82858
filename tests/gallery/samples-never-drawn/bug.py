"""Sentences in batches of one length: a length with fewer sentences than a batch is never trained on."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('loader-order',)


class SameLength(torch.utils.data.Sampler):
    def __init__(self, lengths, batch_size):
        self.lengths, self.batch_size = lengths, batch_size

    def __iter__(self):
        for length in sorted(set(self.lengths)):
            batch = []
            for index in torch.randperm(len(self.lengths)).tolist():
                if self.lengths[index] != length:
                    continue
                batch.append(index)
                if len(batch) == self.batch_size:
                    yield batch
                    batch = []


class Sentences(torch.utils.data.Dataset):
    def __init__(self, lengths):
        self.lengths = lengths

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        return torch.arange(self.lengths[index]) + index


LENGTHS = [5] * 6 + [7] * 9 + [12] * 2
contract = Contract(
    dataset=Sentences(LENGTHS),
    loader={"batch_sampler": SameLength(LENGTHS, 3)},
    name="sentences",
)
