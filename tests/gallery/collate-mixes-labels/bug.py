"""A collate function sorts the sequences by length and leaves the labels as they were."""

import torch

from pytest_torchcheck import Contract

CHECKS = ("collate-pairing",)


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(1, 50, (3 + index * 7 % 5,), generator=generator), index % 3


def collate(samples):
    sequences = sorted((ids for ids, _ in samples), key=len, reverse=True)
    labels = torch.tensor([label for _, label in samples])
    return torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True), labels


contract = Contract(
    dataset=Sentences(), loader={"batch_size": 8, "collate_fn": collate}, name="sentences"
)
