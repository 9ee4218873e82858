"""What checks are estimated to cost, and what a budget leaves out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, DeclarationError, promises
from pytest_torchcheck.catalogue import catalogue
from pytest_torchcheck.late import Late
from pytest_torchcheck.runner import Runner, cases, ordered, selection


def contract(**fields):
    generator = torch.Generator().manual_seed(0)
    batch = (torch.randn(4, 7, 5, generator=generator),), torch.randint(0, 3, (4, 7))
    return Contract(
        model=lambda: nn.Linear(5, 3),
        batch=batch,
        loss=lambda o, y: F.cross_entropy(o.transpose(1, 2), y),
        **fields,
    )


def test_every_check_has_an_estimate() -> None:
    estimates = {name: selection.estimated_steps(check) for name, check in catalogue().items()}
    assert all(0 <= steps <= 300 for steps in estimates.values())
    assert estimates["backward"] > estimates["mode-flags"]


def test_what_the_import_of_a_check_takes_is_not_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Late] = []
    now = [0.0]
    resolved = Late.function.fget  # type: ignore[attr-defined]

    def imported(late: Late) -> object:
        now[0] += 0.0 if late in seen else 1000.0  # seconds, when it is first asked for
        seen.append(late)
        return resolved(late)

    monkeypatch.setattr(Late, "function", property(imported))
    monkeypatch.setattr("pytest_torchcheck.runner.running.time.perf_counter", lambda: now[0])
    runner = Runner(contract())
    first = next(case for case in cases(runner.contract) if case.check.name == "mode-flags")
    assert runner.run(first)[0].status == "passed"
    assert seen
    assert runner.seconds == 0.0
    runner.close()


def test_a_budget_leaves_out_what_no_longer_fits_and_keeps_what_is_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(selection, "plain_step_seconds", lambda subject: 1e-9)
    report = contract(budget=3, promises=(promises.Causal(),)).check()
    left_out = {f.check for f in report.findings if f.code == "over-budget"}
    assert left_out
    assert not left_out & {"backward", "causality"}
    assert all(f.status == "inconclusive" for f in report.findings if f.code == "over-budget")
    assert any(f.check == "causality" and f.status == "passed" for f in report.findings)


def test_without_a_budget_nothing_is_left_out_and_no_step_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def never(subject):
        raise AssertionError("nobody asked")

    monkeypatch.setattr(selection, "plain_step_seconds", never)
    report = contract().check(checks=["backward", "mode-flags"])
    assert {f.code for f in report.findings} == {"held"}


def test_under_a_budget_the_cheapest_come_first_behind_the_one_that_leads() -> None:
    declared = contract(budget=30)
    found = ordered(declared, cases(declared))
    assert set(found) == set(cases(declared))
    once = [selection.estimated_steps(c.check) for c in found[1:] if c.check.axes == "once"]
    assert once == sorted(once)
    assert found[0].check.leads


def test_without_a_budget_the_order_is_the_catalogues() -> None:
    assert ordered(contract(), cases(contract())) == cases(contract())


def test_a_step_that_raises_has_no_time() -> None:
    def broken(model, optimizer, inputs, targets):
        raise ValueError("no")

    report = contract(
        budget=1, optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1), train_step=broken
    ).check(checks=["backward", "mode-flags"])
    assert not any(f.code == "over-budget" for f in report.findings)


@pytest.mark.parametrize("budget", [0, -1, "30", True, float("inf")])
def test_a_budget_that_is_no_number_of_steps_is_refused(budget) -> None:
    with pytest.raises(DeclarationError, match="budget: must be a number of plain training steps"):
        contract(budget=budget)
