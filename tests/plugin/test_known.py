"""Known findings: shown and not failing; new ones fail; those that are gone must be removed."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_torchcheck.checks.registry import Check
from pytest_torchcheck.findings import Culprit, Finding, Location
from pytest_torchcheck.runner import Case
from pytest_torchcheck.verdicts import inconclusive, passed, violated
from tests import forked

NET = """
import torch
from torch import nn
from pytest_torchcheck import Contract, Labels

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 4), nn.Linear(4, 3)
    def forward(self, x):
        return self.b(torch.tanh(self.a(x)).detach())

net = Contract(model=Net, inputs="B 5", targets=Labels("B", classes=3), loss=nn.functional.cross_entropy)
"""
FILE = "--torchcheck-baseline=known.txt"
CUT = violated(
    "grad-none", "a.weight gets no gradient", culprits=[Culprit(kind="parameter", name="a.weight")]
)
STILL = violated(
    "weight-static", "a.weight stays", culprits=[Culprit(kind="parameter", name="a.weight")]
)
HELD = passed("it holds")


@pytest.fixture
def found(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run with these cases of the contract: ``found("-k", "x", gradients=[...], updates=[...])``."""
    pytester.makepyfile(test_net=NET)

    def run(*arguments: str, **verdicts: list[Finding]) -> pytest.RunResult:
        def cases(contract: Any, *, devices: Any = None) -> tuple[Case, ...]:
            return tuple(
                Case(
                    check=Check(
                        name=name, run=lambda _, v=v: v, summary="", axes="once", family=""
                    ),
                    device="cpu", dtype="float32", id=name,
                )
                for name, v in verdicts.items()
            )  # fmt: skip

        monkeypatch.setattr("pytest_torchcheck.runner.selection.cases", cases)
        return pytester.runpytest_inprocess(
            "-p", "no:randomly", "--torchcheck", FILE, "-rxf", *arguments
        )

    return run


def lines(pytester: pytest.Pytester) -> list[str]:
    text = (pytester.path / "known.txt").read_text()
    return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture
def recorded(found: Any) -> Any:
    result = found("--torchcheck-write-baseline", gradients=[CUT], updates=[STILL], other=[HELD])
    assert result.ret == pytest.ExitCode.OK
    result.stdout.fnmatch_lines(["torchcheck: wrote 2 known findings to known.txt"])
    return found


def test_what_is_known_does_not_fail_and_is_shown(recorded: Any, pytester: pytest.Pytester) -> None:
    assert lines(pytester) == [
        "test_net.py::net | gradients | grad-none | a.weight",
        "test_net.py::net | updates | weight-static | a.weight",
    ]
    moved = CUT.replace(
        location=Location(file="/x.py", line=88), summary="1 of 9 parameters", observed="other"
    )
    result = recorded(gradients=[moved], updates=[STILL], other=[HELD])
    assert result.ret == pytest.ExitCode.OK
    result.assert_outcomes(passed=1, xfailed=2)
    result.stdout.fnmatch_lines(["XFAIL test_net.py::net::gradients - known: 1 of 9 parameters*"])
    result.stdout.fnmatch_lines(["test_net.py::net: ok: 2 known, 1 passed"])


def test_a_new_finding_fails_also_beside_a_known_one(recorded: Any) -> None:
    new = CUT.replace(culprits=(Culprit(kind="parameter", name="b.weight"),))
    result = recorded(gradients=[CUT, new], updates=[STILL], other=[STILL.replace(code="new")])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(failed=2, xfailed=1)
    result.stdout.fnmatch_lines(["test_net.py::net: violated: 2 causes, 2 known"])


def test_a_check_that_fails_by_itself_is_never_known(recorded: Any) -> None:
    broken = CUT.replace(status="error", code="internal-error")
    result = recorded("--torchcheck-write-baseline", gradients=[broken], updates=[STILL])
    result.assert_outcomes(failed=1, xfailed=1)


