from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import loop_bugs
import pytest
import torch

from pytest_torchcheck import Contract, promises
from pytest_torchcheck.checks.steps import averages, loop
from pytest_torchcheck.checks.steps import ways as training
from pytest_torchcheck.subject import Subject
from pytest_torchcheck.subject.errors import SubjectError

if TYPE_CHECKING:
    from pytest_torchcheck.findings import Finding

CHECKS = {
    "step-protocol": (loop.step_protocol, None),
    "graph-kept": (loop.graph_kept, None),
    "scheduler-order": (loop.scheduler_order, None),
    "schedule": (loop.schedule, "Schedule"),
    "gradient-clipping": (loop.gradient_clipping, "ClipsGradients"),
    "evaluation-leaves-trace": (loop.evaluation_leaves_trace, None),
    "accumulation": (training.accumulated, None),
    "resume": (training.resumed, None),
    "replicated": (training.replicated, "Replicated"),
    "non-finite-guard": (training.non_finite_guard, "SkipsNonFinite"),
    "moving-average": (averages.moving_average, "MovingAverage"),
}


def findings(fields: dict[str, object]) -> dict[str, list[Finding]]:
    contract = Contract(**fields)
    subject = Subject(contract)
    found: dict[str, list[Finding]] = {}
    for name, (run, promise) in CHECKS.items():
        if promise is not None and not contract.promised(promise):
            continue
        if contract.train_step is None and name != "resume":
            continue
        try:
            found[name] = list(run(subject))
        except SubjectError:  # the second call of a step with a bug may raise
            found[name] = []
    subject.close()
    return found


def build(name: str, buggy: bool) -> dict[str, object]:
    torch.manual_seed(0)
    return getattr(loop_bugs, name)(buggy)


@pytest.mark.parametrize("name", loop_bugs.EXPECTED)
def test_bug_is_found_with_culprit_and_line(name: str) -> None:
    check, code, culprit = loop_bugs.EXPECTED[name]
    found = findings(build(name, True))
    finding = next((f for f in found[check] if f.status == "violated"), None)
    assert finding is not None, found[check]
    assert finding.code == code
    assert culprit in [one.name for one in finding.culprits]
    for text in (finding.summary, finding.observed, finding.cause, finding.because, finding.fix):
        assert text
    places = [finding.location, *(one.location for one in finding.culprits)]
    lines = Path(loop_bugs.__file__).read_text().splitlines()
    assert any(
        p is not None
        and Path(p.file).name == "loop_bugs.py"
        and lines[p.line - 1].endswith("# BUG")
        for p in places
    ), places


@pytest.mark.parametrize("name", loop_bugs.EXPECTED)
def test_mended_twin_raises_no_alarm(name: str) -> None:
    found = findings(build(name, False))
    bad = [
        f"{check}: {f.summary}"
        for check, several in found.items()
        for f in several
        if f.status == "violated" or (f.status == "suspicious" and f.code != "resume-differs")
    ]
    assert not bad
    check = loop_bugs.EXPECTED[name][0]
    assert any(f.status == "passed" for f in found[check]), found[check]


@pytest.mark.parametrize("name", loop_bugs.EXPECTED)
def test_nothing_of_the_users_changes(name: str) -> None:
    fields = build(name, True)
    model = fields["model"]
    before = (
        {}
        if not isinstance(model, torch.nn.Module)
        else {k: v.clone() for k, v in model.state_dict().items()}
    )
    originals = (
        torch.autograd.backward,
        torch.nn.Module.train,
        torch.optim.Optimizer.zero_grad,
        torch.nn.utils.clip_grad_norm_,
    )
    findings(fields)
    now = (
        torch.autograd.backward,
        torch.nn.Module.train,
        torch.optim.Optimizer.zero_grad,
        torch.nn.utils.clip_grad_norm_,
    )
    assert originals == now
    assert torch.is_grad_enabled()
    for key, value in before.items():
        assert torch.equal(model.state_dict()[key], value)


def test_a_schedule_without_a_step_of_the_users_points_at_the_line_that_makes_it() -> None:
    def optimizer(model: torch.nn.Module) -> object:
        made = torch.optim.SGD(model.parameters(), lr=0.1)
        return made, torch.optim.lr_scheduler.StepLR(made, 3)  # the schedule

    def constant(model: torch.nn.Module) -> object:
        return torch.optim.SGD(model.parameters(), lr=0.1)  # the schedule

    for make in (optimizer, constant):
        contract = Contract(
            model=lambda: torch.nn.Linear(4, 2),
            inputs="B 4",
            optimizer=make,
            promises=(promises.Schedule(lambda step: 0.1 * 0.5**step),),
        )
        (found,) = contract.check(["schedule"]).causes
        assert found.code == "schedule-differs"
        assert found.location is not None
        assert found.location.text.endswith("# the schedule")
