"""What fails a run: errors of this package, and contracts that nothing was checked of."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

import pytest_torchcheck.runner
from tests import forked

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
import torch
from torch import nn
from pytest_torchcheck import Contract, contract, promises
from pytest_torchcheck.verdicts import inconclusive, passed

"""
FAILS = (
    HEAD
    + """
from pytest_torchcheck import catalogue as registry
import dataclasses

known = registry._CATALOGUE["mode-flags"]

def fail(subject):
    raise LookupError("ours")

registry._CATALOGUE["mode-flags"] = dataclasses.replace(known, run=fail)
net = Contract(
    model=lambda: nn.Linear(4, 2), batch=((torch.ones(3, 4),), torch.zeros(3, 2)), loss=nn.functional.mse_loss
)
"""
)
OPEN = (
    HEAD
    + """
class Open(promises.Promise):
    def verify(self, subject):
        yield inconclusive("the weather could not be seen")

class Sunny(promises.Promise):
    def verify(self, subject):
        yield passed("the sun shines")

def declared(promise):
    return Contract(model=lambda: nn.Linear(4, 2), batch=(torch.ones(3, 4),), promises=[promise])

idle = declared(Open())
sunny = declared(Sunny())
"""
)


@pytest.mark.parametrize("arguments", [(), ("-n2", "--torchcheck-strict")])
def test_an_error_is_red_everywhere(
    pytester: pytest.Pytester, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    pytester.makepyfile(FAILS)
    xml, page, data = tmp_path / "junit.xml", tmp_path / "page.html", tmp_path / "data.json"
    result = forked.pytest_run(
        pytester,
        "--torchcheck",
        "--torchcheck-checks=mode-flags,backward",
        f"--junitxml={xml}",
        f"--torchcheck-html={page}",
        f"--torchcheck-json={data}",
        *arguments,
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*.py::net: error: 1 error, 1 passed",
            "  error: mode-flags itself failed with LookupError: ours [[]internal-error[]]",
            "1 contract: 0 violated, 1 error, 0 ok; 2 checks (1 failed, 1 passed) in *",
            "FAILED *mode-flags* - error: mode-*",
        ]
    )
    assert "mode-flags itself failed" in "".join(
        str(one.get("message")) for one in ET.parse(xml).iter("failure")
    )
    document = json.loads(data.read_text())
    assert (document["ok"], document["contracts"][0]["verdict"]) == (False, "error")
    assert "1 error" in page.read_text()


def test_a_contract_of_which_nothing_was_checked_fails_the_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makepyfile(OPEN.replace("sunny = ", "_ = "))
    made = pytest_torchcheck.runner.cases
    only = "own-promises"

    def cases(*arguments: Any, **keywords: Any) -> tuple[pytest_torchcheck.runner.Case, ...]:
        return tuple(case for case in made(*arguments, **keywords) if case.check.name == only)

    monkeypatch.setattr("pytest_torchcheck.runner.selection.cases", cases)
    result = pytester.runpytest_inprocess("--torchcheck")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*.py::idle: nothing checked: 1 inconclusive",
            "  own-promises: the weather could not be seen",
            "*.py::_: ok: 1 passed",
            "2 contracts: 0 violated, 1 nothing checked, 1 ok; 2 checks (1 passed, 1 skipped) in *",
        ]
    )


def test_a_selected_check_that_could_not_decide_is_a_skip(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(OPEN)
    result = pytester.runpytest_inprocess("--torchcheck", "-k", "own-promises and idle", "-rs")
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(
        [
            "*.py::idle: nothing checked: 1 inconclusive",
            "SKIPPED*: own-promises[[]cpu-float32[]]: inconclusive: the weather could not be seen",
        ]
    )


def test_a_contract_with_a_red_item_never_reads_ok(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        OPEN
        + """
import pytest

@pytest.fixture(autouse=True)
def breaks(request):
    yield
    if "backward" in request.node.name and "sunny" in request.node.nodeid:
        raise RuntimeError("the teardown fails")
"""
    )
    result = pytester.runpytest_inprocess(
        "--torchcheck", "--torchcheck-checks=backward,own-promises", "--torchcheck-strict"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*.py::idle: failed: 1 inconclusive, 1 passed",
            "  inconclusive: the weather could not be seen*",
            "2 contracts: 0 violated, * failed, * ok; 4 checks (*",
        ]
    )


@pytest.mark.parametrize("when", ["setup", "teardown"])
def test_errors_around_an_item_are_counted_as_pytest_counts_them(
    pytester: pytest.Pytester, when: str
) -> None:
    pytester.makepyfile(test_open=OPEN)
    pytester.makeconftest(
        f"def pytest_runtest_{when}(item):\n    if 'backward' in item.name:\n        raise RuntimeError('mine')\n"
    )
    done = pytester.runpytest_inprocess(
        "--torchcheck",
        "--torchcheck-checks=backward,seeding",
        "-k",
        "sunny",
        "-p",
        "no:cacheprovider",
    )
    lines = [line for line in done.outlines if line.startswith("1 contract:")]
    counted = {
        kind: int(number)
        for number, kind in re.findall(
            r"(\d+) (passed|skipped|failed|error)", lines[-1].partition("(")[2]
        )
    }
    outcomes = done.parseoutcomes()
    assert counted.get("error") == outcomes.get("errors", outcomes.get("error"))
    assert counted.get("passed") == outcomes.get("passed")
