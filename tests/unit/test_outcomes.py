"""What becomes of findings: errors of this package, skips, and reports in which nothing was checked."""

from __future__ import annotations

import dataclasses
import re
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, ContractViolation, assert_contract
from pytest_torchcheck.catalogue import catalogue
from pytest_torchcheck.findings import STATUSES, Finding, Report
from pytest_torchcheck.outcomes import internal, skipped, strictly
from pytest_torchcheck.plugin.collection.verdict import judge
from pytest_torchcheck.render.html import render_html
from pytest_torchcheck.verdicts import (
    inconclusive,
    not_applicable,
    passed,
    suspicious,
    violated,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BATCH = ((torch.ones(3, 4),), torch.zeros(3, 2))
ERROR = internal("mode-flags", TypeError("ours"))


def report(*findings: Finding) -> Report:
    return Report(contract="net", findings=findings)


def linear(**fields: Any) -> Contract:
    made = {"model": lambda: nn.Linear(4, 2), "batch": BATCH, "loss": nn.functional.mse_loss}
    return Contract(**{**made, **fields}, name="net")


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Let the check ``mode-flags`` yield findings and then fail by itself."""

    def put(*findings: Finding, error: Exception | None = None) -> None:
        def run(_: Any) -> Iterator[Finding]:
            yield from findings
            raise error or TypeError("ours")

        known = dict(catalogue())
        known["mode-flags"] = dataclasses.replace(known["mode-flags"], run=run)
        for module in ("selection", "contracts"):
            monkeypatch.setattr(f"pytest_torchcheck.runner.{module}.catalogue", lambda: known)

    return put


def test_a_check_that_fails_by_itself_is_an_error_and_not_ok(broken: Any) -> None:
    broken()
    found = linear().check(["mode-flags", "backward"])
    assert (found.ok, found.verdict) == (False, "error")
    assert found.counts() | {"error": 1, "passed": 1} == found.counts()
    (one,) = found.with_status("error")
    assert (one.check, one.code) == ("mode-flags", "internal-error")
    assert "mode-flags itself failed with TypeError: ours" in one.summary
    assert "leave the check out" in one.fix
    assert any("TypeError: ours" in line for line in one.evidence["traceback"])
    assert "error: mode-flags itself failed" in str(found)
    assert Report.from_json(found.to_json()) == found
    assert '<span class="badge error">error</span>' in render_html([found])
    with pytest.raises(ContractViolation, match="mode-flags itself failed"):
        assert_contract(linear(), "mode-flags", "backward")


def test_what_a_check_found_before_it_failed_stays(broken: Any) -> None:
    broken(violated("flag-lost", "the flag is lost"), passed("one half"))
    found = linear().check("mode-flags")
    assert [f.status for f in found.findings] == ["violated", "error"]
    assert found.verdict == "violated"
    assert "beside this" in found.findings[1].observed


@pytest.mark.parametrize("strict", [False, True])
def test_an_error_fails_the_item_with_strict_and_without(strict: bool) -> None:
    assert judge([ERROR], strict=strict).failing == (ERROR,)
    assert judge([passed("fine"), ERROR], strict=strict).failing == (ERROR,)
    assert strictly([ERROR]) == (ERROR,)


def test_a_skip_neither_hides_an_error_nor_calls_it_its_own(broken: Any) -> None:
    broken()
    found = linear(skip={"mode-flags": "not yet"}).check("mode-flags")
    (one,) = found.findings
    assert one.status == "error"
    assert "not yet" not in str(one)
    both = skipped((violated("a-b", "bad"), ERROR), "not yet", "mode-flags")
    assert [f.status for f in both] == ["error", "not-applicable"]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class Refuses(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise Unprintable


def test_a_finding_stands_where_its_explanation_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LookupError("ours")

    monkeypatch.setattr("pytest_torchcheck.diagnosis.crashes.explain.explain_error", fail)
    (one,) = linear(model=Refuses).check("backward").findings
    assert (one.status, one.code) == ("violated", "crash")
    assert "the forward pass raises Unprintable" in one.summary
    assert "explaining it failed with LookupError: ours" in one.observed
    assert one.location is not None
    assert one.location.text == "raise Unprintable"


def test_what_a_check_found_stands_where_its_explainer_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise LookupError("ours")

    monkeypatch.setattr("pytest_torchcheck.diagnosis.loss.targets.ignored", fail)
    (one,) = (
        linear(batch=(BATCH[0], torch.eye(3)[:, :2]), loss=lambda o, _: o.pow(2).mean())
        .check("target-ownership")
        .findings
    )
    assert (one.code, one.status) == ("targets-ignored", "suspicious")
    assert "does not hold" in one.summary
    assert "LookupError: ours" in one.observed


def test_where_no_check_reached_a_verdict_the_report_is_not_ok() -> None:
    for findings in ((), (inconclusive("a"), not_applicable("b")), (not_applicable("b"),)):
        empty = report(*findings)
        assert (empty.ok, empty.verdict) == (False, "nothing checked")
        assert str(empty).startswith("net: nothing checked; ")
    assert report(passed("a"), inconclusive("b")).ok
    assert report(suspicious("a-b", "c")).ok
    left_out = linear().check("causality")  # nothing is promised of the future
    assert not left_out.ok
    with pytest.raises(ContractViolation, match="promises no Causal"):
        assert_contract(linear(), "causality")


def test_every_status_is_known_to_every_renderer() -> None:
    for status in STATUSES:
        one = Finding(check="a-check", code="a-code", status=status, summary="it is so")
        assert status.replace("-", " ") in str(report(one))
        assert "it is so" in render_html([report(one)])


class KeepsNothing(torch.optim.Adagrad):
    def state_dict(self) -> Any:
        raise TypeError("it keeps nothing")


def test_what_the_users_own_code_raises_is_not_to_be_reported() -> None:
    made = Contract(
        model=lambda: torch.nn.Linear(3, 2),
        inputs="B 3",
        targets="B 2",
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda model: KeepsNothing(model.parameters(), lr=0.1),
    )
    (found,) = made.check(["resume"]).findings
    assert found.status == "error"
    assert "of your own code raises" in found.cause
    assert "report" not in found.fix
    assert re.match(r"correct line \d+ if it must not raise", found.fix)
    assert "report it to pytest-torchcheck" in ERROR.fix
