"""One row of the guides: a program with its symptom is found, and the mended twin passes what the bug failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding, Labels, Report

if TYPE_CHECKING:
    from collections.abc import Callable

BUG = "# BUG"
"""Ends the line that a finding is to name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symptom:
    """A program that has a row's bug, and the same program without it.

    Attributes:
        name: What is wrong.
        make: Declares the contract; its argument says whether the bug is in it.
        checks: What is run on both.
        code: The one cause that is to be found.
        says: Words that the printed finding must hold: the cause by its name, the edit.
        status: Of the finding.
        marked: Whether the finding is to name the line that ends in ``# BUG``.
    """

    name: str
    make: Callable[[bool], Contract]
    checks: tuple[str, ...]
    code: str
    says: tuple[str, ...] = ()
    status: str = "violated"
    marked: bool = True


def told(report: Report) -> list[Finding]:
    """Return what needs attention and follows from nothing else."""
    return [f for f in report.findings if f.status in ("violated", "suspicious") and f.root is None]


def holds(symptom: Symptom) -> Finding:
    """Check the bug and its twin; return the finding of the bug."""
    report = symptom.make(True).check(symptom.checks)
    assert [(f.code, f.status) for f in told(report)] == [(symptom.code, symptom.status)], str(
        report
    )
    (found,) = told(report)
    text = " ".join(str(found).split())
    for words in symptom.says:
        assert words in text, text
    for part in ("observed", "cause", "because", "fix", "reproduce"):
        assert getattr(found, part), f"{part} is empty:\n{found}"
    if symptom.marked:
        lines = [c.location for c in (found, *found.culprits)]
        assert any(line is not None and line.text.endswith(BUG) for line in lines), str(found)
    mended = symptom.make(False).check(symptom.checks)
    assert told(mended) == [], str(mended)
    assert any(mended.with_status("passed")), str(mended)
    return found


def named(*symptoms: Symptom) -> dict[str, Any]:
    """Return what ``parametrize`` takes: the symptoms by their names."""
    return {"argvalues": symptoms, "ids": [s.name for s in symptoms]}


class Net(nn.Module):
    """Two layers with a rectifier between them; subclasses mistake one line."""

    def __init__(self, broken: bool = False, out: int = 3) -> None:
        super().__init__()
        self.broken = broken
        self.body = nn.Linear(8, 16)
        self.head = nn.Linear(16, out)

    def middle(self, h: torch.Tensor) -> torch.Tensor:
        return h

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.middle(torch.relu(self.body(x))))


def contract(model: Callable[[], nn.Module], **fields: Any) -> Contract:
    """Declare a classifier of 8 features and 3 classes; ``fields`` replace parts of that."""
    declared: dict[str, Any] = {
        "inputs": "B 8",
        "targets": Labels("B", classes=3),
        "loss": F.cross_entropy,
        "sizes": {"B": (2, 6)},
    }
    return Contract(model=model, **(declared | fields))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)
