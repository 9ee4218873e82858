"""Tests on accelerators, with a simulated layer: needs, proofs, memory, lost contexts, requirements."""

from __future__ import annotations

from typing import Any

import pytest

from tests import forked

CUDA = """
    import pytest
    import simulated_devices as device

    @pytest.mark.cuda
    def test_computes():
        device.compute()
"""


def needs(pytester: pytest.Pytester, marker: str) -> pytest.RunResult:
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.{marker}\ndef test(): pass")
    return pytester.runpytest_inprocess("-rs")


@pytest.mark.parametrize(
    ("marker", "settings", "reason"),
    [
        ("cuda", {"gpus": 0}, "needs 1 cuda device; there is no cuda device"),
        ("xpu", {"gpus": 0}, "needs 1 xpu device; there is no xpu device"),
        ("mps", {"gpus": 0}, "needs 1 mps device; there is no mps device"),
        ("cuda(min_gpus=3)", {"gpus": 2}, "needs 3 cuda devices; this process sees 2"),
        (
            "cuda(capability='10.0')",
            {"gpus": 1, "capability": [9, 0]},
            "needs 1 cuda device, capability 10.0; cuda:0 has capability 9.0",
        ),
        (
            "cuda(memory='24 GiB')",
            {"total_gib": 16},
            "needs 1 cuda device, 24.0 GiB free; cuda:0 has 16.0 GiB in all",
        ),
        (
            "cuda(memory='8 GiB')",
            {"total_gib": 16, "others_gib": 10},
            "needs 1 cuda device, 8.0 GiB free; cuda:0 has 6.0 GiB free of 16.0 GiB: this process holds 0 B, others 9.2 GiB",
        ),
    ],
)
def test_what_a_machine_cannot_run_is_skipped_with_the_reason(
    pytester: pytest.Pytester, simulate: Any, marker: str, settings: dict[str, Any], reason: str
) -> None:
    simulate(**settings)
    result = needs(pytester, marker)
    result.assert_outcomes(skipped=1)
    assert (
        f"test_what_a_machine_cannot_run_is_skipped_with_the_reason.py:3: {reason}"
        in result.stdout.str()
    )


def test_what_it_can_run_is_run(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=2, total_gib=16, others_gib=8, capability=[9, 0])
    needs(pytester, "cuda(min_gpus=2, memory='8 GiB', capability='9.0')").assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("settings", "require", "told"),
    [
        (
            {"gpus": 0},
            "cuda",
            "--torchcheck-require requires 1 cuda device, and none works: the simulation has none",
        ),
        (
            {"gpus": 1},
            "cuda:2",
            "--torchcheck-require requires 2 cuda devices, and 1 of them works",
        ),
    ],
)
def test_required_devices_that_are_missing_stop_the_run(
    pytester: pytest.Pytester, simulate: Any, settings: dict[str, Any], require: str, told: str
) -> None:
    simulate(**settings)
    pytester.makepyfile(CUDA)
    result = pytester.runpytest_inprocess(f"--torchcheck-require={require}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert told in result.stderr.str()
    assert "test_computes" not in result.stdout.str()


def test_the_environment_requires_as_the_option_does(
    pytester: pytest.Pytester, simulate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(gpus=0)
    monkeypatch.setenv("TORCHCHECK_REQUIRE", "cuda")
    pytester.makepyfile("def test(): pass")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: environment TORCHCHECK_REQUIRE requires 1 cuda device, and none works: *"]
    )
    assert pytester.runpytest_inprocess("--help").ret == 0


def test_required_devices_that_work_are_shown(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=2)
    pytester.makepyfile(CUDA)
    result = pytester.runpytest_inprocess("--torchcheck-require=cuda:2")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "torchcheck: cuda:0 Simulated 16, capability 9.0, 16.0 GiB free of 16.0 GiB; torch simulated, driver 1.0",
            "torchcheck: cuda:1 Simulated 16*",
        ]
    )


