"""What a library's function returns, and the dataset's code drops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Pictures(Dataset[Any]):
    def __init__(self) -> None:
        self.rows = np.random.RandomState(0).rand(10, 6, 6).astype("float32")

    def __len__(self) -> int:
        return len(self.rows)

    def changed(self, row: Any, i: int) -> Any:
        raise NotImplementedError

    def __getitem__(self, i: int) -> Any:
        return torch.as_tensor(self.changed(self.rows[i].copy(), i).copy()), i % 2


class Flipped(Pictures):
    def changed(self, row, i):
        if i % 2:
            np.fliplr(row)  # BUG
        return row


class Padded(Pictures):
    def changed(self, row, i):
        made = torch.from_numpy(row)
        F.normalize(made, dim=1)  # BUG
        return made.numpy()


class Assigned(Pictures):
    def changed(self, row, i):
        row = np.fliplr(row)
        return np.ascontiguousarray(row)


class InPlace(Pictures):
    """Functions that write to what they are given, and give it back or nothing."""

    def changed(self, row, i):
        np.random.RandomState(i).shuffle(row)
        np.clip(row, 0, 1, out=row)
        np.fill_diagonal(row, 0)
        np.abs(np.fft.ifftshift(row), out=row)
        torch.nn.init.zeros_(torch.from_numpy(row)[0])
        return row


class Own(Pictures):
    """A function of one's own may do more than return something."""

    def warm(self, i):
        self.last = i
        return self.rows[i] + 1

    def changed(self, row, i):
        self.warm(i)
        return row


def check(dataset: Any) -> Any:
    return Contract(dataset=dataset()).check(["samples-valid"])


@pytest.mark.parametrize("dataset", [Flipped, Padded])
def test_a_result_that_is_dropped_is_told_at_its_line(dataset: Any) -> None:
    [found] = check(dataset).findings
    assert (found.status, found.code) == ("violated", "result-unread")
    assert "# BUG" in found.location.text


@pytest.mark.parametrize("dataset", [Assigned, InPlace, Own])
def test_what_is_taken_or_written_is_right(dataset: Any) -> None:
    assert [f.status for f in check(dataset).findings] == ["passed"]
