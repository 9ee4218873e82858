"""``--torchcheck-record``: written, compared, changed, on one process and on workers of xdist."""

from __future__ import annotations

import pytest

from tests import forked

NETS = """
import torch
from torch import nn
from pytest_torchcheck import Contract

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(5, width), nn.Linear(width, 2)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)) * FACTOR)

class TestGroup:
    small = Contract(model=lambda: Net(4), inputs="B 5")

wide = Contract(model=lambda: Net(64), inputs="B 5")
"""
GIVEN = ("--torchcheck", "--torchcheck-checks=record", "-p", "no:cacheprovider", "-rs")


def test_records_are_written_compared_and_written_again(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ntorchcheck_record = golden\n")
    pytester.makepyfile(test_nets=NETS.replace("FACTOR", "1.0"))
    first = pytester.runpytest_inprocess(*GIVEN)
    first.assert_outcomes(skipped=2)
    first.stdout.fnmatch_lines(["*wrote golden*test_nets*wide.json: look at it and commit it*"])
    folder = pytester.path / "golden" / "test_nets"
    (small, wide) = sorted(path.name for path in folder.iterdir())
    assert (small[:16], wide) == ("TestGroup.small-", "wide.json")
    pytester.runpytest_inprocess(*GIVEN).assert_outcomes(passed=2)
    pytester.makepyfile(test_nets=NETS.replace("FACTOR", "1.001"))
    changed = pytester.runpytest_inprocess(*GIVEN)
    changed.assert_outcomes(failed=2)
    changed.stdout.fnmatch_lines(["*outputs changed since golden*first in last (Linear)*"])
    forked.pytest_run(pytester, *GIVEN, "-n2", "--torchcheck-write-record").assert_outcomes(
        passed=2
    )
    pytester.runpytest_inprocess(*GIVEN).assert_outcomes(passed=2)


def test_wrong_use_says_what_to_give(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_nets=NETS.replace("FACTOR", "1.0"))
    for given, told in (
        (("--torchcheck-record=golden",), "*give --torchcheck as well*"),
        (("--torchcheck", "--torchcheck-write-record"), "*give --torchcheck-record as well*"),
        (("--torchcheck", "--torchcheck-record=test_nets.py"), "*is a file; give a folder*"),
    ):
        result = pytester.runpytest_inprocess(*given)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([told])