@pytest.mark.parametrize(
    ("marker", "settings", "fails"),
    [
        ("cuda(memory='8 GiB')", {"others_gib": 10}, True),  # a busy GPU is a missing one
        ("cuda(memory='24 GiB')", {}, False),  # none was required that large
        ("cuda(capability='10.0')", {}, False),
        ("cuda(min_gpus=2)", {}, False),  # one was required
        ("xpu", {}, False),
    ],
)
def test_a_skip_for_lack_of_a_required_device_is_an_error(
    pytester: pytest.Pytester, simulate: Any, marker: str, settings: dict[str, Any], fails: bool
) -> None:
    simulate(gpus=1, **settings)
    pytester.makepyfile(
        f"import pytest\n\n@pytest.mark.{marker}\ndef test(): pass\n\ndef test_other(): pass"
    )
    result = pytester.runpytest_inprocess("--torchcheck-require=cuda", "-W", "always")
    if marker == "xpu":  # the simulated layer has as many of any kind
        result.assert_outcomes(passed=2, warnings=1)
        return
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)
    if fails:
        result.stdout.fnmatch_lines(
            [
                "*torchcheck: devices*",
                "ERROR cuda:1 was required, yet 1 test was skipped for lack of it: *::test",
            ]
        )


def test_so_many_tests_must_really_compute(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    pytester.makepyfile(CUDA + "\n    @pytest.mark.cuda\n    def test_idle(): pass\n")
    assert pytester.runpytest_inprocess("--torchcheck-min-gpu-tests=1", "-W", "always").ret == 0
    result = pytester.runpytest_inprocess("--torchcheck-min-gpu-tests=2", "-W", "always")
    result.assert_outcomes(passed=2, warnings=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*TorchcheckWarning: *::test_idle is marked cuda but computed nothing there*",
            "ERROR --torchcheck-min-gpu-tests: 2 tests must compute on a GPU, and 1 did",
        ]
    )
    failed = pytester.runpytest_inprocess("--torchcheck-min-gpu-tests=1", "-W", "error")
    failed.assert_outcomes(passed=2, errors=1)
    assert "PluggyTeardown" not in failed.stdout.str()


def test_an_empty_run_keeps_its_status(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    arguments = ("--torchcheck-require=cuda", "--torchcheck-min-gpu-tests=3")
    assert pytester.runpytest_inprocess(*arguments).ret == pytest.ExitCode.NO_TESTS_COLLECTED
    pytester.makepyfile(CUDA)
    assert (
        pytester.runpytest_inprocess(*arguments, "-k", "nothing").ret
        == pytest.ExitCode.NO_TESTS_COLLECTED
    )
    assert pytester.runpytest_inprocess(*arguments, "--co").ret == 0


def test_a_lost_context_is_charged_to_its_author_and_stops_the_rest(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device

        @pytest.fixture(scope="module", autouse=True)
        def resource():
            device.compute()
            yield
            device.layer().synchronize()  # fails once the context is lost

        @pytest.mark.cuda
        def test_before():
            device.compute()

        @pytest.mark.cuda
        def test_culprit():
            device.compute()
            device.lose()  # the test itself sees nothing: kernels run on after their launch

        @pytest.mark.cuda
        def test_after():
            device.compute()

        @pytest.mark.skip(reason="anyway")
        def test_skipped():
            pass

        def test_last():
            pass
        """
    )
    result = forked.pytest_run(pytester, "--torchcheck-json=found.json", "-p", "no:randomly")
    result.assert_outcomes(passed=1, failed=1, errors=2, skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "*ERROR at setup of test_after*",
            "not run: the device's context was lost by *::test_culprit",
            "*ERROR at setup of test_last*",
            "not run: the device's context was lost by *::test_culprit",
            "*__ test_culprit __*",
            "*test_culprit loses the device's context: RuntimeError: CUDA error: device-side assert triggered*context-lost*",
            '*again     CUDA_LAUNCH_BLOCKING=1 pytest "*::test_culprit"',
            "*torchcheck: devices*",
            "context lost by *::test_culprit: RuntimeError: CUDA error: device-side assert triggered",
        ]
    )


def test_a_context_lost_by_a_fixture_is_an_error_of_its_test(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device
        import torch  # what uses a device has imported it

        @pytest.fixture
        def broken():
            device.lose()

        def test_culprit(broken):
            pass

        def test_after():
            pass
        """
    )
    result = forked.pytest_run(pytester, "-p", "no:randomly")
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(
        ["*ERROR at setup of test_culprit*", "*context-lost*", "*ERROR at setup of test_after*"]
    )


def test_a_context_lost_in_teardown_is_an_error_of_its_test(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device
        import torch  # what uses a device has imported it

        @pytest.fixture
        def broken():
            yield
            device.lose()

        def test_culprit(broken):
            pass

        def test_after():
            pass
        """
    )
    result = forked.pytest_run(pytester, "-p", "no:randomly")
    result.assert_outcomes(passed=1, errors=2)
    result.stdout.fnmatch_lines(
        ["*ERROR at teardown of test_culprit*", "*context-lost*", "*ERROR at setup of test_after*"]
    )


def test_the_tests_own_failure_is_kept_beside_the_lost_context(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device

        @pytest.mark.cuda
        def test_culprit():
            device.lose()
            device.layer().synchronize()
        """
    )
    result = forked.pytest_run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "*device.layer().synchronize()*",
            "E*RuntimeError: CUDA error*",
            "*torchcheck call*",
            "*context-lost*",
        ]
    )


