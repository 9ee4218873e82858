"""Tests in a process of their own: they must prove that they ran, and count as if they had run here."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests import forked


def run(pytester: pytest.Pytester, body: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(
        test_it="import os, sys, pytest\nimport simulated_devices as device\n\n" + body
    )
    return forked.pytest_run(pytester, "-p", "no:randomly", *arguments)


def test_outcomes_are_those_of_the_other_process(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    result = run(
        pytester,
        """
here = os.getpid()
made = []

@pytest.fixture
def where():
    made.append(os.getpid())
    yield os.getpid()

pytestmark = pytest.mark.cuda(isolated=True)

def test_passes(where, record_property):
    print("inside")
    record_property("own", "value")
    assert "TORCHCHECK_TASK" not in os.environ
    device.compute()

def test_fails():
    assert 1 == 2

def test_skips():
    pytest.skip("for a reason")

@pytest.mark.xfail(reason="known")
def test_xfails():
    assert 1 == 2

@pytest.mark.parametrize("n", [1])
class TestGroup:
    def test_method(self, n):
        assert n == 1

@pytest.fixture
def bad():
    raise ValueError("in the fixture")

def test_setup(bad):
    pass

@pytest.fixture
def late():
    yield
    raise ValueError("afterwards")

def test_teardown(late):
    pass

def test_nothing_was_made_here(where):
    assert made == [where]
""",
        "-rA",
        "--junitxml=out.xml",
    )
    result.assert_outcomes(passed=4, failed=1, skipped=1, xfailed=1, errors=2)
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_setup*",
            "E*ValueError: in the fixture",
            "*ERROR at teardown of test_teardown*",
            "E*ValueError: afterwards",
            "*__ test_fails __*",
            ">*assert 1 == 2*",
            "*__ test_passes __*",
            "inside",
            "*SKIPPED*for a reason*",
        ]
    )
    assert '<property name="own" value="value"' in (pytester.path / "out.xml").read_text()


def test_neighbours_keep_their_fixtures(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        test_a="""
        import pytest

        @pytest.fixture(scope="module")
        def shared():
            yield []

        def test_first(shared): shared.append(1)

        @pytest.mark.cuda(isolated=True)
        def test_alone(shared): assert shared == []

        def test_second(shared): assert shared == [1]
        """,
        test_b="""
        import pytest

        @pytest.mark.cuda(isolated=True)
        def test_alone(): pass
        """,
        test_c="def test(): pass",
    )
    forked.pytest_run(pytester, "-p", "no:randomly").assert_outcomes(passed=5)


LEFT = {
    "os._exit(0)": "exit status 0; its record holds no outcome of the test",
    "os._exit(5)": "exit status 5; its record holds no outcome of the test",
    "os.abort()": "signal 6 (SIGABRT); its record holds no outcome of the test",
    # on a busy machine it may not have come to the test by then: both prove nothing
    "import time; time.sleep(600)": "no answer in 4 s; it*",
}


@pytest.mark.parametrize("statement", LEFT)
def test_a_process_that_proves_nothing_is_a_failure(
    pytester: pytest.Pytester, simulate: Any, statement: str
) -> None:
    simulate(gpus=1)
    result = run(
        pytester,
        f"@pytest.mark.cuda(isolated=True)\ndef test_leaves():\n    print('last words', flush=True)\n    {statement}\n\n"
        "def test_after(): pass",
        f"--torchcheck-isolated-timeout={4 if 'sleep' in statement else 120}",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [f"the separate process gave no proof that it ran the test ({LEFT[statement]})"]
    )


def test_a_process_that_cannot_collect_is_a_failure(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    result = run(
        pytester,
        """
if os.environ.get("SECOND"):
    raise RuntimeError("cannot be imported there")

@pytest.mark.cuda(isolated=True)
def test():
    pass

os.environ["SECOND"] = "1"
""",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*gave no proof that it ran the test (exit status *; it left no record)",
            "*cannot be imported there*",
        ]
    )


def test_an_expected_loss_passes_and_the_rest_runs(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    result = run(
        pytester,
        """
import torch

torch.cuda.synchronize = lambda device_=None: device.layer().synchronize()

@pytest.mark.cuda(isolated=True)
def test_expects():
    device.lose()
    with pytest.raises(RuntimeError, match="device-side assert"):
        torch.cuda.synchronize()

@pytest.mark.cuda(isolated=True)
def test_does_not_notice():
    device.lose()

@pytest.mark.cuda
@pytest.mark.parametrize("n", range(5))
def test_after(n):
    device.compute()
""",
    )
    result.assert_outcomes(passed=6, failed=1)
    result.stdout.fnmatch_lines(["*test_does_not_notice loses the device's context*"])
    result.stdout.no_fnmatch_line("*test_after*not run*")


def test_a_test_of_several_gpus_gets_them_in_its_own_process(
    pytester: pytest.Pytester, simulate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(gpus=4)
    monkeypatch.setenv("TORCHCHECK_GPUS", "GPU-a,GPU-b,GPU-c")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    result = run(
        pytester,
        """
@pytest.mark.cuda(min_gpus=2)
def test_two():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"

@pytest.mark.cuda
def test_one():
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b"

@pytest.mark.cuda(min_gpus=4)
def test_four():
    pass
""",
        "-rs",
    )
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*needs 4 cuda devices; this process sees 1"])


def test_it_runs_alone_whatever_the_whole_run_selects(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        test_it="""
        import pytest

        @pytest.mark.slow
        @pytest.mark.cuda(isolated=True)
        def test_chosen():
            open("ran", "a").write("x")

        def test_other():
            raise AssertionError
        """
    )
    (pytester.path / "tox.ini").write_text(
        "[pytest]\naddopts = -p simulated_devices\nmarkers = slow: yes\n"
    )
    result = forked.pytest_run(
        pytester,
        "-k",
        "chosen",
        "-m",
        "slow",
        "--strict-markers",
        "-x",
        "--torchcheck-json=out.json",
        "--junitxml=out.xml",
    )
    result.assert_outcomes(passed=1, deselected=1)
    assert (pytester.path / "ran").read_text() == "x"
    assert json.loads((pytester.path / "out.json").read_text())["contracts"] == []


def test_a_contract_can_run_in_processes_of_its_own(
    pytester: pytest.Pytester, simulate: Any, models: Any
) -> None:
    simulate(gpus=1)
    models(
        """
        import pytest

        @contract(**FIELDS)
        @pytest.mark.cuda(isolated=True)
        def net():
            return Net(cut=True)
        """
    )
    result = forked.pytest_run(
        pytester,
        "--torchcheck",
        "--torchcheck-checks=backward,gradients-exist",
        "--torchcheck-json=out.json",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["first.weight*[[]grad-none[]]"])
    [contract] = json.loads((pytester.path / "out.json").read_text())["contracts"]
    assert [finding["code"] for finding in contract["findings"]] == ["held", "grad-none"]
