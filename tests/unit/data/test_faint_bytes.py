"""Stored bytes must move a sample by more than a fraction of its values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Frames(Dataset):
    """Grey frames of bytes, with the number of the frame as its label."""

    def __init__(self, prepare, *, stored: str = "array") -> None:
        frames = np.random.RandomState(0).randint(0, 256, (12, 6, 5)).astype(np.uint8)
        self.frames = {"array": frames, "tensor": torch.from_numpy(frames), "list": list(frames)}[
            stored
        ]
        self.prepare = prepare

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, i: int):
        frame = torch.as_tensor(self.frames[i]).float()
        return self.prepare(frame), i % 3


def told(prepare, **options):
    contract = Contract(dataset=Frames(prepare, **options), loader={"batch_size": 4})
    (finding,) = contract.check(["samples-valid"]).findings
    return finding


def normalised_bytes(x):
    return (x / 255 - 128.0) / 60.0  # statistics of bytes


def divided_twice(x):
    return (x / 255 / 255 - 0.45) / 0.22


@pytest.mark.parametrize("stored", ["array", "tensor", "list"])
@pytest.mark.parametrize("prepare", [normalised_bytes, divided_twice])
def test_bytes_that_a_constant_outweighs(prepare, stored):
    finding = told(prepare, stored=stored)
    assert (finding.status, finding.code) == ("violated", "sample-faint")
    assert finding.location.text.startswith("return (x / 255")


def standardised(x):
    return (x - x.mean()) / (x.std() + 1e-6)


def refuses_blank(x):
    if float(x.std()) == 0:
        raise ValueError("a blank frame")
    return x / 255


@pytest.mark.parametrize(
    "prepare",
    [
        lambda x: x,
        lambda x: x / 255,
        lambda x: (x / 255 - 0.45) / 0.22,
        lambda x: x / 127.5 - 1,
        lambda x: (x / 255).clamp(0.2, 0.9).log(),
        standardised,
        refuses_blank,
        lambda x: (x > 100).float(),
        lambda x: torch.randn_like(x) + x / 255,
    ],
    ids=["bytes", "unit", "normal", "centred", "logs", "each", "refused", "binary", "noise"],
)
def test_bytes_that_count(prepare):
    assert told(prepare).status == "passed"


def test_what_was_stored_is_put_back():
    dataset = Frames(divided_twice)
    before = dataset.frames.copy()
    Contract(dataset=dataset, loader={"batch_size": 4}).check(["samples-valid"])
    assert (dataset.frames == before).all()
