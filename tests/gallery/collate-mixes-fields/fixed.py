"""A collate function sorts pairs by the length of their questions."""

import torch
from torch.nn.utils.rnn import pad_sequence

from pytest_torchcheck import Contract

CHECKS = ("collate-pairing",)


class Pairs(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        lengths = torch.randint(2, 9, (2,), generator=generator).tolist()
        return tuple(torch.randint(1, 50, (n,), generator=generator) for n in lengths)


def collate(pairs):
    pairs = sorted(pairs, key=lambda pair: len(pair[0]), reverse=True)
    questions, answers = zip(*pairs, strict=True)
    return {
        "questions": pad_sequence(questions, batch_first=True),
        "answers": pad_sequence(answers, batch_first=True),
    }


contract = Contract(dataset=Pairs(), loader={"batch_size": 8, "collate_fn": collate}, name="pairs")
