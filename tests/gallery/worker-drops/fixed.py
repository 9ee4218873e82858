"""A stream of which each worker reads every n-th record."""

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
        yield from self.records[number::workers]


records = Contract(dataset=Records(), loader={"batch_size": 4, "num_workers": 2})