def test_the_same_test_on_the_cpu_gives_the_real_message(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device
        import torch
        import torch.nn.functional as F

        def loss_on(place, logits, labels):
            if torch.cuda.is_available():  # in the replay alone, which computes on the CPU
                return F.cross_entropy(logits.to(place), labels.cuda())
            device.lose()

        @pytest.mark.cuda
        def test_labels():
            labels = torch.tensor([0, 3, 10])
            loss_on("cuda", torch.randn(3, 10, device="cpu"), labels)
        """
    )
    result = forked.pytest_run(pytester, "--torchcheck-json=found.json")
    result.assert_outcomes(failed=1)
    shown = result.stdout.str()
    assert "10" in shown
    assert "label" in shown or "target" in shown
    result.stdout.fnmatch_lines(
        [
            "*__ test_labels __*",
            "*where *loss_on, *.py:8: return F.cross_entropy(*",
            "*on the device it lost the*",
            "*(the same test on*",
        ]
    )
    assert "context-lost" not in shown


def test_a_replay_that_fails_for_reasons_of_its_own_is_no_cause(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    pytest.importorskip("xdist")
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import os
        import pytest
        import simulated_devices as device
        import torch

        REPLAYED = torch.cuda.is_available()  # in the replay alone, which computes on the CPU

        @pytest.mark.cuda
        def test_worker(worker_id):
            if REPLAYED:  # what xdist says is there as here
                assert os.environ["PYTEST_XDIST_WORKER"] == worker_id == "gw0"
                torch.ones(3)[torch.tensor([7])]
            device.lose()

        @pytest.mark.cuda
        def test_reads_what_an_earlier_test_set():
            if REPLAYED:
                os.environ["GROUP"]
            device.lose()
        """
    )
    result = forked.pytest_run(pytester, "-n", "1", "-p", "no:randomly")
    result.assert_outcomes(failed=2)
    result.stdout.fnmatch_lines(
        ["*index 7 is out of *", "*context-lost*", "*it tells nothing on the CPU*"]
    )
    assert "KeyError" not in result.stdout.str()


