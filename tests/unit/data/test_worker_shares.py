"""The workers of a stream deliver together what one process does."""

from __future__ import annotations

import itertools
import random

import pytest
from torch.utils.data import IterableDataset, get_worker_info

from pytest_torchcheck import Contract


class Lines(IterableDataset):
    """Numbers beside their squares, shared out in one of several ways."""

    def __init__(self, way, count=17):
        self.way, self.count = way, count

    def __iter__(self):
        info = get_worker_info()
        number, workers = (0, 1) if info is None else (info.id, info.num_workers)
        for i in self.way(self.count, number, workers):
            yield float(i), i * i


def blocks(count, number, workers):
    size = count // workers
    return range(number * size, number * size + size)


def without_the_end(count, number, workers):
    return range(number, count - 1, workers) if workers > 1 else range(count)


def strided(count, number, workers):
    return range(number, count, workers)


def one_reads_all(count, number, workers):
    return range(0 if number == 0 else count, count)


def one_long_share(count, number, workers):
    """A last worker that reads more than is compared, of which nothing is lost."""
    if workers == 1:
        return range(170)
    return (range(10), range(10, 20), range(20, 170))[number]


def shuffled(count, number, workers):
    return random.sample(range(1000), count // workers)


def endless(count, number, workers):
    return itertools.count(number, workers)


def groups(count, number, workers):
    """Whole groups of its own share: other samples than those of one process."""
    share = list(range(number, count, workers))
    return [sum(share[i : i + 2]) + 1000 * workers for i in range(0, len(share) - 1, 2)]


def judged(way, workers=3):
    contract = Contract(dataset=Lines(way), loader={"batch_size": 2, "num_workers": workers})
    (found,) = contract.check(["worker-sharding"]).findings
    return found


@pytest.mark.parametrize(("way", "lost"), [(blocks, 2), (without_the_end, 1)])
def test_samples_that_no_worker_delivers(way, lost):
    found = judged(way)
    assert (found.status, found.code) == ("violated", "worker-drops")
    assert f"leave out {lost} of its 17 samples" in found.summary


@pytest.mark.parametrize("way", [strided, one_reads_all, one_long_share, shuffled, endless, groups])
def test_shares_that_add_up_or_cannot_be_compared(way):
    assert judged(way).status in ("passed", "inconclusive")


def test_blocks_that_divide():
    assert judged(blocks, workers=17).status == "passed"
