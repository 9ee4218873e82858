"""Samples that a sampler never draws, and samples of several sizes that a sampler keeps apart."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from pytest_torchcheck import Contract


class Ragged(Dataset):
    def __init__(self, sizes):
        self.sizes = sizes

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return torch.full((self.sizes[index],), float(index))


SIZES = [3] * 8 + [5] * 6 + [9]


class Grouped(Sampler):
    """Batches of one size; whole batches only where ``whole``."""

    def __init__(self, sizes, per_batch, *, whole=False, drop_last=False):
        self.sizes, self.per_batch, self.whole, self.drop_last = sizes, per_batch, whole, drop_last

    def __iter__(self):
        for size in set(self.sizes):
            own = [i for i, s in enumerate(self.sizes) if s == size]
            random.shuffle(own)
            count = -(-len(own) // self.per_batch)
            if self.whole or self.drop_last:
                count = len(own) // self.per_batch  # whole batches
            yield from (own[n * self.per_batch : (n + 1) * self.per_batch] for n in range(count))


class NotTooLong(Grouped):
    """Leaves out what is longer than allowed, on purpose."""

    def __iter__(self):
        for batch in super().__iter__():
            if all(self.sizes[i] < 8 for i in batch):
                yield batch


class Renewed(Sampler):
    """Drops the rest of a new order in each epoch: every sample comes in some epoch."""

    def __init__(self, count, size):
        self.count, self.size = count, size

    def __iter__(self):
        order = torch.randperm(self.count).tolist()
        yield from (
            order[n : n + self.size] for n in range(0, self.count - self.size + 1, self.size)
        )


def check(sampler, sizes=SIZES, checks=("samples-valid", "loader-order")):
    return Contract(dataset=Ragged(sizes), loader={"batch_sampler": sampler}).check(list(checks))


def test_a_group_smaller_than_a_batch_is_named_with_the_line_that_counts():
    (found,) = check(Grouped(SIZES, 2, whole=True)).causes
    assert (found.check, found.code) == ("loader-order", "samples-never-drawn")
    assert found.evidence["never drawn"] == [14]
    assert found.location.text.endswith("# whole batches")


@pytest.mark.parametrize(
    "sampler",
    [Grouped(SIZES, 2), Grouped(SIZES, 2, drop_last=True), NotTooLong(SIZES, 2)],
    ids=["all", "drop-last", "filtered"],
)
def test_samplers_that_keep_sizes_apart_are_sound(sampler):
    assert check(sampler).ok
    own = DataLoader(Ragged(SIZES), batch_sampler=sampler)
    assert Contract(dataset=own.dataset, loader=own).check(["samples-valid", "loader-order"]).ok


def test_a_rest_that_differs_in_each_epoch_is_sound():
    assert check(Renewed(15, 4), [4] * 15).ok


def test_batches_of_several_sizes_still_do_not_stack():
    (found,) = check(Renewed(15, 4), checks=["samples-valid"]).causes
    assert found.code == "samples-do-not-stack"


class Buckets(torch.utils.data.Sampler):
    """Gives the batches that it was made with, in another order in each epoch."""

    def __init__(self, keep):
        self.batches = keep([list(range(n, n + 2)) for n in range(0, len(SIZES) - 1, 2)])  # kept

    def __iter__(self):
        pool = list(self.batches)
        yield from (pool[n] for n in torch.randperm(len(pool)).tolist())


def test_a_sampler_that_is_used_up_by_its_first_epoch():
    found = check(Buckets(iter), checks=["loader-order"]).causes
    assert [one.code for one in found] == ["epoch-empty"]
    assert found[0].location.text.endswith("# kept")
    assert "batches" in found[0].cause


def test_a_sampler_that_keeps_a_list():
    assert "epoch-empty" not in {f.code for f in check(Buckets(list)).findings}


class Spent(Buckets):
    """Forgets its batches as it gives them."""

    def __iter__(self):
        while self.batches:
            yield self.batches.pop()


def test_a_sampler_that_forgets_what_it_gave():
    found = check(Spent(list), checks=["loader-order"]).causes
    assert [one.code for one in found] == ["epoch-empty"]
    assert found[0].cause == "what it reads from is used up"


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, index):
        return torch.full((3,), float(index)), index % 3


class Again(Sampler):
    """Draws one sample for every place of an epoch, perhaps another one in the next."""

    def __init__(self, moves=False):
        self.moves, self.epoch = moves, -1

    def __iter__(self):
        self.epoch += 1
        return iter([5 + self.epoch * self.moves] * 24)


def order_of(dataset, loader):
    return Contract(dataset=dataset, loader=loader).check(["loader-order"]).findings


@pytest.mark.parametrize(
    "loader",
    [
        lambda rows: DataLoader(rows, batch_size=8, sampler=[5] * 24),
        lambda rows: DataLoader(rows, batch_sampler=[[5] * 8] * 3),
        lambda rows: {"batch_size": 8, "sampler": Again()},
        lambda rows: DataLoader(
            rows, batch_size=8,
            sampler=torch.utils.data.WeightedRandomSampler([0.0] * 5 + [1.0] + [0.0] * 18, 24),
        ),
    ],
    ids=["list", "batches", "sampler", "weights"],
)  # fmt: skip
def test_one_sample_alone_is_told(loader):
    rows = Rows()
    (found,) = order_of(rows, loader(rows))
    assert (found.status, found.code) == ("suspicious", "samples-never-drawn")
    assert "draws sample 5 alone, and never the other 23" in found.summary


def test_a_loader_of_a_twin_is_the_loader_of_the_only_dataset():
    (found,) = order_of({"train": Rows()}, DataLoader(Rows(), batch_size=8, sampler=[5] * 24))
    assert found.code == "samples-never-drawn"


@pytest.mark.parametrize(
    "loader",
    [
        lambda rows: DataLoader(rows, batch_size=8, sampler=[0, 5] * 12),
        lambda rows: DataLoader(rows, batch_size=8, sampler=Again(moves=True)),
        lambda rows: DataLoader(rows, batch_size=2, sampler=[5] * 4),
        lambda rows: DataLoader(torch.utils.data.Subset(rows, [5]), sampler=[0] * 24),
        lambda rows: DataLoader(
            rows, sampler=torch.utils.data.RandomSampler(rows, replacement=True, num_samples=24)
        ),
    ],
    ids=["two", "moves", "few", "subset", "replacement"],
)
def test_what_draws_several_samples_or_few_is_not(loader):
    made = loader(Rows())
    assert "samples-never-drawn" not in {f.code for f in order_of(made.dataset, made)}


def test_a_dataset_that_no_loader_reads_is_said():
    other = torch.utils.data.TensorDataset(torch.randn(7, 2))
    (found,) = order_of({"eval": Rows()}, DataLoader(other, sampler=[0] * 24))
    assert found.status == "not-applicable"
    assert "no loader that reads Rows is declared" in found.summary
