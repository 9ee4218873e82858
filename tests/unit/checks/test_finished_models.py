"""What an optimizer function adds to a model, and what a promise leaves without a gradient, is no finding."""

from __future__ import annotations

import torch

from tests.unit.checks.bugs import Net, classify
from tests.unit.checks.bugs_of_loops import finished, teacher_that_is_trained


def test_model_finished_by_the_optimizer_function_trains_and_resumes() -> None:
    torch.manual_seed(0)
    contract = classify(Net, optimizer=lambda model: finished(model, buggy=False))
    report = contract.check(["weights-update", "optimizer-coverage", "resume"])
    assert not [f for f in report.findings if f.status == "violated"], str(report)


def test_frozen_parameter_needs_no_gradient() -> None:
    torch.manual_seed(0)
    report = teacher_that_is_trained(False).check(["gradients-exist"])
    assert [f.status for f in report.findings] == ["passed"], str(report)
