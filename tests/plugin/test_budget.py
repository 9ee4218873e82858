"""The budget and the list of the slowest checks, as a user asks for them."""

from __future__ import annotations

import re

import pytest

from tests import forked

CONTRACT = """
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Labels, contract

@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return nn.Linear(6, 3)
"""


def test_the_slowest_checks_are_listed_in_seconds_and_steps(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CONTRACT)
    arguments = (
        "--torchcheck-checks=backward,mode-flags,gradients-exist",
        "--torchcheck-durations=2",
    )
    result = pytester.runpytest("-q", "--torchcheck", *arguments)  # as pytest's own list
    lines = [str(line) for line in result.outlines]
    start = next(n for n, line in enumerate(lines) if line.startswith("slowest checks:"))
    listed = [line for line in lines[start + 1 : start + 4] if "::net::" in line]
    assert len(listed) == 2
    assert all(re.match(r" +\d+\.\d{3} +\d+\.\d  ", line) for line in listed)


def test_a_budget_skips_with_its_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(CONTRACT)
    pytester.makeconftest(
        "from pytest_torchcheck.runner import selection\nselection.plain_step_seconds = lambda subject: 1e-9\n"
    )
    arguments = ("--torchcheck-checks=backward,seeding", "--torchcheck-budget=2", "-rs")
    result = forked.pytest_run(pytester, "--torchcheck", *arguments)
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*seeding*not run: * plain steps are spent, and the budget is 2*"])


def test_a_budget_that_is_none_is_refused(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--torchcheck", "--torchcheck-budget=0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*choose a number of plain training steps above 0*"])
