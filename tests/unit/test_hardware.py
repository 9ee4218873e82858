from __future__ import annotations

import multiprocessing
import os
import sys
import time
from typing import TYPE_CHECKING

import pytest

from pytest_torchcheck import hardware

if TYPE_CHECKING:
    from pathlib import Path

GIB = 2**30


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        (None, ("GPU-a", "GPU-b")),
        ("", ()),
        ("1", ("1",)),
        ("3,1", ("3", "1")),
        (" 0 , 2 ", ("0", "2")),
        ("0,-1,2", ("0",)),
        ("GPU-8932f937,GPU-2a", ("GPU-8932f937", "GPU-2a")),
        ("MIG-GPU-8932f937/1/2,MIG-5f", ("MIG-GPU-8932f937/1/2", "MIG-5f")),
        ("0,0,1", ("0", "1")),
        ("NoDevFiles", ()),
    ],
)
def test_visible_keeps_the_callers_names(setting: str | None, expected: tuple[str, ...]) -> None:
    assert hardware.visible(setting, ("GPU-a", "GPU-b")) == expected


def test_smi_list_names_the_parts_of_a_split_gpu_instead_of_it() -> None:
    text = """GPU 0: NVIDIA A100 (UUID: GPU-1111)
  MIG 3g.20gb Device  0: (UUID: MIG-aaaa)
  MIG 3g.20gb Device  1: (UUID: MIG-bbbb)
GPU 1: NVIDIA A100 (UUID: GPU-2222)
"""
    assert hardware.parse_smi_list(text) == ("MIG-aaaa", "MIG-bbbb", "GPU-2222")
    assert hardware.parse_smi_list("No devices found.\n") == ()


def test_memory_share_follows_pytorchs_formula_and_refuses_too_many() -> None:
    assert hardware.memory_share(1, 16 * GIB) == 1.0
    two = hardware.memory_share(2, 16 * GIB)
    assert two == pytest.approx((16 * GIB - 2 * 850_000_000) / (16 * GIB) / 2)
    with pytest.raises(ValueError, match=r"12 workers share a GPU of 8\.0 GiB.* 5 would fit"):
        hardware.memory_share(12, 8 * GIB)
    assert hardware.memory_share(5, 8 * GIB) >= hardware.LEAST_SHARE
    with pytest.raises(ValueError, match="6 workers"):
        hardware.memory_share(6, 8 * GIB)


def test_what_others_hold_leaves_out_this_process() -> None:
    memory = hardware.Memory(free=4 * GIB, total=16 * GIB, own=2 * GIB)
    assert memory.others == 10 * GIB - hardware.CONTEXT_BYTES
    assert hardware.Memory(free=14 * GIB, total=16 * GIB, own=2 * GIB).others == 0


def probing(code: str, timeout_s: float = 20.0) -> hardware.Probe:
    return hardware._run_probe([sys.executable, "-c", code], "xpu", timeout_s)


def test_a_probe_that_hangs_meets_its_deadline() -> None:
    began = time.perf_counter()
    found = probing("import time; time.sleep(60)", 0.3)
    assert not found.devices
    assert found.reason == "the process that probes xpu gave no answer in 0.3 s"
    assert time.perf_counter() - began < 10


def test_a_probe_that_dies_says_how() -> None:
    assert "signal 6" in probing("import os; os.abort()").reason
    assert (
        "exit status 3: boom"
        in probing("import sys; print('boom', file=sys.stderr); sys.exit(3)").reason
    )
    assert "exit status 0: no output" in probing("").reason
    missing = hardware._run_probe(["/no/such/program"], "cuda", 1.0)
    assert "did not start" in missing.reason


def test_a_probe_reads_its_devices_behind_other_output() -> None:
    found = probing(
        "print('noise'); import json; "
        "print(json.dumps({'devices': [{'kind': 'xpu', 'index': 0, 'name': 'Max'}], 'reason': '', 'versions': {}}))"
    )
    assert [device.name for device in found.devices] == ["Max"]


def test_the_real_probe_finds_nothing_where_torch_has_no_cuda() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    found = hardware.TorchLayer().probe("cuda", 60.0)
    assert found.devices == ()
    assert found.reason == f"torch {torch.__version__} sees no cuda device"
    assert found.to_dict()["versions"]["torch"] == torch.__version__


def test_the_real_layer_answers_without_a_gpu() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    layer = hardware.TorchLayer()
    assert layer.count("cuda") == 0
    assert not layer.started()
    assert layer.held() == layer.allocations() == 0
    layer.synchronize()
    layer.collect()
    assert layer.capability("xpu", 0) is None
    assert layer.is_out_of_memory(torch.OutOfMemoryError())
    assert not layer.is_out_of_memory(MemoryError())


def test_install_returns_the_layer_before() -> None:
    own = hardware.TorchLayer()
    before = hardware.install(own)
    try:
        assert hardware.layer() is own
    finally:
        assert hardware.install(before) is own


def _hold(run: str, exclusive: bool, log: Path, seconds: float) -> None:
    with hardware.holding(("0", "MIG-GPU-1/2/3"), run=run, exclusive=exclusive):
        with log.open("a") as file:
            file.write(f"in {exclusive}\n")
        time.sleep(seconds)
        with log.open("a") as file:
            file.write(f"out {exclusive}\n")


@pytest.mark.skipif(os.name == "nt", reason="shared locks are exclusive there")
def test_exclusive_holders_are_alone_and_others_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hardware.tempfile, "tempdir", str(tmp_path))
    log = tmp_path / "log"
    context = multiprocessing.get_context("fork")
    plans = ((True, 0.05), (False, 0.3), (True, 0.05), (False, 0.3), (False, 0.3))
    workers = [
        context.Process(target=_hold, args=("run", exclusive, log, rest))
        for exclusive, rest in plans
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(20)
        assert worker.exitcode == 0
    lines = log.read_text().splitlines()
    assert len(lines) == 2 * len(plans)
    inside = 0
    for place, line in enumerate(lines):
        if line == "in True":
            assert inside == 0  # nobody else was in
            assert lines[place + 1] == "out True"
        inside += 1 if line.startswith("in") else -1


def test_a_killed_holder_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.tempfile, "tempdir", str(tmp_path))
    worker = multiprocessing.get_context("fork").Process(
        target=_hold, args=("run", True, tmp_path / "log", 60.0)
    )
    worker.start()
    deadline = time.monotonic() + 10
    while not (tmp_path / "log").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.kill()
    worker.join(10)
    began = time.monotonic()
    with hardware.holding(("0",), run="run", exclusive=True):
        assert time.monotonic() - began < 5


def test_importing_hardware_imports_no_torch() -> None:
    import subprocess

    code = (
        "import sys, pytest_torchcheck.hardware as h; h.cores(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
