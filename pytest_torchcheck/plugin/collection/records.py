"""What a report carries of its findings, as plain types."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any, Final

import pytest

from ...findings import Finding
from .. import fixtures, markers, options
from .items import FOUND, CheckItem, ContractNode
from .verdict import Explained, represent
from .verdict import Verdict as Verdict

if TYPE_CHECKING:
    from collections.abc import Generator


_HERE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # of the plugin


RECORD: Final = "torchcheck"
"""Attribute of a report under which an item's findings travel, as JSON: pytest keeps every report."""


def read_record(report: pytest.TestReport | None) -> dict[str, Any] | None:
    """Return what :func:`record` made of an item's phase, or None where it had nothing to say."""
    text: str | None = getattr(report, RECORD, None)
    if text is None:
        return None
    found: dict[str, Any] = json.loads(text)
    return found


class Records:
    """Attaches findings to reports, so that they reach the controller of xdist as plain data."""

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach a record to the report of a case, and of any test that broke a contract."""
        if not isinstance(item, CheckItem):
            if call.excinfo is None and FOUND not in item.stash:
                return (yield)
            if call.excinfo is not None:
                _name_the_test(item, call.excinfo.value)
            if drawn := fixtures.drawn_by(item):
                item.add_report_section(call.when, "torchcheck", drawn)
        report = yield
        if (
            report.skipped
            and isinstance(report.longrepr, tuple)
            and report.longrepr[0].startswith(_HERE)
        ):
            path, line, _ = item.reportinfo()  # the test's place tells more than this plugin's
            report.longrepr = (os.fspath(path), (line or 0) + 1, report.longrepr[2])
        if call.excinfo is not None and isinstance(call.excinfo.value, Explained):
            report.longrepr = represent(call.excinfo)
        made = record(item, call, report)
        if made is not None:
            setattr(report, RECORD, json.dumps(plain(made)))
        if isinstance(item, CheckItem) and report.skipped and isinstance(report.longrepr, tuple):
            path, line, reason = report.longrepr  # all checks of a contract have one place
            named = f"Skipped: {item.case.id}: {str(reason).removeprefix('Skipped: ')}"
            report.longrepr = (path, line, named)
        return report


def _name_the_test(item: pytest.Item, error: BaseException) -> None:
    """Let the findings of an assertion be repeated by their test, which the assertion does not know."""
    known = sys.modules.get("pytest_torchcheck.findings")
    if known is None or not isinstance(error, known.ContractViolation):
        return
    settings = item.config.stash[options.KEY]
    command = f'pytest "{markers.relative_nodeid(item.config, item.nodeid)}"'
    if settings.sources.get("seed", "default") != "default":
        command += f" --torchcheck-seed={settings.seed}"
    named = known.ContractViolation(
        [finding.replace(reproduce=command) for finding in error.findings]
    )
    error.findings, error.args = named.findings, named.args


def record(
    item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport
) -> dict[str, Any] | None:
    """Return what a report carries: plain types only, or None for a test that has nothing to say."""
    if isinstance(item, CheckItem):
        if report.when == "teardown" or (report.when == "setup" and report.passed):
            return None
        return _case_record(item, report)
    if isinstance(item.parent, ContractNode) and FOUND in item.stash and report.when == "call":
        return _found_record(item, item.parent, report)
    known = sys.modules.get("pytest_torchcheck.findings")
    if known is None or call.excinfo is None:
        return None
    error = call.excinfo.value
    if not isinstance(error, known.ContractViolation | Explained):
        return None
    found: tuple[Finding, ...] = error.findings
    return {
        "node": item.nodeid,
        "contract": item.name,
        "case": "",
        "of": 0,
        "ran": True,
        "seconds": round(call.duration, 6),
        "environment": {},
        "findings": [
            finding.replace(contract=finding.contract or item.name).to_dict() for finding in found
        ],
    }


def _found_record(
    item: pytest.Item, node: ContractNode, report: pytest.TestReport
) -> dict[str, Any]:
    """Return what an item of a contract has found that is none of its checks, such as a benchmark."""
    findings = [one.replace(contract=node.contract.name) for one in item.stash[FOUND]]
    return {
        "node": node.nodeid, "contract": node.contract.name, "case": "", "of": node.size, "ran": True,
        "seconds": round(report.duration, 6), "environment": {},
        "findings": [finding.to_dict() for finding in findings],
    }  # fmt: skip


def _case_record(item: CheckItem, report: pytest.TestReport) -> dict[str, Any]:
    case, node = item.case, item.parent
    findings = item.findings
    if not findings:  # it did not run: no device, a lost context, an error of this plugin
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        last = (str(reason).strip().splitlines() or ["it did not run"])[-1].removeprefix(
            "Skipped: "
        )
        findings = (
            Finding(
                check=case.check.name,
                code="unchanged" if item.unchanged else "not-run",
                status="error" if report.failed else "inconclusive",
                summary=last,
                device=case.device,
                dtype=case.dtype,
                contract=node.contract.name,
            ),
        )
    return {
        "node": node.nodeid,
        "contract": node.contract.name,
        "case": case.id,
        "of": node.size,
        "alike": node.alike(case),
        "ran": bool(item.findings),
        "seconds": round(report.duration, 6),
        "spent": [round(item.seconds, 6), item.step_seconds],
        "environment": item.environment,
        "findings": [finding.to_dict() for finding in findings],
    }


def plain(value: Any) -> Any:
    """Return the value with plain types only; anything else becomes text.

    A tensor or a NumPy number in a report would end an xdist run, at times with exit status 0.
    """
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(
            value
        )  # torch.__version__ is a str, and yet none that execnet would send
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    return str(value)
