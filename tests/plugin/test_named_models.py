"""Models named on the command line: items, ids, reports and errors as of any contract."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests import forked

if TYPE_CHECKING:
    from pathlib import Path

NETS = """
import torch
from torch import nn

class Cut(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.a, self.b = nn.Linear(5, width), nn.Linear(width, 3)
    def forward(self, x):
        return self.b(torch.tanh(self.a(x)).detach())

class Unknown(nn.Module):
    def forward(self, record):
        return record["text"]

built = nn.Linear(3, 2)
"""


@pytest.fixture
def nets(pytester: pytest.Pytester) -> Path:
    pytester.makepyfile(test_other="def test_ordinary(): pass")
    return pytester.makepyfile(nets_of_test=NETS)


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_inprocess("-p", "no:randomly", *arguments)


@pytest.mark.usefixtures("nets")
def test_a_model_is_checked_without_a_file(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "--torchcheck-model", "nets_of_test:Cut(width=4)", "--torchcheck-json=out.json",
        "--torchcheck-checks=backward,gradients-exist",
    )  # fmt: skip
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*nets_of_test:Cut(width=4) is checked as declared by (from a: Linear*",
            '    inputs="B 5",',
            '    targets=Labels("B", classes=3),',
            "    loss=F.cross_entropy,",
            "*[[]grad-none[]]*",
            "where     Cut.forward, nets_of_test.py:9: *detach*",
            (
                "again     pytest --torchcheck-model 'nets_of_test:Cut(width=4)' "
                "--torchcheck-checks=gradients-exist --torchcheck-seed=0"
            ),
        ]
    )
    written = json.loads((pytester.path / "out.json").read_text())
    (contract,) = written["contracts"]
    assert contract["node"] == "torchcheck::nets_of_test:Cut(width=4)"
    ids = [case["nodeid"] for case in contract["cases"]]
    assert "torchcheck::nets_of_test:Cut(width=4)::gradients-exist[cpu-float32]" in ids


@pytest.mark.usefixtures("nets")
def test_the_printed_command_repeats_the_failure(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "--torchcheck-model", "nets_of_test:Cut(width=4)", "--torchcheck-checks",
        "gradients-exist", "--torchcheck-seed=0",
    )  # fmt: skip
    result.assert_outcomes(failed=1)


@pytest.mark.usefixtures("nets")
def test_several_models_with_inputs_each_and_a_loss(pytester: pytest.Pytester) -> None:
    result = run(
        pytester, "--torchcheck-model", "nets_of_test:built", "--torchcheck-inputs", "B T 3",
        "--torchcheck-model", "torch.nn:Bilinear(2, 3, 4)", "--torchcheck-inputs", "('B 2', 'B 3')",
        "--torchcheck-loss=mse_loss", "-k", "backward",
    )  # fmt: skip
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(['    inputs="B T 3",', '    inputs=("B 2", "B 3"),'])


@pytest.mark.usefixtures("nets")
def test_a_loss_of_the_users_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        penalty_of_test="def far(output, targets): return (output - targets).abs().mean()"
    )
    result = run(
        pytester, "--torchcheck-model", "torch.nn:Linear(4, 1)", "-k", "backward",
        "--torchcheck-loss=penalty_of_test:far",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["    loss=far,"])


@pytest.mark.usefixtures("nets")
def test_paths_are_collected_beside_the_models_their_contracts_are_not(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(
        test_beside_named_models="""
        from torch import nn
        from pytest_torchcheck import Contract
        declared = Contract(model=nn.Linear(2, 2), inputs="B 2")
        def test_beside(): pass
        """
    )
    model = ("--torchcheck-model", "nets_of_test:built", "--torchcheck-checks=backward")
    alone = run(pytester, *model, "--co", "-q")
    assert [line for line in alone.outlines if "::" in line] == [
        "torchcheck::nets_of_test:built::backward[cpu-float32]"
    ]
    beside = run(pytester, *model, "--co", "-q", "test_beside_named_models.py")
    assert [line for line in beside.outlines if "::" in line] == [
        "test_beside_named_models.py::test_beside",
        "torchcheck::nets_of_test:built::backward[cpu-float32]",
    ]
    both = run(pytester, *model, "--co", "-q", "test_beside_named_models.py", "--torchcheck")
    assert "test_beside_named_models.py::declared::backward[cpu-float32]" in both.outlines


@pytest.mark.usefixtures("nets")
def test_a_model_that_cannot_be_inferred_is_an_error_with_the_line_to_add(
    pytester: pytest.Pytester,
) -> None:
    result = run(pytester, "--torchcheck-model", "nets_of_test:Unknown")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines(
        ["*what Unknown.forward(record) takes could not be inferred*--torchcheck-inputs*"]
    )
    result.stdout.fnmatch_lines(["ERROR torchcheck::nets_of_test:Unknown*"])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--torchcheck-model", "torch.nn.Linear(4, 2)"], "*write package.module:name*"),
        (["--torchcheck-model", "torch.nn:Linear(size, 2)"], "*'size' is not a literal*"),
        (["--torchcheck-inputs", "B 3"], "*belongs to a model; give --torchcheck-model as well*"),
        (["--torchcheck-model", "a:b", "--torchcheck-loss=mse"], "*choose from cross_entropy,*"),
        (
            ["--torchcheck-model", "a:b", *["--torchcheck-inputs", "B 3"] * 2],
            "*2 were given for 1 models; give one for all of them*",
        ),
    ],
)
def test_misuse_is_a_usage_error(
    pytester: pytest.Pytester, arguments: list[str], told: str
) -> None:
    result = run(pytester, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([told])


@pytest.mark.usefixtures("nets")
def test_under_xdist_the_verdicts_and_the_declaration_are_the_same(
    pytester: pytest.Pytester,
) -> None:
    pytest.importorskip("xdist")
    result = forked.pytest_run(pytester,
        "-n2", "--torchcheck-model", "nets_of_test:Cut", "-p", "no:randomly",
        "--torchcheck-checks=backward,gradients-exist,inputs-unchanged",
    )  # fmt: skip
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["torchcheck: nets_of_test:Cut is checked as*", '    inputs="B 5",']
    )
    assert sum("is checked as declared" in line for line in result.outlines) == 1


@pytest.mark.usefixtures("nets")
def test_a_saved_failure_is_replayed(pytester: pytest.Pytester) -> None:
    model = ("--torchcheck-model", "nets_of_test:Cut")
    # in processes of their own: what an inner run imports anew is another class than the outer one's
    only = "--torchcheck-checks=gradients-exist"
    forked.pytest_run(pytester, *model, only, "--torchcheck-artifacts=kept")
    (saved,) = (pytester.path / "kept").rglob("*.pt")
    result = forked.pytest_run(pytester, *model, f"--torchcheck-replay={saved}")
    result.assert_outcomes(failed=1)
