"""Batches of masked tokens: labels are what was masked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pad_sequence

from pytest_torchcheck import Contract

MASK = 4


class Sentences(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        drawn = torch.Generator().manual_seed(index)
        return {"input_ids": torch.randint(5, 40, (8 + index % 5,), generator=drawn)}


def padded(rows: list[Any]) -> torch.Tensor:
    return pad_sequence([row["input_ids"] for row in rows], batch_first=True)


def chosen_of(ids: torch.Tensor) -> torch.Tensor:
    return (torch.rand(ids.shape) < 0.3) & (ids > 0)


def masked(rows: list[Any]) -> dict[str, torch.Tensor]:
    ids = padded(rows)
    chosen = chosen_of(ids)
    labels = ids.masked_fill(~chosen, -100)
    return {"input_ids": ids.masked_fill(chosen, MASK), "labels": labels}


def read_late(rows: list[Any]) -> dict[str, torch.Tensor]:
    ids = padded(rows)
    chosen = chosen_of(ids)
    ids[chosen & (torch.rand(ids.shape) < 0.8)] = MASK
    labels = ids.masked_fill(~chosen, -100)  # LATE
    return {"input_ids": ids, "labels": labels}


def replaced_at_random(rows: list[Any]) -> dict[str, torch.Tensor]:
    ids = padded(rows)
    chosen = chosen_of(ids)
    ids = torch.where(chosen, torch.randint(5, 40, ids.shape), ids)
    return {"input_ids": ids, "labels": torch.where(chosen, ids, -100)}  # LATE


def next_tokens(rows: list[Any]) -> dict[str, torch.Tensor]:
    """The model shifts them."""
    ids = padded(rows)
    return {"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100)}


def of_windows(rows: list[Any]) -> dict[str, torch.Tensor]:
    """Next tokens of windows whose start and length are drawn."""
    made = []
    for row in rows:
        first, count = torch.randint(0, 4, (2,)).tolist()
        made.append({"input_ids": row["input_ids"][first : first + 4 + count]})
    ids = torch.nn.functional.pad(padded(made), (0, 12))[:, :12]
    return {"input_ids": ids, "labels": ids.masked_fill(ids == 0, -100)}


def of_answers(rows: list[Any]) -> dict[str, torch.Tensor]:
    """Next tokens after a prompt; answers are cut at a drawn length."""
    ids = padded(rows)
    ids[:, 6 + int(torch.randint(0, 4, ())) :] = 0
    labels = ids.masked_fill(ids == 0, -100)
    labels[:, :4] = -100
    return {"input_ids": ids, "labels": labels}


def from_a_drawn_place(rows: list[Any]) -> dict[str, torch.Tensor]:
    """Next tokens after a prefix of a drawn length."""
    ids = padded(rows)
    labels = ids.masked_fill(ids == 0, -100)
    labels[:, : int(torch.randint(1, 6, ()))] = -100
    return {"input_ids": ids, "labels": labels}


def told(collate: Any) -> Any:
    loader = {"batch_size": 8, "collate_fn": collate}
    contract = Contract(dataset=Sentences(), loader=loader)
    (found,) = contract.check(["collate-pairing"]).findings
    return found


@pytest.mark.parametrize("collate", [read_late, replaced_at_random])
def test_labels_that_are_read_after_masking_are_told(collate: Any) -> None:
    found = told(collate)
    assert (found.status, found.code) == ("violated", "labels-after-masking")
    assert found.location.text.endswith("# LATE")


@pytest.mark.parametrize(
    "collate", [masked, next_tokens, of_windows, of_answers, from_a_drawn_place]
)
def test_other_labels_pass(collate: Any) -> None:
    assert told(collate).status in ("passed", "not-applicable")
