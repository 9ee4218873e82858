"""Many items, many lost contexts: none lost, none doubled, and the reports of one process.

``TORCHCHECK_SOAK=20`` runs the full thousand items; the default is a sample of it.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from typing import Any

import pytest

from tests.compat.test_xdist import cases, timeless

pytest.importorskip("xdist")
pytestmark = pytest.mark.usefixtures("in_order")

CONTRACTS = int(os.environ.get("TORCHCHECK_SOAK", "2"))
CASES = 50

# Cases of a contract that compute on the simulated device; the last one loses the context. A worker writes down
# what it ran, so that a doubled item is seen even where its reports are not.
CONFTEST = f"""
import os

import pytest_torchcheck.runner as runner
import simulated_devices as device
from pytest_torchcheck.catalogue import Check
from pytest_torchcheck.verdicts import passed, violated


def check(number):
    def run(_):
        with open("ran", "a") as file:
            file.write(f"{{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}} {{number}}\\n")
        device.compute()
        if number == {CASES - 1}:
            device.lose()
        if number % 10 == 3:
            return [violated("norm-high", f"weight {{number}} is too large", observed="norm 7.0", fix="scale it")]
        return [passed(f"{{number}} holds")]

    return run


def cases(contract, *, devices=None):
    return tuple(
        runner.Case(
            check=Check(name=f"case-{{number:02}}", run=check(number), summary="", axes="device", family=""),
            device="cuda",
            dtype="float32",
            id=f"case-{{number:02}}[cuda]",
        )
        for number in range({CASES})
    )


class Runner(runner.Runner):
    def subject(self, case):
        return None


runner.selection.cases, runner.Runner = cases, Runner
"""


@pytest.mark.parametrize("dist", ["loadscope", "load"])
def test_soak(pytester: pytest.Pytester, simulate: Any, dist: str) -> None:
    simulate(gpus=1)
    pytester.makeconftest(CONFTEST)
    text = "from torch import nn\nfrom pytest_torchcheck import contract\n"
    for number in range(CONTRACTS):
        text += f"\n@contract(inputs='B 4')\ndef net_{number}():\n    return nn.Linear(4, 4)\n"
    pytester.makepyfile(test_models=text)
    spread = pytester.runpytest_subprocess(
        "--torchcheck",
        "-n",
        "2",
        "--dist",
        dist,
        "--torchcheck-json=spread.json",
        "--junitxml=spread.xml",
        "-q",
    )
    total = CONTRACTS * CASES
    failed = CONTRACTS * (CASES // 10 + 1)
    assert "INTERNALERROR" not in spread.stdout.str()
    spread.assert_outcomes(passed=total - failed, failed=failed)
    held = cases(pytester.path / "spread.xml")
    assert len(held) == total
    ran = Counter(line.split()[1] for line in (pytester.path / "ran").read_text().splitlines())
    assert ran == {str(number): CONTRACTS for number in range(CASES)}
    assert (
        len({line.split()[0] for line in (pytester.path / "ran").read_text().splitlines()})
        >= CONTRACTS
    )

    # in one process the run ends with the context, so that each contract runs in a process of its own
    alone: list[Any] = []
    junit: dict[str, Any] = {}
    for number in range(CONTRACTS):
        result = pytester.runpytest_subprocess(
            "--torchcheck",
            f"test_models.py::net_{number}",
            "--torchcheck-json=alone.json",
            "--junitxml=alone.xml",
            "-q",
        )
        result.assert_outcomes(passed=CASES - failed // CONTRACTS, failed=failed // CONTRACTS)
        alone += timeless(pytester.path / "alone.json")["contracts"]
        junit |= cases(pytester.path / "alone.xml")
    assert timeless(pytester.path / "spread.json")["contracts"] == alone
    assert held == junit
    assert sum(len(one["findings"]) for one in alone) == total
    json.dumps(alone)
