"""Contracts as collectors and items: their ids, how they are chosen, and what findings come to."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import TYPE_CHECKING, Any

import pytest

import pytest_torchcheck.runner
from pytest_torchcheck.catalogue import Check
from pytest_torchcheck.findings import Finding, Location
from pytest_torchcheck.plugin.collection import select
from pytest_torchcheck.plugin.collection.records import plain
from pytest_torchcheck.plugin.collection.verdict import Verdict, judge
from pytest_torchcheck.verdicts import inconclusive, not_applicable, passed, suspicious, violated

if TYPE_CHECKING:
    from pathlib import Path

ONE = "@contract(**FIELDS)\ndef net():\n    return Net()"


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch, models: Any) -> Any:
    """Let a contract named ``net`` have these cases: ``findings(first=[...], second=[...])``."""

    def put(**found: list[Finding]) -> Path:
        def cases(
            contract: Any, *, devices: Any = None
        ) -> tuple[pytest_torchcheck.runner.Case, ...]:
            made = []
            for name, verdicts in found.items():
                check = Check(
                    name=name, run=lambda _, v=verdicts: v, summary="", axes="once", family=""
                )
                made.append(
                    pytest_torchcheck.runner.Case(
                        check=check, device="cpu", dtype="float32", id=name
                    )
                )
            return tuple(made)

        monkeypatch.setattr("pytest_torchcheck.runner.selection.cases", cases)
        path: Path = models(ONE)
        return path

    return put


BROKEN = violated(
    "grad-none",
    "first.weight got no gradient",
    location=Location(file="/src/net.py", line=41, text="h = h.detach()"),
    observed="1 of 4 is None",
    fix="drop .detach()",
)


def test_ids_and_selection(pytester: pytest.Pytester, models: Any) -> None:
    models(ONE + "\n\ndef test_ordinary(): pass")
    listed = pytester.runpytest_inprocess("--torchcheck", "--co", "-q", "--strict-markers")
    ids = [line for line in listed.outlines if "::" in line]
    assert "test_models.py::net::gradients-exist[cpu-float32]" in ids
    assert "test_models.py::test_ordinary" in ids
    total = len(ids)
    assert total > 5

    def run(*arguments: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess("--torchcheck", "-p", "no:randomly", *arguments)

    run("test_models.py::net::gradients-exist[cpu-float32]").assert_outcomes(passed=1)
    run("test_models.py::net::gradients-exist").assert_outcomes(passed=1)
    run("-k", "gradients-exist").assert_outcomes(passed=1, deselected=total - 1)
    run("-k", "net and backward").assert_outcomes(passed=1, deselected=total - 1)
    run("-m", "not torchcheck").assert_outcomes(passed=1, deselected=total - 1)
    run("--deselect", "test_models.py::net").assert_outcomes(passed=1, deselected=total - 1)
    run("--torchcheck-checks=backward,gradients-exist").assert_outcomes(
        passed=3, deselected=total - 3
    )
    left_out = run("--torchcheck-checks=!gradients-exist", "--co", "-q")
    assert sum("::" in line for line in left_out.outlines) == total - 1


def test_without_the_flag_contracts_are_no_items(pytester: pytest.Pytester, models: Any) -> None:
    models(ONE.replace("net", "test_net") + "\n\ndef test_ordinary(): pass")
    result = pytester.runpytest_inprocess("-W", "error")
    result.assert_outcomes(passed=1)
    result.stdout.no_fnmatch_line("*torchcheck*violated*")


def test_a_contract_in_a_class_and_one_without_a_name(
    pytester: pytest.Pytester, models: Any
) -> None:
    models(
        """
        class TestGroup:
            @contract(**FIELDS)
            def inner():
                return Net()

        bare = Contract(model=Net, **FIELDS)
        again = bare
        """
    )
    result = pytester.runpytest_inprocess("--torchcheck", "--co", "-q", "-k", "backward")
    assert [line for line in result.outlines if "::" in line] == [
        "test_models.py::TestGroup::inner::backward[cpu-float32]",
        "test_models.py::bare::backward[cpu-float32]",
    ]


def test_an_imported_contract_can_be_left_out(pytester: pytest.Pytester, models: Any) -> None:
    models(ONE, name="declared")
    pytester.makepyfile("from declared import net")
    pytester.syspathinsert()
    arguments = ("--torchcheck", "--co", "-q", "-k", "backward")
    found = pytester.runpytest_inprocess(*arguments)
    assert any("::net::backward" in line for line in found.outlines)
    if pytest.version_tuple < (8, 4):
        return  # which knows no such setting
    left = pytester.runpytest_inprocess(*arguments, "-o", "collect_imported_tests=false")
    assert not any("::net::backward" in line for line in left.outlines)


def test_marks_below_the_decorator_count_and_above_it_are_explained(
    pytester: pytest.Pytester, models: Any
) -> None:
    models(
        """
        import pytest

        @contract(**FIELDS)
        @pytest.mark.slow
        def net():
            return Net()
        """
    )
    arguments = ("--torchcheck", "-k", "backward", "-W", "ignore")
    pytester.runpytest_inprocess(*arguments, "-m", "slow").assert_outcomes(passed=1)
    assert (
        pytester.runpytest_inprocess(*arguments, "-m", "not slow").ret
        == pytest.ExitCode.NO_TESTS_COLLECTED
    )
    models(
        """
        import pytest

        @pytest.mark.slow
        @contract(**FIELDS)
        def net():
            return Net()
        """
    )
    result = pytester.runpytest_inprocess(*arguments)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["*test_models.py:*: net: put @contract(...) above @pytest.mark.slow, not below it"]
    )


def test_outcomes(pytester: pytest.Pytester, findings: Any) -> None:
    findings(
        good=[passed("4 of 4 parameters")],
        broken=[BROKEN],
        doubtful=[suspicious("norm-high", "the norm is high")],
        open=[inconclusive("the batch is empty")],
        idle=[not_applicable("no dropout")],
        both=[passed("one"), not_applicable("the other")],
        partly=[passed("one"), inconclusive("the other could not fail")],
    )
    result = pytester.runpytest_inprocess("--torchcheck", "-rs", "-W", "always")
    result.assert_outcomes(passed=3, failed=1, skipped=3, warnings=1)
    result.stdout.fnmatch_lines(
        [
            "*torchcheck: contracts, seed 0 (default)",
            "*__ net::broken __*",
            "first.weight got no gradient [[]grad-none[]]",
            "where     /src/net.py:41: h = h.detach()",
            "observed  1 of 4 is None",
            "fix       drop .detach()",
            'again     pytest "test_models.py::net::broken" --torchcheck --torchcheck-seed=0',
            "*warnings summary*",
            "*TorchcheckWarning: suspicious: the norm is high*norm-high*",
            "*== torchcheck ==*",
            "test_models.py::net: violated: 1 cause, 1 suspicious, 2 inconclusive, 2 passed, 1 not applicable",
            "  first.weight got no gradient [[]grad-none[]] (/src/net.py:41)",
            "1 contract: 1 violated, 0 ok; 7 checks (1 failed, 3 passed, 3 skipped) in *",
            "SKIPPED [[]1[]] test_models.py:*: open: inconclusive: the batch is empty",
            "SKIPPED [[]1[]] test_models.py:*: idle: not applicable: no dropout",
            "SKIPPED [[]1[]] test_models.py:*: partly: inconclusive: the other could not fail",
        ]
    )
    shown = result.stdout.str()
    assert "def runtest" not in shown  # no frame of ours
    assert "items.py" not in shown
    assert "verdict.py" not in shown


def test_strict_fails_what_is_open(pytester: pytest.Pytester, findings: Any) -> None:
    findings(
        good=[passed("fine")],
        doubtful=[suspicious("norm-high", "the norm is high")],
        open=[inconclusive("the batch is empty")],
        blocked=[inconclusive("could not be checked", root="backward/crash")],
        idle=[not_applicable("no dropout")],
    )
    result = pytester.runpytest_inprocess("--torchcheck", "--torchcheck-strict")
    result.assert_outcomes(passed=1, failed=2, skipped=2)


def test_suspicions_can_be_made_errors_by_pythons_own_filter(
    pytester: pytest.Pytester, findings: Any
) -> None:
    findings(doubtful=[suspicious("norm-high", "the norm is high")])
    result = pytester.runpytest_inprocess("--torchcheck", "-W", "error")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["suspicious: the norm is high*"])
    assert "Traceback" not in result.stdout.str()


def test_the_summary_line_begins_with_what_the_user_knows(
    pytester: pytest.Pytester, findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings(broken=[BROKEN])
    monkeypatch.setenv("COLUMNS", "200")
    result = pytester.runpytest_inprocess("--torchcheck")
    result.stdout.fnmatch_lines(
        ["FAILED test_models.py::net::broken - first.weight got no gradient [[]grad-none[]]*"]
    )


def test_what_follows_from_a_cause_points_to_it(
    pytester: pytest.Pytester, findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_torchcheck.codes import folding

    def fold(found: Any) -> tuple[Finding, ...]:
        return tuple(f.replace(root="cause/grad-none") if f.check == "effect" else f for f in found)

    monkeypatch.setattr(folding, "fold", fold)
    findings(
        cause=[BROKEN],
        effect=[violated("weight-static", "first.weight does not move", fix="turn it on")],
    )
    result = pytester.runpytest_inprocess("--torchcheck")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        [
            "*__ net::effect __*",
            "first.weight does not move [[]weight-static[]]",
            "follows from cause/grad-none, which is reported there",
            "*== torchcheck ==*",
            "test_models.py::net: violated: 1 cause, 1 that follows",
            "    also failing for it: effect",
        ]
    )
    assert "turn it on" not in result.stdout.str()


def test_last_failed_runs_what_failed(pytester: pytest.Pytester, findings: Any) -> None:
    findings(good=[passed("fine")], broken=[BROKEN])
    pytester.runpytest_inprocess("--torchcheck").assert_outcomes(passed=1, failed=1)
    pytester.runpytest_inprocess("--torchcheck", "--lf").assert_outcomes(failed=1, deselected=1)
    ordered = pytester.runpytest_inprocess("--torchcheck", "--ff", "-v")
    ordered.stdout.fnmatch_lines(["*net::broken FAILED*", "*net::good PASSED*"])


def test_junit_holds_the_finding(pytester: pytest.Pytester, findings: Any) -> None:
    findings(good=[passed("fine")], broken=[BROKEN])
    pytester.runpytest_inprocess("--torchcheck", "--junitxml=out.xml")
    cases = {
        case.get("name"): case for case in ET.parse(pytester.path / "out.xml").iter("testcase")
    }
    assert {case.get("classname") for case in cases.values()} == {"test_models.net"}
    failure = cases["broken"].find("failure")
    assert failure is not None
    assert failure.get("message", "").startswith("first.weight got no gradient [grad-none]")
    held = {entry.get("name"): entry.get("value") for entry in cases["broken"].iter("property")}
    assert held["torchcheck_contract"] == "net"
    assert held["torchcheck_status"] == "violated"
    assert held["torchcheck_codes"] == "grad-none"
    assert held["torchcheck_device"] == "cpu"


def test_a_wrong_declaration_is_a_collection_error_with_its_place(
    pytester: pytest.Pytester, models: Any
) -> None:
    models("@contract(inputs='B 4', sises={'B': 2})\ndef net():\n    return Net()")
    result = pytester.runpytest_inprocess("--torchcheck")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(["*test_models.py:*", "*DeclarationError*sises*"])


def test_an_unknown_check_is_a_usage_error(pytester: pytest.Pytester, models: Any) -> None:
    models(ONE)
    result = pytester.runpytest_inprocess("--torchcheck", "--torchcheck-checks=bakward")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --torchcheck-checks: no check is named 'bakward'; did you mean 'backward'?*"]
    )


def test_the_runner_is_closed_after_its_last_case(
    pytester: pytest.Pytester, findings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []
    original = pytest_torchcheck.runner.Runner.close
    monkeypatch.setattr(
        pytest_torchcheck.runner.Runner,
        "close",
        lambda self: (closed.append(self.contract.name), original(self)),
    )
    findings(good=[passed("fine")], broken=[BROKEN])
    pytester.runpytest_inprocess("--torchcheck")
    assert closed == ["net"]


def test_select() -> None:
    known = ("a", "b", "c-d")
    assert select(("a", "c-d"), known) == {"a", "c-d"}
    assert select(("!a",), known) == {"b", "c-d"}
    assert select(("a", "b", "!b"), known) == {"a"}
    with pytest.raises(
        ValueError, match="no check is named 'c-e'; did you mean 'c-d'\\?; there are: a, b, c-d"
    ):
        select(("!c-e",), known)


def test_judge_needs_something_that_held_to_pass() -> None:
    assert judge([passed("x")], strict=True) == Verdict()
    assert judge([not_applicable("why")], strict=True).skipping == ("not applicable: why",)
    assert judge([inconclusive("why")], strict=False).skipping == ("inconclusive: why",)
    assert judge([BROKEN, inconclusive("why")], strict=False).skipping == ()
    assert judge([BROKEN, suspicious("c", "s")], strict=False).warning[0].code == "c"


def test_plain_leaves_nothing_that_cannot_cross_a_process() -> None:
    import execnet
    import numpy as np
    import torch

    class Name(str):
        def __str__(self) -> str:
            return self

    value = {
        "torch": torch.__version__,
        "tensor": torch.ones(2),
        "number": np.float64(1.5),
        "count": np.int64(3),
        "name": Name("x"),
        "set": {1},
        ("key",): (True, None, 2, "text"),
    }
    execnet.dumps(plain(value))
    assert plain(value)["number"] == 1.5
    assert plain(value)["('key',)"] == [True, None, 2, "text"]
