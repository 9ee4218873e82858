"""A fix of a size holds for every size that is declared: what was drawn is not written into it."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract


class Scales(nn.Module):
    """Scales each position by a number of its own, normalised over positions and channels."""

    def __init__(self, count: int = 9) -> None:
        super().__init__()
        self.over = nn.LayerNorm((3, count))

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        return self.over(wave).mean(-1)


class Mixes(nn.Module):
    """Mixes the columns of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.Linear(11, 5)

    def forward(self, map: torch.Tensor) -> torch.Tensor:
        return self.columns(map.mean(1).transpose(1, 2))


class Cuts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2 * 8 * 8, 2)

    def forward(self, plane: torch.Tensor) -> torch.Tensor:
        return self.head(nn.functional.avg_pool2d(plane, 2).reshape(-1, 2 * 8 * 8))


class Viewed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(21, 2)

    def forward(self, wave: torch.Tensor) -> torch.Tensor:
        return self.head(wave.view(-1, 21))


class Anchors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.anchor = nn.Parameter(torch.zeros(1, 6, 1))
        self.body = nn.Conv1d(4, 4, 5, stride=5)

    def forward(self, tone: torch.Tensor) -> torch.Tensor:
        return self.body(tone).transpose(1, 2) * self.anchor


class Wide(nn.Module):
    """Its features are of another width than the input's, whatever the sizes are."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(7, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).mean(1))


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(3, 5)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        start = torch.zeros(1, 20, 5)
        return self.cell(steps, start)[0]


def _fix(model: type[nn.Module], check: str = "backward", **declared: Any) -> str:
    (finding,) = Contract(model=model, **declared).check([check]).causes
    assert finding.edit is None or finding.edit.tried == "passes"
    return re.sub(r"line \d+", "line N", finding.fix)


@pytest.mark.parametrize(
    ("model", "inputs", "sizes", "fix"),
    [
        (Mixes, "B 2 S R", {"S": (8, 16)}, "if the model is right, declare S=11 (tried: the forward runs); otherwise "),
        (Cuts, "B 2 S S", {"S": (16, 28, 4)}, "if the model is right, declare S=16 (tried: the forward runs); otherwise "),
        (Wide, "B T 4", {"T": (3, 9)}, "write in_features=6 instead of 7 on line N; tried: the check passes with it"),
    ],
)  # fmt: skip
def test_a_fix_names_what_is_declared(
    model: type[nn.Module], inputs: str, sizes: dict[str, Any], fix: str
) -> None:
    said, _, other = _fix(model, inputs=inputs, sizes=sizes).partition("otherwise ")
    assert said == fix.removesuffix("otherwise ")
    span = next(iter(sizes.values()))
    assert other in ("", f"make line N independent of S (declared from {span[0]} to {span[1]})")


def test_a_view_that_other_sizes_let_pass() -> None:
    """At both ends of the range the view divides what it is given."""
    fix = _fix(Viewed, inputs="B 7 L", sizes={"L": (15, 21)})
    assert "write " not in fix
    assert "independent of L" in fix


def test_sizes_by_a_step() -> None:
    fix = _fix(Anchors, inputs="B 4 S", sizes={"S": (20, 60, 5)})
    assert fix.endswith("; or, if the model is right, declare S=30 (tried: the forward runs)")


def test_a_size_that_fails_where_others_run() -> None:
    fix = _fix(Scales, "batch-sizes", inputs="B 3 L", sizes={"L": (9, 15)})
    assert "normalized_shape=" not in fix
    assert "independent of L (declared from 9 to 15)" in fix


def test_a_hidden_state_of_a_written_batch_size() -> None:
    fix = _fix(Remembers, inputs="T B 3", batch_dim=1)
    assert (
        fix
        == "create the hidden state with the batch size, steps.shape[1], instead of 20 on line N"
    )
