"""A padding mask that counts one position too many."""

import torch

from pytest_torchcheck import Contract

CHECKS = ('collate-pairing',)


class Sequences(torch.utils.data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return 1 + torch.arange(index, index + 2 + index % 5), index % 3


def collate(items):
    rows = [row for row, _ in items]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    mask = torch.arange(ids.shape[1]) <= lengths[:, None]
    return {"ids": ids, "mask": mask, "labels": torch.tensor([label for _, label in items])}


contract = Contract(dataset=Sequences(), loader={"batch_size": 6, "collate_fn": collate}, name="sequences")
