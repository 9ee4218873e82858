"""A collate function for summaries that keeps the first tokens of document and summary together."""

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

CHECKS = ("collate-pairing",)


class Articles(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, place):
        generator = torch.Generator().manual_seed(place)
        length = 5 + 3 * place
        return {
            "document": torch.randint(1, 90, (length,), generator=generator).tolist(),
            "summary": torch.randint(1, 90, (4,), generator=generator).tolist(),
        }


def collate(samples, most=24):
    rows = []
    for sample in samples:
        document, summary = sample["document"], sample["summary"]
        ids = document + summary
        labels = [-100] * len(document) + summary
        rows.append((ids[:most], labels[:most]))
    width = max(len(ids) for ids, _ in rows)
    return {
        "input_ids": torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in rows]),
        "labels": torch.tensor([row + [-100] * (width - len(row)) for _, row in rows]),
    }


net = Contract(dataset=Articles(), loader={"batch_size": 4, "collate_fn": collate})
