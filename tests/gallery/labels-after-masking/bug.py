"""A collate function that masks tokens, and then takes the labels from the masked ones."""

import torch

from pytest_torchcheck import Contract, promises

CHECKS = ("collate-pairing", "random-augmentation")
MASK = 4


class Sentences(torch.utils.data.Dataset):
    def __len__(self):
        return 16

    def __getitem__(self, index):
        g = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(5, 40, (10,), generator=g), "number": index}


def masked(rows):
    ids = torch.stack([row["input_ids"] for row in rows])
    chosen = torch.rand(ids.shape) < 0.3
    ids[chosen] = MASK
    labels = ids.masked_fill(~chosen, -100)
    numbers = torch.tensor([row["number"] for row in rows])
    return {"input_ids": ids, "number": numbers, "labels": labels}


contract = Contract(
    dataset=Sentences(),
    loader={"batch_size": 8, "collate_fn": masked},
    promises=(promises.RandomAugmentation(),),
    name="sentences",
)
