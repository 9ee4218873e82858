from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_torchcheck import Contract


class Rows(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, place: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(place)
        return {"x": torch.randn(4, generator=generator), "label": place % 3}


def plain(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {
        "x": torch.stack([row["x"] for row in rows]),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def rolled(rows: list[Any]) -> dict[str, torch.Tensor]:
    made = plain(rows)
    return {**made, "labels": made["labels"].roll(1)}


def reordered(rows: list[Any]) -> dict[str, torch.Tensor]:
    return plain(rows[::-1])


def places(rows: list[Any]) -> dict[str, torch.Tensor]:
    return {"x": plain(rows)["x"], "labels": torch.arange(len(rows))}


def mixing(rows: list[Any]) -> dict[str, torch.Tensor]:
    made = plain(rows)
    return {**made, "x": made["x"] - made["x"].mean(0)}


def shuffling(rows: list[Any]) -> dict[str, torch.Tensor]:
    made = plain(rows)
    return {**made, "labels": made["labels"][torch.randperm(len(rows))]}


def popping(rows: list[Any]) -> dict[str, torch.Tensor]:
    labels = torch.tensor([row.pop("label") for row in rows])
    return {"labels": labels, "x": torch.stack([row["x"] for row in rows])}


@pytest.mark.parametrize(
    ("collate", "status"),
    [
        (plain, "passed"),
        (reordered, "passed"),
        (popping, "passed"),
        (rolled, "violated"),
        (shuffling, "violated"),
        (places, "not-applicable"),  # labels of the batch, not of samples
        (mixing, "not-applicable"),  # no row can be found again
    ],
)
def test_labels_go_with_their_samples(collate: Any, status: str) -> None:
    contract = Contract(dataset=Rows(), loader={"batch_size": 6, "collate_fn": collate})
    (finding,) = contract.check(["collate-pairing"]).findings
    assert finding.status == status, finding.summary
    if status == "violated":
        assert finding.code == "collate-mixes-labels"
        assert finding.location is not None
        assert finding.location.text.startswith("return {**made")
        assert finding.location.function == collate.__name__


class Sorting:
    """Sorts for packing: by a line that orders all, by lines of its own for inputs and labels, or the inputs alone."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self, rows: list[Any]) -> dict[str, torch.Tensor]:
        if self.how == "all":
            rows = sorted(rows, key=lambda row: float(row["x"][0]))
        made = plain(rows)
        if self.how == "inputs":
            order = made["x"][:, 0].argsort()
            made["x"] = made["x"][order]
        elif self.how == "apart":
            made["x"] = made["x"][made["x"][:, 0].argsort()]
            made["labels"] = made["labels"].sort().values
        return made


@pytest.mark.parametrize("how", ["all", "inputs", "apart"])
def test_the_one_line_that_orders_anew_is_named(how: str) -> None:
    contract = Contract(dataset=Rows(), loader={"batch_size": 6, "collate_fn": Sorting(how)})
    (finding,) = contract.check(["collate-pairing"]).findings
    assert finding.status == ("passed" if how == "all" else "violated")
    if how == "inputs":
        assert finding.location is not None
        assert finding.location.text == 'order = made["x"][:, 0].argsort()'
        assert finding.culprits[0].name == "order"
    elif how == "apart":
        assert finding.location is not None
        assert finding.location.text == "class Sorting:"
    if how != "all":
        assert "return made" in {one.location.text for one in finding.culprits if one.location}


class Sequences:
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return 1 + torch.arange(index, index + 2 + index % 5)


class Masking:
    """Pads sequences, and marks them, one position more of each, or every position."""

    def __init__(self, extra: int, pad: int = 0, *, everything: bool = False) -> None:
        self.extra, self.pad, self.everything = extra, pad, everything

    def __call__(self, rows: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        lengths = torch.tensor([len(row) for row in rows])
        ids = torch.full((len(rows), int(lengths.max())), self.pad)
        for place, row in enumerate(rows):
            ids[place, : len(row)] = row
        mask = torch.arange(ids.shape[1]) < lengths[:, None] + self.extra  # the mask
        return {"ids": ids, "mask": torch.ones_like(mask) if self.everything else mask}


@pytest.mark.parametrize(
    ("collate", "status"),
    [
        (Masking(1), "violated"),
        (Masking(1, pad=5), "suspicious"),  # what pads is an id, such as the end of a sequence
        (Masking(0), "passed"),
        (Masking(0, everything=True), "passed"),
    ],
    ids=["too-long", "end-of-sequence", "right", "everything"],
)
def test_a_mask_is_as_long_as_its_sample(collate: Masking, status: str) -> None:
    contract = Contract(dataset=Sequences(), loader={"batch_size": 6, "collate_fn": collate})
    found = contract.check("collate-pairing").findings
    assert {finding.status for finding in found} == {status}
    for finding in found:
        if finding.status == status == "violated":
            assert finding.code == "mask-too-long"
            assert finding.location is not None
            assert finding.location.text.endswith("# the mask")


class Dialogues(torch.utils.data.Dataset[Any]):
    """Three turns of a conversation each, of various lengths, with nothing that is a label."""

    def __len__(self) -> int:
        return 16

    def __getitem__(self, place: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(place)
        lengths = torch.randint(2, 9, (3,), generator=generator).tolist()
        return tuple(torch.randint(3, 50, (n,), generator=generator) for n in lengths)


def padded(columns: Any) -> dict[str, torch.Tensor]:
    batch = {}
    for name, column in zip(("first", "answer", "reply"), columns, strict=True):
        batch[name] = torch.nn.utils.rnn.pad_sequence(list(column), batch_first=True)
        batch[f"{name}_length"] = torch.tensor([len(turn) for turn in column])
    return batch


def sorted_together(items: list[Any]) -> dict[str, torch.Tensor]:
    return padded(zip(*sorted(items, key=lambda turns: -len(turns[0])), strict=True))


def sorted_apart(items: list[Any]) -> dict[str, torch.Tensor]:
    first, answer, reply = zip(*items, strict=True)
    answer = sorted(answer, key=len, reverse=True)
    return padded((first, answer, reply))


def with_negatives(items: list[Any]) -> dict[str, torch.Tensor]:
    made = padded(zip(*items, strict=True))
    return {**made, "other": made["answer"].roll(1, 0)}  # negatives: answers of other samples


def ranked(items: list[Any]) -> dict[str, torch.Tensor]:
    made = padded(zip(*items, strict=True))
    return {**made, "order": made["first_length"].argsort()}  # of the batch, not of samples


@pytest.mark.parametrize("collate", [sorted_together, with_negatives, ranked])
def test_fields_in_one_order_are_no_finding(collate: Any) -> None:
    contract = Contract(dataset=Dialogues(), loader={"batch_size": 6, "collate_fn": collate})
    (finding,) = contract.check(["collate-pairing"]).findings
    assert finding.status in ("passed", "not-applicable"), finding.summary


def test_a_field_in_an_order_of_its_own_is_named() -> None:
    contract = Contract(dataset=Dialogues(), loader={"batch_size": 6, "collate_fn": sorted_apart})
    (finding,) = contract.check(["collate-pairing"]).findings
    assert finding.code == "collate-mixes-fields"
    assert "answer" in finding.summary
    assert finding.location is not None
    assert finding.location.text.startswith("answer = sorted(")


def every_other(rows: list[Any]) -> Any:
    return [(row["x"], row["label"]) for row in rows[::2]]


def of_the_last(rows: list[Any]) -> Any:
    row = rows[-1]
    return {"x": [row["x"] for _ in rows], "labels": [row["label"] for row in rows]}


def emptied(rows: list[Any]) -> Any:
    made = plain(rows)
    return {**made, "x": torch.empty_like(made["x"]).fill_(1.0)}


def as_bytes(rows: list[Any]) -> Any:
    made = plain(rows)
    return {**made, "x": (made["x"] * 1.0).round().to(torch.int8)}


def scaled_one_by_one(rows: list[Any]) -> Any:
    made = plain(rows)
    return {**made, "x": ((made["x"] - 3) / 7).to(torch.bfloat16)}


def longest_only(rows: list[Any]) -> Any:
    made = plain(rows)
    return {"x": made["x"][made["labels"] == made["labels"].max()]}


def unlabelled(rows: list[Any]) -> Any:
    return plain(rows)["x"]


def arrays(rows: list[Any]) -> Any:
    return [row["x"].numpy() for row in rows], plain(rows)["labels"]


@pytest.mark.parametrize(
    ("collate", "status"),
    [
        (every_other, "violated"),
        (of_the_last, "violated"),
        (emptied, "violated"),
        (as_bytes, "suspicious"),
        (scaled_one_by_one, ""),
        (longest_only, ""),
        (unlabelled, ""),
        (arrays, ""),
    ],
)
def test_every_sample_reaches_the_batch(collate: Any, status: str) -> None:
    contract = Contract(dataset=Rows(), loader={"batch_size": 6, "collate_fn": collate})
    (finding,) = contract.check(["collate-pairing"]).findings
    if status:
        assert (finding.status, finding.code) == (status, "collate-loses-values")
    else:
        assert finding.status in ("passed", "not-applicable"), finding.summary
