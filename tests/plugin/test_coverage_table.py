"""The table of custom Functions at the end of a run, and the strict run that one of them fails."""

from __future__ import annotations

import json

import pytest

PACKAGE = """
import torch
from torch.autograd import Function


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad


class Square(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * ctx.saved_tensors[0] * grad


class Shift(Function):
    @staticmethod
    def forward(ctx, x, by):
        return x + by

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class Forgotten(Function):
    @staticmethod
    def forward(ctx, x):
        return x.sin()

    @staticmethod
    def backward(ctx, grad):
        return grad
"""

MODELS = """
import torch
from torch import nn
from pytest_torchcheck import contract
from ownfunctions import ops


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return ops.Shift.apply(ops.Square.apply(ops.Double.apply(self.layer(x))), 0.5)


@contract(inputs="B 4")
def net():
    return Net()
"""

CHECKS = "--torchcheck-checks=gradcheck,function-coverage"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    folder = pytester.mkpydir("ownfunctions")
    (folder / "ops.py").write_text(PACKAGE)
    pytester.makepyfile(test_models=MODELS)
    pytester.syspathinsert()
    return pytester


def line_of(name: str) -> int:
    return PACKAGE.splitlines().index(f"class {name}(Function):") + 1


def test_three_undeclared_functions_stand_in_the_table(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess("--torchcheck", CHECKS, "--torchcheck-json=found.json")
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        [
            f"{name} *ownfunctions/ops.py:{line_of(name)} *passed*net"
            for name in ("Double", "Square", "Shift")
        ]
    )
    result.stdout.no_fnmatch_line("*Forgotten*")
    document = json.loads((project.path / "found.json").read_text())
    assert {row["name"]: row["status"] for row in document["functions"]} == dict.fromkeys(
        ("Double", "Square", "Shift"), "passed"
    )


def test_one_that_no_contract_applies_fails_a_strict_run(project: pytest.Pytester) -> None:
    named = ("--torchcheck", CHECKS, "--torchcheck-packages=ownfunctions")
    result = project.runpytest_inprocess(*named, "--torchcheck-html=found.html")
    assert result.ret == 0
    result.stdout.fnmatch_lines([f"Forgotten *ops.py:{line_of('Forgotten')} *never checked*"])
    page = (project.path / "found.html").read_text()
    assert "<caption>custom Functions</caption>" in page
    # what needs attention stands first
    assert page.index("<td>Forgotten</td>") < page.index("<td>Square</td>")
    result.stdout.no_fnmatch_line("ERROR never checked*")
    result = project.runpytest_inprocess(*named, "--torchcheck-strict")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["ERROR never checked: Forgotten;*"])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    quiet = project.runpytest_inprocess(*named, "--torchcheck-strict", "-q")
    assert quiet.ret == pytest.ExitCode.TESTS_FAILED  # and it says why, without the table
    quiet.stdout.fnmatch_lines(["ERROR never checked: Forgotten;*"])
    quiet.stdout.no_fnmatch_line("*torchcheck: custom Functions*")
    # what was left out by name is no news
    result = project.runpytest_inprocess(*named, "--torchcheck-strict", "-k", "net")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("ERROR never checked*")


def test_no_table_without_functions(project: pytest.Pytester) -> None:
    project.makepyfile(
        test_models="""
        from torch import nn
        from pytest_torchcheck import contract


        @contract(inputs="B 4")
        def net():
            return nn.Linear(4, 3)
        """
    )
    result = project.runpytest_inprocess("--torchcheck", CHECKS)
    assert result.ret == 0
    result.stdout.no_fnmatch_line("*custom Functions*")
