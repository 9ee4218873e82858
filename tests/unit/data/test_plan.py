from __future__ import annotations

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from pytest_torchcheck.data.order import epoch_of
from pytest_torchcheck.data.plan import LoaderPlan, indices, parts
from pytest_torchcheck.data.splits import overlap

DATA = TensorDataset(torch.arange(30.0).reshape(10, 3), torch.arange(10) % 2)


def test_arguments_and_loader_say_the_same() -> None:
    arguments = {"batch_size": 4, "shuffle": True, "drop_last": True, "num_workers": 0}
    from_arguments = LoaderPlan.of(arguments)
    from_loader = LoaderPlan.of(DataLoader(DATA, **arguments))
    for field in (
        "batch_size",
        "shuffle",
        "drop_last",
        "num_workers",
        "collate_fn",
        "sampler",
        "start_method",
    ):
        assert getattr(from_arguments, field) == getattr(from_loader, field), field


def test_roles_share_what_stands_beside_them() -> None:
    found = parts({"train": DATA, "eval": DATA}, {"num_workers": 2, "eval": {"batch_size": 5}})
    assert [(p.role, p.plan.num_workers, p.plan.batch_size) for p in found] == [
        ("train", 2, 1),
        ("eval", 2, 5),
    ]


def test_indices_are_the_loaders_own() -> None:
    torch.manual_seed(0)
    loader = DataLoader(DATA, 4, shuffle=True)
    (part,) = parts(DATA, loader)
    torch.manual_seed(0)
    drawn = list(indices(part))
    assert sorted(i for batch in drawn for i in batch) == list(range(10))
    assert [len(batch) for batch in drawn] == [4, 4, 2]


def test_a_sampler_of_torchs_own_says_how_many_it_draws() -> None:
    some = RandomSampler(DATA, replacement=True, num_samples=6)
    made = epoch_of(parts(DATA, DataLoader(DATA, 3, sampler=some, drop_last=True))[0])
    assert (made.batches, made.samples, made.last) == (2, 6, 3)


def test_epochs() -> None:
    def sizes(**arguments: object) -> tuple[int, int, int, int]:
        made = epoch_of(parts(DATA, arguments)[0])
        return made.batches, made.samples, made.size, made.last

    assert sizes(batch_size=4) == (3, 10, 4, 2)
    assert sizes(batch_size=4, drop_last=True) == (2, 8, 4, 4)
    assert sizes(batch_size=16) == (1, 10, 10, 10)
    assert sizes(batch_size=16, drop_last=True) == (0, 0, 16, 0)
    assert sizes(batch_sampler=BatchSampler(SequentialSampler(DATA), 3, False)) == (4, 10, 3, 1)


def _overlap(first: object, second: object) -> object:
    return overlap(*parts({"train": first, "eval": second}, None))


def test_overlap_by_indices_rows_and_contents() -> None:
    by_index = _overlap(Subset(DATA, [0, 1, 2]), Subset(DATA, [2, 3]))
    assert (by_index.how, by_index.shared, by_index.pairs) == ("indices", 1, ((2, 0),))
    other = TensorDataset(
        torch.cat([torch.full((4, 3), -1.0), DATA.tensors[0][7:8]]), torch.zeros(5)
    )
    by_row = _overlap(DATA, other)
    assert (by_row.how, by_row.where, by_row.shared, by_row.pairs) == (
        "rows",
        "tensors[0]",
        1,
        ((7, 4),),
    )
    as_read = _overlap([DATA[i] for i in range(8)], [DATA[i] for i in range(7, 10)])
    assert (as_read.how, as_read.shared, as_read.is_complete) == ("contents", 1, True)


class Records:
    """Samples as bytes, one record each, decoded as they are read."""

    def __init__(self, records: list[bytes]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.frombuffer(bytearray(self.records[index]), dtype=torch.uint8), index % 2


def test_overlap_of_stored_bytes() -> None:
    records = [bytes([value]) * 300 for value in range(8)]
    found = _overlap(Records(records[:5]), Records(records[4:]))
    assert (found.how, found.where, found.shared, found.pairs) == ("rows", "records", 1, ((4, 0),))
    keys = [record[:16] for record in records]  # may name what stands elsewhere
    assert _overlap(Records(keys[:5]), Records(keys[4:])).how == "contents"


def test_data_that_repeats_itself_is_no_leak() -> None:
    few = torch.randint(0, 2, (64, 3)).float()
    found = _overlap(TensorDataset(few), TensorDataset(few.clone()))
    assert found.shared == 64
    assert found.repeated == 1.0