def test_memory_is_collected_around_each_test(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device

        @pytest.mark.cuda
        def test_first():
            assert device.layer().collected == 1

        def test_ordinary():
            assert device.layer().collected == 2

        @pytest.mark.cuda
        def test_second():
            assert device.layer().collected == 3
        """
    )
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=3)


LEAK = """
    import pytest
    import simulated_devices as device

    @pytest.mark.cuda
    def test_leaks():
        device.compute(3 * 2**20)

    @pytest.mark.cuda
    def test_small():
        device.compute(2**20)
"""


def test_what_a_test_leaves_behind_is_a_warning_or_an_error(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    pytester.makepyfile(LEAK)
    pytester.runpytest_inprocess("-W", "always").assert_outcomes(passed=2)
    result = pytester.runpytest_inprocess("--torchcheck-leak=2MiB", "-W", "always")
    result.assert_outcomes(passed=2, warnings=1)
    result.stdout.fnmatch_lines(
        ["*test_leaks left 3.0 MiB of cuda memory behind; allowed are 2.0 MiB*"]
    )
    strict = pytester.runpytest_inprocess("--torchcheck-leak=2MiB", "--torchcheck-strict")
    strict.assert_outcomes(passed=2, errors=1)


OOM = """
    import os
    import pytest
    import simulated_devices as device

    @pytest.mark.cuda
    def test_large():
        device.compute()
        if not os.path.exists("second"):
            open("second", "w").close()
            device.run_out()
"""


def test_out_of_memory_is_tried_again_only_where_others_held_it(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1, others_gib=12)
    pytester.makepyfile(OOM)
    result = forked.pytest_run(pytester, "-rA")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*cuda:0 has 4.0 GiB free of 16.0 GiB: this process holds 0 B, others 11.2 GiB*",
            "*other processes held memory, so it ran again in its own process: passed*",
        ]
    )
    (pytester.path / "second").unlink()
    simulate(gpus=1, others_gib=0)
    result = forked.pytest_run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E*OutOfMemoryError: CUDA out of memory*", "*cuda:0 has 16.0 GiB free of 16.0 GiB*"]
    )


def test_contract_cases_of_an_absent_device_are_skipped_and_reported(
    pytester: pytest.Pytester, simulate: Any, models: Any
) -> None:
    simulate(gpus=0)
    models("@contract(devices=('cpu', 'cuda'), **FIELDS)\ndef net():\n    return Net()")
    result = pytester.runpytest_inprocess(
        "--torchcheck", "--torchcheck-checks=backward", "-rs", "--torchcheck-json=found.json"
    )
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(
        ["SKIPPED*test_models.py:*: needs 1 cuda device; there is no cuda device"]
    )
    import json

    [contract] = json.loads((pytester.path / "found.json").read_text())["contracts"]
    assert [(f["device"], f["status"], f["code"]) for f in contract["findings"]] == [
        ("cpu", "passed", "held"),
        ("cuda", "inconclusive", "not-run"),
    ]
    pytester.runpytest_inprocess("--torchcheck", "-m", "cuda", "--co", "-q").stdout.fnmatch_lines(
        ["*net::backward[[]cuda-float32[]]"]
    )


def test_a_skip_does_not_hide_a_lost_context(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device

        @pytest.mark.cuda
        def test_culprit():
            device.lose()
            pytest.skip("not today")
        """
    )
    result = forked.pytest_run(pytester)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*context-lost*"])


def test_a_case_that_ran_out_of_memory_beside_others_is_tried_again(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1, others_gib=12)
    pytester.makeconftest(
        """
        import os

        import pytest_torchcheck.runner as runner
        import simulated_devices as device
        from pytest_torchcheck.catalogue import Check
        from pytest_torchcheck.verdicts import passed, violated

        def run(_):
            device.compute()
            if os.path.exists("second"):
                return [passed("it fits")]
            open("second", "w").close()
            return [violated("out-of-memory", "the forward pass needs 8 GiB")]

        def cases(contract, *, devices=None):
            check = Check(name="fits", run=run, summary="", axes="device", family="")
            return (runner.Case(check=check, device="cuda", dtype="float32", id="fits[cuda]"),)

        class Runner(runner.Runner):
            def subject(self, case):
                return None

        runner.selection.cases, runner.Runner = cases, Runner
        """
    )
    pytester.makepyfile(
        test_models="""
        from torch import nn
        from pytest_torchcheck import contract

        @contract(inputs="B 4")
        def net():
            return nn.Linear(4, 4)
        """
    )
    result = forked.pytest_run(pytester, "--torchcheck", "--torchcheck-json=out.json", "-rA")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*ran again in its own process: passed*"])
    import json

    [contract] = json.loads((pytester.path / "out.json").read_text())["contracts"]
    assert [finding["status"] for finding in contract["findings"]] == ["passed"]
