"""Checks that only a GPU can answer are items with or without one: skipped visibly, never passed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import forked

CUDA_ONLY = {"device-parity[cuda-float32]", "host-syncs[cuda]", "side-stream[cuda]", "graph-capture[cuda]"}  # fmt: skip


@pytest.fixture
def contracts(models: Any) -> None:
    models(
        """
        from pytest_torchcheck import promises

        @contract(**FIELDS, devices=("cpu", "cuda"), promises=(promises.CapturesGraph(), promises.Autocasts("bfloat16", "float16")))
        def net():
            return Net()
        """
    )


def test_they_are_skipped_where_there_is_none(
    pytester: pytest.Pytester, simulate: Any, contracts: None
) -> None:
    simulate(gpus=0)
    result = forked.pytest_run(pytester, "--torchcheck", "-m", "cuda", "-v", "--torchcheck-json=out.json")  # fmt: skip
    outcomes = result.parseoutcomes()
    assert "passed" not in outcomes
    assert "failed" not in outcomes
    text = result.stdout.str()
    for case in {*CUDA_ONLY, "autocast[cuda]"}:
        assert any(case in line and "SKIPPED" in line for line in text.splitlines()), case
    [found] = json.loads((pytester.path / "out.json").read_text())["contracts"]
    assert {finding["status"] for finding in found["findings"]} == {"inconclusive"}


def test_the_ones_of_the_cpu_run_all_the_same(
    pytester: pytest.Pytester, simulate: Any, contracts: None
) -> None:
    simulate(gpus=0)
    result = forked.pytest_run(pytester, "--torchcheck", "-m", "not cuda", "-v", "-k", "autocast or parity or syncs")  # fmt: skip
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*autocast?cpu? PASSED*"])
    assert "parity" not in result.stdout.str()


def test_they_are_an_error_where_a_gpu_is_required(
    pytester: pytest.Pytester, simulate: Any, contracts: None
) -> None:
    simulate(gpus=0)
    result = forked.pytest_run(pytester, "--torchcheck", "-m", "cuda", "--torchcheck-require=cuda")  # fmt: skip
    assert result.ret == pytest.ExitCode.USAGE_ERROR