def test_a_finding_that_is_gone_must_be_removed(recorded: Any, pytester: pytest.Pytester) -> None:
    sound = {"gradients": [HELD], "updates": [STILL], "other": [HELD]}
    result = recorded(**sound)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=2, xfailed=1, failed=1)  # pytest's own line is red for it
    result.stdout.fnmatch_lines(
        [
            "this finding is gone; remove the line: test_net.py::net | gradients | grad-none | a.weight",
            "1 contract: 0 violated, 1 ok;*; 1 known finding is gone: remove it from the baseline",
            "FAILED known.txt:4 - this finding is gone; remove the line: *",
        ]
    )
    for style in ("--tb=line", "--tb=no"):
        shown = recorded(style, "--torchcheck-markdown=one.md", **sound)
        shown.stdout.fnmatch_lines(["FAILED known.txt:4 - this finding is gone;*"])
    assert "1 known finding is gone" in (pytester.path / "one.md").read_text()
    # a run that leaves the check out, or in which it could not decide, says nothing of it
    assert recorded("-k", "updates", **sound).ret == pytest.ExitCode.OK
    undecided = {**sound, "gradients": [inconclusive("nothing to see")]}
    assert recorded(**undecided).ret == pytest.ExitCode.OK
    assert recorded("--torchcheck-write-baseline", **sound).ret == pytest.ExitCode.OK
    assert lines(pytester) == ["test_net.py::net | updates | weight-static | a.weight"]


def test_a_run_of_some_checks_rewrites_theirs_alone(
    recorded: Any, pytester: pytest.Pytester
) -> None:
    path = pytester.path / "known.txt"
    path.write_text(path.read_text() + "test_other.py::old | backward | crash | forward\n")
    before = lines(pytester)
    recorded("-k", "updates", "--torchcheck-write-baseline", gradients=[HELD], updates=[STILL])
    assert lines(pytester) == before


def test_suspicions_are_known_where_they_fail(found: Any, pytester: pytest.Pytester) -> None:
    doubt = CUT.replace(status="suspicious")
    strict = ("--torchcheck-strict",)
    found(*strict, "--torchcheck-write-baseline", gradients=[doubt]).assert_outcomes(xfailed=1)
    assert len(lines(pytester)) == 1
    found(*strict, gradients=[doubt]).assert_outcomes(xfailed=1)
    # without strict it does not fail, and is neither known nor gone
    plain = found("-W", "default", gradients=[doubt])
    plain.assert_outcomes(passed=1, warnings=1)
    assert plain.ret == pytest.ExitCode.OK


def test_real_findings_under_xdist_are_those_of_one_process(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_net=NET)
    arguments = ("--torchcheck", "--torchcheck-checks=gradients-exist,backward", FILE)
    alone = forked.pytest_run(pytester, *arguments, "--torchcheck-write-baseline")
    assert alone.ret == pytest.ExitCode.OK
    assert lines(pytester) == ["test_net.py::net | gradients-exist | grad-none | a.bias, a.weight"]
    again = forked.pytest_run(pytester, *arguments, "-n2")
    assert again.ret == pytest.ExitCode.OK
    again.assert_outcomes(passed=1, xfailed=1)
    path = pytester.path / "test_net.py"
    path.write_text(path.read_text().replace(".detach()", ""))
    gone = forked.pytest_run(pytester, *arguments, "-n2")
    assert gone.ret == pytest.ExitCode.TESTS_FAILED
    gone.stdout.fnmatch_lines(["FAILED known.txt:4 - this finding is gone*"])


@pytest.mark.parametrize(
    ("arguments", "content", "told"),
    [
        (["--torchcheck-write-baseline"], None, "*give the file as well: --torchcheck-baseline=*"),
        (["--torchcheck-baseline=none.txt"], None, "*no such file*write-baseline makes it*"),
        (["--torchcheck-baseline=bad.txt"], "net: crash", "*bad.txt:1: 'net: crash' must be of*"),
    ],
)
def test_misuse_is_a_usage_error(
    pytester: pytest.Pytester, arguments: list[str], content: str | None, told: str
) -> None:
    pytester.makepyfile(test_net=NET)
    if content is not None:
        (pytester.path / "bad.txt").write_text(content)
    result = pytester.runpytest_inprocess("--torchcheck", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])
