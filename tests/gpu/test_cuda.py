"""The device layer and the runs that depend on it, on a real GPU. ``tox -e cuda`` requires one."""

from __future__ import annotations

import json
import textwrap
from typing import Any

import pytest

from pytest_torchcheck import hardware

pytestmark = pytest.mark.cuda


def compute() -> None:
    """Use the device in this process too: a test marked cuda that does not is an error under --torchcheck-require."""
    import torch

    torch.ones(8, device="cuda").add_(1)


def test_the_probe_computes_on_the_device() -> None:
    compute()
    found = hardware.TorchLayer().probe("cuda", 120.0)
    assert found.devices
    assert found.devices[0].total >= found.devices[0].free > 0
    assert found.devices[0].capability
    assert found.versions["torch"]


def test_present_gpus_are_named() -> None:
    compute()
    assert all(name.startswith(("GPU-", "MIG-")) for name in hardware.present_gpus())


def test_the_layer_counts_what_happens() -> None:
    import torch

    layer = hardware.TorchLayer()
    torch.ones(1, device="cuda")
    assert layer.started()
    layer.collect()
    blocks, held = layer.allocations(), layer.held()
    kept = torch.ones(1 << 20, device="cuda")
    assert layer.allocations() > blocks
    assert layer.held() - held == 4 << 20
    memory = layer.memory("cuda", 0)
    assert 0 < memory.free < memory.total
    assert memory.own >= 4 << 20
    del kept
    layer.collect()
    assert layer.held() == held
    assert layer.capability("cuda", 0) == torch.cuda.get_device_capability(0)
    layer.synchronize()


def test_a_share_of_memory_is_a_limit() -> None:
    compute()
    import torch

    layer = hardware.TorchLayer()
    total = layer.memory("cuda", 0).total
    layer.limit("cuda", 0, 0.01)
    try:
        with pytest.raises(torch.OutOfMemoryError) as caught:
            torch.empty(int(total * 0.02), dtype=torch.uint8, device="cuda")
        assert layer.is_out_of_memory(caught.value)
    finally:
        layer.limit("cuda", 0, 1.0)


LABELS = """
    import pytest
    import torch
    import torch.nn.functional as F

    @pytest.mark.cuda
    def test_labels():
        logits = torch.randn(64, 10, device="cuda")
        labels = torch.randint(0, 10, (64,)).cuda()
        labels[7] = 10
        F.cross_entropy(logits, labels)  # the kernel asserts after this call has returned

    @pytest.mark.cuda
    @pytest.mark.parametrize("n", range(20))
    def test_after(n):
        assert float(torch.ones(8, device="cuda").sum()) == 8
"""


def test_a_label_out_of_range_costs_one_failure_that_names_it(pytester: pytest.Pytester) -> None:
    compute()
    pytest.importorskip("xdist")
    pytester.makepyfile(LABELS)
    result = pytester.runpytest_subprocess(
        "-n",
        "1",
        "--torchcheck-json=out.json",
        "--junitxml=out.xml",
        "--torchcheck-min-gpu-tests=20",
    )
    result.assert_outcomes(passed=20, failed=1)
    [contract] = json.loads((pytester.path / "out.json").read_text())["contracts"]
    told = json.dumps(contract["findings"])
    assert "10" in told
    assert "class" in told


def test_in_one_process_the_rest_is_an_error(pytester: pytest.Pytester) -> None:
    compute()
    pytester.makepyfile(LABELS)
    result = pytester.runpytest_subprocess("-p", "no:randomly")
    result.assert_outcomes(failed=1, errors=20)


def test_an_assertion_that_is_expected_passes_in_its_own_process(pytester: pytest.Pytester) -> None:
    compute()
    pytester.makepyfile(
        textwrap.dedent(LABELS)
        + textwrap.dedent(
            """
            @pytest.mark.cuda(isolated=True)
            def test_expected():
                with pytest.raises(RuntimeError):
                    F.cross_entropy(torch.randn(2, 3, device="cuda"), torch.tensor([0, 3], device="cuda"))
                    torch.cuda.synchronize()

            @pytest.mark.cuda
            def test_last():
                assert float(torch.ones(8, device="cuda").sum()) == 8
            """
        )
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", "-k", "test_expected or test_last")
    result.assert_outcomes(passed=2)


def test_what_a_test_leaves_is_found(pytester: pytest.Pytester) -> None:
    compute()
    pytester.makepyfile(
        """
        import pytest
        import torch

        kept = []

        @pytest.mark.cuda
        def test_leaks():
            kept.append(torch.ones(1 << 22, device="cuda"))

        @pytest.mark.cuda
        def test_frees():
            torch.ones(1 << 22, device="cuda") @ torch.ones(1 << 22, device="cuda")
        """
    )
    result = pytester.runpytest_subprocess(
        "--torchcheck-leak=1MiB", "--torchcheck-strict", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*test_leaks left 16.0 MiB of cuda memory behind*"])


def test_contracts_hold_on_the_device(pytester: pytest.Pytester, models: Any) -> None:
    compute()
    models("@contract(**FIELDS)\ndef net():\n    return Net()")
    result = pytester.runpytest_subprocess(
        "--torchcheck", "-m", "cuda", "--torchcheck-require=cuda", "-rs"
    )
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 5
    assert not outcomes.keys() & {"failed", "errors"}
