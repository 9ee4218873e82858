"""A batch that the user's function cannot make is told once, with its line, by every way of asking for it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract


def ragged(seed):
    return torch.stack([torch.zeros(3), torch.zeros(4)]), torch.zeros(2)


def test_what_the_batch_function_raises_is_one_finding() -> None:
    report = Contract(model=lambda: nn.Linear(3, 1), batch=ragged, loss=F.mse_loss).check()
    (found,) = report.with_status("violated")
    assert found.code == "stack-sizes"
    assert found.evidence["phase"] == "batch"
    assert found.location is not None
    assert found.location.text.startswith("return torch.stack(")
    assert [f.summary for f in report.findings if f.code == "internal-error"] == []
