"""A stream in blocks of equal size, so that the remainder is in none."""

import torch
from torch.utils.data import IterableDataset, get_worker_info

from pytest_torchcheck import Contract

CHECKS = ("worker-sharding",)


class Records(IterableDataset):
    def __init__(self):
        self.records = torch.arange(46.0).view(23, 2)

    def __iter__(self):
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        block = len(self.records) // workers
        yield from self.records[number * block : (number + 1) * block]


records = Contract(dataset=Records(), loader={"batch_size": 4, "num_workers": 2})
