"""Contracts in lists and dicts, contracts that nothing refers to, and ids that survive pytest's own parsing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

import pytest_torchcheck.runner
from pytest_torchcheck.catalogue import Check
from pytest_torchcheck.verdicts import passed, violated
from tests import forked

if TYPE_CHECKING:
    from pathlib import Path

HEAD = """
import pytest
from torch import nn
from pytest_torchcheck import Contract

def made(**fields):
    return Contract(model=lambda: nn.Linear(4, 2), inputs="B 4", **fields)
"""


def ids(result: pytest.RunResult) -> list[str]:
    return [
        line.partition(".py::")[2] for line in result.outlines if "::" in line and ".py:" in line
    ]


def listed(pytester: pytest.Pytester, source: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_models=HEAD + source)
    return pytester.runpytest_inprocess(
        "--torchcheck", "--co", "-q", "-k", "mode-flags", *arguments
    )


def test_lists_and_dicts_are_collected_by_position_key_or_name(pytester: pytest.Pytester) -> None:
    result = listed(
        pytester,
        """
PLAIN = [made(), made()]
NAMED = (made(name="small"), made(name="large"))
TWICE = [made(name="net"), made(name="net")]
BY_KEY = {"deep": made(), ("a", 1): made(), "x[0]": [made()]}
MIXED = [made(), 3, "text", None]
""",
    )
    assert [one.removesuffix("::mode-flags") for one in ids(result)] == [
        "PLAIN.0",
        "PLAIN.1",
        "NAMED.small",
        "NAMED.large",
        "TWICE.0",
        "TWICE.1",
        "BY_KEY.deep",
        "BY_KEY.('a',-1)",
        "BY_KEY.x-0.0",
        "MIXED.0",
    ]
    result.stdout.no_fnmatch_line("*not collected*")


def test_a_contract_of_several_names_is_collected_once(pytester: pytest.Pytester) -> None:
    result = listed(pytester, "both = [made()]\nfirst = both[0]\nagain = both\nsame = [both[0]]")
    assert ids(result) == ["first::mode-flags"]
    result = listed(pytester, "one = [made()]\nother = {'a': one[0]}")
    assert ids(result) == ["one.0::mode-flags"]


def test_contracts_that_nothing_refers_to_are_named(pytester: pytest.Pytester) -> None:
    source = """
class Suite:
    held = Contract(model=lambda: nn.Linear(4, 2), inputs="B 4")

kept = made()
Contract(model=lambda: nn.Linear(4, 2), inputs="B 4")
Contract(model=lambda: nn.Linear(4, 2), inputs="B 4").check("mode-flags")

@pytest.mark.parametrize("one", [Contract(model=lambda: nn.Linear(4, 2), inputs="B 4")])
def test_by_hand(one):
    pass
"""
    pytester.makepyfile(test_models=HEAD + source)
    result = pytester.runpytest_inprocess(
        "--torchcheck", "--co", "-q", "-k", "mode-flags", "-Walways"
    )
    said = [line for line in result.outlines if "TorchcheckWarning" in line]
    assert [line.partition("test_models.py:")[2].partition(":")[0] for line in said] == ["9", "12"]
    assert "is not collected" in said[0]
    strict = pytester.runpytest_inprocess("--torchcheck", "--co", "-q", "-Werror")
    assert strict.ret == pytest.ExitCode.USAGE_ERROR
    strict.stderr.fnmatch_lines(["*test_models.py:9: the contract on line 9 is not collected*"])


def test_one_that_a_function_declares_is_named_where_it_is_called(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_models=HEAD + "\nkept = made()\nfor _ in range(2):\n    made()\n")
    result = pytester.runpytest_inprocess("--torchcheck", "--co", "-q", "-Walways")
    said = [line for line in result.outlines if "TorchcheckWarning" in line]
    assert {line.partition("test_models.py:")[2].partition(":")[0] for line in said} == {"10"}
    assert "the contract on line 10 is not collected" in said[0]


@pytest.mark.parametrize("arguments", [(), ("-n2",), ("-q",)])
def test_a_run_without_the_flag_says_that_contracts_were_not_run(
    pytester: pytest.Pytester, arguments: tuple[str, ...]
) -> None:
    source = """
ONE = made()
MANY = [made(), made()]

@pytest.mark.parametrize("one", [made()])
def test_by_hand(one):
    assert one.check("mode-flags").ok

def test_another():
    Contract(model=lambda: nn.Linear(4, 2), inputs="B 4").check("mode-flags")
"""
    pytester.makepyfile(test_models=HEAD + source)
    if arguments == ("-n2",):
        result = forked.pytest_run(pytester, *arguments)
    else:
        result = pytester.runpytest_inprocess(*arguments)
    result.assert_outcomes(passed=2)
    told = [line for line in result.outlines if line.startswith("torchcheck:")]
    assert told == [
        "torchcheck: 3 contracts were not run (test_models.py); run pytest --torchcheck to check them"
    ]


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch, models: Any) -> Path:
    """Let a contract have four checks with a device and dtype each, of which two fail."""

    def cases(contract: Any, *, devices: Any = None) -> tuple[pytest_torchcheck.runner.Case, ...]:
        made = []
        for name in ("first", "second", "third", "fourth"):
            bad = name in ("second", "fourth")
            found = violated("a-b", "it is broken") if bad else passed("it holds")
            check = Check(name=name, run=lambda _, f=found: [f], summary="", axes="once", family="")
            case = pytest_torchcheck.runner.Case(
                check=check, device="cpu", dtype="float32", id=f"{name}[cpu-float32]"
            )
            made.append(case)
        return tuple(made)

    monkeypatch.setattr("pytest_torchcheck.runner.selection.cases", cases)
    path: Path = models("@contract(**FIELDS)\ndef net():\n    return Net()")
    return path


@pytest.mark.usefixtures("four")
def test_failed_items_are_found_again(pytester: pytest.Pytester) -> None:
    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess("--torchcheck", "-p", "no:randomly", "-v", *arguments)

    run().assert_outcomes(passed=2, failed=2)
    again = run("--lf")
    again.assert_outcomes(failed=2, deselected=2)
    again.stdout.fnmatch_lines(["run-last-failure: rerun previous 2 failures"])
    first = run("--ff")
    first.assert_outcomes(passed=2, failed=2)
    order = [
        line.split("::")[2] for line in first.outlines if line.startswith("test_models.py::net::")
    ]
    assert order[0].startswith("second[cpu-float32]")
    run("--sw").assert_outcomes(passed=1, failed=1)
    run("--sw").assert_outcomes(failed=1, deselected=1)
    run("--sw", "--sw-skip").assert_outcomes(passed=1, failed=2, deselected=1)
