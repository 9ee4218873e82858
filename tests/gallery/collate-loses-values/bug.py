"""A collate function that takes the signal of one sample for the whole batch."""

import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract

CHECKS = ("collate-pairing",)


class Signals(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, place):
        generator = torch.Generator().manual_seed(place)
        return {"signal": torch.randn(30, generator=generator), "label": place % 3}


def collate(samples):
    for sample in samples:
        assert sample["signal"].isfinite().all()
    return {
        "signal": torch.stack([sample["signal"] for _ in samples]),
        "label": torch.tensor([sample["label"] for sample in samples]),
    }


net = Contract(dataset=Signals(), loader={"batch_size": 4, "collate_fn": collate})
