"""Arithmetic on stored bytes must not wrap around."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract
from pytest_torchcheck.data.relations import wrapped_bytes


class Tiles(Dataset):
    """Grey tiles of bytes, with a mask of bytes that counts its classes from 1."""

    def __init__(self, change) -> None:
        generator = np.random.RandomState(0)
        self.tiles = [generator.randint(0, 200, (5, 4)).astype(np.uint8) for _ in range(10)]
        self.masks = [generator.randint(0, 4, (5, 4)).astype(np.uint8) for _ in range(10)]
        self.change = change

    def __len__(self) -> int:
        return len(self.tiles)

    def __getitem__(self, i: int):
        tile = torch.as_tensor(self.change(self.tiles[i])).float() / 255
        background = self.masks[i] - 1  # 0 becomes 255, which the loss is to ignore
        return tile, torch.from_numpy(background.astype(np.int64))


def told(change):
    contract = Contract(dataset=Tiles(change), loader={"batch_size": 4})
    (finding,) = contract.check(["samples-valid"]).findings
    return finding


brighter = functools.partial(lambda by, x: x + by, 40)  # HERE


def darker(x):
    return torch.from_numpy(x) - 30  # HERE


def in_place(x):
    x = x.copy()
    x *= 2  # HERE
    return x


def drawn(x):
    return x * random.randint(50, 90) // 100  # HERE


def sometimes(x):
    if random.random() < 0.8:
        x = np.flip(x, 0) ** 2 / 255  # HERE
    return x


@pytest.mark.parametrize(
    "change",
    [brighter, darker, in_place, drawn, sometimes],
    ids=["brighter", "darker", "in-place", "drawn", "sometimes"],
)
def test_bytes_that_wrap_around(change):
    finding = told(change)
    assert (finding.status, finding.code) == ("violated", "integer-wraps")
    assert finding.location.text.endswith("# HERE")


def saturated(x):
    return np.where(x > 215, 255, x + 40)


def signed(x):
    return (x - 128).view(np.int8)


def solarised(x):
    return np.where(x > 120, 255 - x, x)


def either(x):
    return solarised(x) if x.dtype == np.uint8 else x * 5


@pytest.mark.parametrize(
    "change",
    [
        saturated,
        signed,
        solarised,
        either,
        lambda x: x,
        lambda x: 255 - x,
        lambda x: x // 64 * 64,
        lambda x: x ^ 85,
        lambda x: (x.astype(np.float32) * 1.4).clip(0, 255).astype(np.uint8),
        lambda x: (x.astype(np.int16) * random.randint(50, 90) // 100).astype(np.uint8),
        lambda x: np.roll(x[:, ::-1], random.randint(0, 3), 0) / 1.5 + 20,
        lambda x: (np.arange(256) ** 0.7)[x],
    ],
    ids=[
        "saturated", "signed", "solarised", "either", "bytes", "inverted", "levels", "bits",
        "contrast", "dimmed", "moved", "gamma",
    ],
)  # fmt: skip
def test_bytes_that_do_not(change):
    assert told(change).status == "passed"


class ByPixel(Dataset):
    """Adds up the bytes of a picture one by one."""

    def __init__(self) -> None:
        self.pictures = np.arange(1600, dtype=np.uint16).reshape(4, 20, 20).astype(np.uint8)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int):
        total = 0.0
        for row in self.pictures[index]:
            for value in row:
                total = total + float(value) * 2
        return torch.full((2,), total / 400), index % 2


def test_a_loop_over_pixels_is_computed_ahead_at_its_start_only(monkeypatch):
    looks = []
    monkeypatch.setattr(wrapped_bytes, "_wrapped", lambda node, frame: looks.append(node) or ())
    Contract(dataset=ByPixel()).check(["samples-valid"])
    assert 0 < len(looks) <= 6 * 64  # of 4 800 in the six reads that are traced
