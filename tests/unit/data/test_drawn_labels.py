"""Labels drawn at each read beside the same inputs are suspicious; what is drawn with its inputs, or is no label, is not."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from pytest_torchcheck import Contract


class Rows(Dataset[Any]):
    def __init__(self, count: int = 20) -> None:
        self.rows = torch.randn(count, 5, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.rows)


class Guessed(Rows):
    def __getitem__(self, index: int) -> dict[str, Any]:
        grade = random.choice([0, 1, 2, 3])
        return {"row": self.rows[index], "label": grade}


class ByNoise(Rows):
    """The input is drawn too: its label may follow from it."""

    def __getitem__(self, index: int) -> Any:
        row = self.rows[index] + torch.randn(5)
        return row, int(row.sum() > 0)


class NegativeItems(Rows):
    """A user, an item and one that the user does not know: drawn, and no label."""

    def __getitem__(self, index: int) -> Any:
        return index, index + 100, random.randrange(200, 300)


class OfTheRow(Rows):
    def __getitem__(self, index: int) -> Any:
        return self.rows[index], int(self.rows[index].sum() > 0)


def codes(dataset: Dataset[Any]) -> list[tuple[str, str]]:
    report = Contract(dataset=dataset).check(["dataset-labels"])
    return [(one.status, one.code) for one in report.findings if one.status != "passed"]


def test_a_label_drawn_beside_its_stored_row_is_told_with_its_line() -> None:
    report = Contract(dataset=Guessed()).check(["dataset-labels"])
    (found,) = (one for one in report.findings if one.code == "label-drawn")
    assert found.status == "suspicious"
    assert found.location is not None
    assert "random.choice" in found.location.text


@pytest.mark.parametrize("dataset", [ByNoise, NegativeItems, OfTheRow])
def test_what_follows_from_its_inputs_or_is_no_label_is_not_told(dataset: type[Rows]) -> None:
    assert ("suspicious", "label-drawn") not in codes(dataset())


def test_the_drawing_of_a_declared_input_is_not_told() -> None:
    class Steps(Rows):
        def __getitem__(self, index: int) -> Any:
            return self.rows[index], random.randrange(1000)

    class Denoiser(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.steps = torch.nn.Linear(5, 5), torch.nn.Embedding(1000, 5)

        def forward(self, row: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return self.body(row) + self.steps(step)

    report = Contract(
        model=Denoiser,
        dataset=Steps(),
        batch={"row": torch.randn(4, 5), "step": torch.randint(0, 1000, (4,))},
        loss=lambda output: output.square().mean(),
    ).check(["dataset-labels"])
    assert not [one for one in report.findings if one.code == "label-drawn"]
