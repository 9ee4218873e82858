"""Where time goes: by phase, module and line, the backward at the line that it differentiates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels
from pytest_torchcheck.measure.repeated import repeated
from pytest_torchcheck.measure.where import Where, where
from pytest_torchcheck.subject import Subject


class Heavy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.stack = nn.Sequential(nn.Linear(32, 256), nn.Tanh())
        self.head = nn.Linear(256, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        x = x.sort(dim=0).values  # the heavy line
        return self.head(self.stack(x))


def spent(kind: str) -> Where:
    contract = Contract(
        model=Heavy, inputs="B 32", targets=Labels("B", classes=3), loss=F.cross_entropy,
        sizes={"B": 2048},
    )  # fmt: skip
    subject = Subject(contract)
    try:
        with repeated(subject, kind) as once:  # type: ignore[arg-type]
            return where(once, subject.model, subject.device)
    finally:
        subject.close()


def test_the_heavy_line_comes_first() -> None:
    found = spent("inference")
    assert found.spent[0].location is not None
    assert "the heavy line" in found.spent[0].location.text
    assert {one.phase for one in found.spent} == {"forward"}
    assert {"first", "stack.0", "head"} <= {one.module for one in found.spent}
    assert found.seconds > 0


def test_backward_belongs_to_the_lines_of_the_forward() -> None:
    found = spent("training-step")
    assert {one.phase for one in found.spent} == {"forward", "backward", "optimizer"}
    back = {one.module for one in found.spent if one.phase == "backward"}
    assert {"first", "stack.0", "head"} <= back
    frames = [stack["frames"] for stack in found.flame()]
    assert any(stack[:3] == ["backward", "stack", "0"] for stack in frames)
    assert sum(stack["value"] for stack in found.flame()) > 0
    assert found.rows(2)[-1]["module"].endswith("more")
