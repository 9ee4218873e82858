"""Masks of one value: cut off by a cast, all background, or as they should be."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, Labels

GENERATOR = torch.Generator().manual_seed(0)
MASKS = torch.randint(0, 4, (10, 5, 6), generator=GENERATOR).to(torch.uint8)


class Masks(Dataset):
    def __init__(self, how: str) -> None:
        self.how = how

    def __len__(self):
        return len(MASKS)

    def __getitem__(self, i):
        image = MASKS[i].float()[None]
        if self.how == "scaled":
            mask = MASKS[i].float().div(255).long()
        elif self.how == "background":
            mask = torch.zeros(5, 6, dtype=torch.long)
        else:
            mask = MASKS[i].float().long()
        return image, mask


def finding(how: str):
    report = Contract(
        dataset=Masks(how), targets=Labels("B H W", classes=4), inputs="B 1 H W"
    ).check(["dataset-labels"])
    (found,) = report.findings
    return found


@pytest.mark.parametrize(
    ("how", "status"), [("scaled", "violated"), ("background", "suspicious"), ("right", "passed")]
)
def test_masks_of_one_value(how, status):
    found = finding(how)
    assert found.status == status, found


def test_the_cast_is_named():
    found = finding("scaled")
    assert found.code == "label-constant"
    assert found.location.text.startswith("mask = MASKS[i].float().div(255).long()")
    assert "4 values from 0 to 0.0118" in found.because
