"""Beside other plugins of pytest: outcomes, files and exit status are as without them."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest

BODY = """
    @contract(**FIELDS)
    def good():
        return Net()

    @contract(**FIELDS)
    def cut():
        return Net(cut=True)
"""
ARGUMENTS = ("--torchcheck", "--torchcheck-checks=backward,gradients-exist")


def needs(module: str) -> Any:
    return pytest.mark.skipif(
        importlib.util.find_spec(module) is None, reason=f"{module} is not installed"
    )


@needs("pytest_randomly")
def test_randomly_changes_no_verdict(pytester: pytest.Pytester, models: Any) -> None:
    models(BODY)
    for seed in ("1", "2"):
        result = pytester.runpytest_subprocess(
            *ARGUMENTS, "-p", "randomly", f"--randomly-seed={seed}"
        )
        result.assert_outcomes(passed=3, failed=1)
        assert result.ret == pytest.ExitCode.TESTS_FAILED


@needs("pytest_rerunfailures")
def test_reruns_replace_the_attempt_before(
    pytester: pytest.Pytester, models: Any, simulate: Any
) -> None:
    simulate(gpus=1)
    models(
        BODY
        + """
    import os
    import pytest
    import simulated_devices as device

    @pytest.mark.cuda
    def test_flaky():
        device.compute()
        with open("tries", "a") as file:
            file.write("x")
        assert os.path.getsize("tries") == 2
    """
    )
    result = pytester.runpytest_subprocess(
        *ARGUMENTS,
        "--reruns=2",
        "--torchcheck-json=out.json",
        "--torchcheck-min-gpu-tests=1",
        "-p",
        "no:randomly",
    )
    outcomes = result.parseoutcomes()
    assert (outcomes["passed"], outcomes["failed"], outcomes["rerun"]) == (4, 1, 3)
    import json

    contracts = json.loads((pytester.path / "out.json").read_text())["contracts"]
    assert [len(contract["findings"]) for contract in contracts] == [
        2,
        2,
    ]  # those of the last attempts alone


@needs("pytest_timeout")
def test_timeouts_end_a_case(pytester: pytest.Pytester, models: Any) -> None:
    models(
        """
        import time

        class Slow(Net):
            def forward(self, x):
                time.sleep(600)

        @contract(**FIELDS)
        def net():
            return Slow()

        def test_after(): pass
        """
    )
    result = pytester.runpytest_subprocess(
        "--torchcheck", "--torchcheck-checks=backward", "--timeout=5", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*Timeout*"])


@needs("pytest_cov")
def test_coverage_counts_the_users_files(pytester: pytest.Pytester, models: Any) -> None:
    models(BODY)
    result = pytester.runpytest_subprocess(
        *ARGUMENTS, "--cov=.", "--cov-report=term-missing", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["test_models.py*100%*"])


@needs("pytest_html")
def test_html_reports_hold_the_finding(pytester: pytest.Pytester, models: Any) -> None:
    models(BODY)
    result = pytester.runpytest_subprocess(
        *ARGUMENTS, "--html=out.html", "--self-contained-html", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=3, failed=1)
    assert (
        "got no gradient" in (text := (pytester.path / "out.html").read_text())
        or "get no gradient" in text
    )


@needs("pytest_benchmark")
def test_benchmark_measures_on(pytester: pytest.Pytester, models: Any) -> None:
    models(
        BODY
        + """
    def test_speed(benchmark, torchcheck):
        benchmark(lambda: torchcheck.device)
    """
    )
    result = pytester.runpytest_subprocess(*ARGUMENTS, "-p", "no:randomly")
    result.assert_outcomes(passed=4, failed=1)
    result.stdout.fnmatch_lines(["*benchmark: 1 tests*"])


@needs("pytest_repeat")
def test_repeat_repeats_ordinary_tests(pytester: pytest.Pytester, models: Any) -> None:
    models(BODY + "\n    def test_ordinary(torchcheck): assert torchcheck.seed == 0")
    result = pytester.runpytest_subprocess(*ARGUMENTS, "--count=2", "-p", "no:randomly")
    result.assert_outcomes(passed=5, failed=1)


def test_unittest_and_doctest_go_on(pytester: pytest.Pytester, models: Any) -> None:
    models(BODY)
    pytester.makepyfile(
        test_unit="""
        import unittest
        import pytest

        class TestOld(unittest.TestCase):
            def test_one(self):
                self.assertEqual(1, 1)

            @pytest.mark.cuda
            def test_gpu(self):
                pass
        """,
        documented='''
        def double(x):
            """
            >>> double(2)
            4
            """
            return 2 * x
        ''',
    )
    pytester.maketxtfile(test_text=">>> 1 + 1\n2\n")
    result = pytester.runpytest_subprocess(*ARGUMENTS, "--doctest-modules", "-p", "no:randomly")
    result.assert_outcomes(passed=6, failed=1, skipped=1)


def test_the_debugger_and_the_cache_can_be_off(pytester: pytest.Pytester, models: Any) -> None:
    models(BODY)
    result = pytester.runpytest_subprocess(
        *ARGUMENTS, "-p", "no:cacheprovider", "-p", "no:terminal", "-p", "no:warnings"
    )
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result = pytester.runpytest_subprocess(
        *ARGUMENTS, "-p", "no:hypothesispytest", "--tb=line", "-q", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=3, failed=1)
    for style in ("long", "short", "native", "no"):
        result = pytester.runpytest_inprocess(*ARGUMENTS, f"--tb={style}", "-p", "no:randomly")
        result.assert_outcomes(passed=3, failed=1)
        assert ("grad-none" in result.stdout.str()) or style == "no"
