from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from typing import TYPE_CHECKING

import pytest

from pytest_torchcheck import hardware
from pytest_torchcheck.hardware import layers

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


def probing(code: str, timeout_s: float = 120.0) -> hardware.Probe:
    return layers._run_probe([sys.executable, "-c", code], "xpu", timeout_s)


def test_a_probe_that_hangs_meets_its_deadline() -> None:
    found = probing("import time; time.sleep(600)", 0.3)
    assert not found.devices
    assert found.reason == "the process that probes xpu gave no answer in 0.3 s"


def test_a_probe_that_dies_says_how() -> None:
    assert "signal 6" in probing("import os; os.abort()").reason
    assert (
        "exit status 3: boom"
        in probing("import sys; print('boom', file=sys.stderr); sys.exit(3)").reason
    )
    assert "exit status 0: no output" in probing("").reason
    missing = layers._run_probe(["/no/such/program"], "cuda", 1.0)
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
    found = hardware.TorchLayer().probe("cuda", 300.0)
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


HOLD = """
import sys, time
from pathlib import Path
from pytest_torchcheck import hardware
from pytest_torchcheck.hardware import layers

exclusive, log, seconds = sys.argv[1] == "True", Path(sys.argv[2]), float(sys.argv[3])
with hardware.holding(("0", "MIG-GPU-1/2/3"), run="run", exclusive=exclusive):
    with log.open("a") as file:
        file.write(f"in {exclusive}\\n")
    time.sleep(seconds)
    with log.open("a") as file:
        file.write(f"out {exclusive}\\n")
"""


def _holder(folder: Path, exclusive: bool, seconds: float) -> subprocess.Popen[bytes]:
    """Start a process that holds; not by fork, which is unsafe beside the threads of a worker."""
    return subprocess.Popen(
        [sys.executable, "-c", HOLD, str(exclusive), str(folder / "log"), str(seconds)],
        env={**os.environ, "TMPDIR": str(folder), "TEMP": str(folder)},
    )


@pytest.mark.skipif(os.name == "nt", reason="shared locks are exclusive there")
def test_exclusive_holders_are_alone_and_others_share(tmp_path: Path) -> None:
    plans = ((True, 0.05), (False, 0.3), (True, 0.05), (False, 0.3), (False, 0.3))
    workers = [_holder(tmp_path, exclusive, rest) for exclusive, rest in plans]
    assert [worker.wait(120) for worker in workers] == [0] * len(plans)
    lines = (tmp_path / "log").read_text().splitlines()
    assert len(lines) == 2 * len(plans)
    inside = 0
    for place, line in enumerate(lines):
        if line == "in True":
            assert inside == 0  # nobody else was in
            assert lines[place + 1] == "out True"
        inside += 1 if line.startswith("in") else -1


def test_a_killed_holder_leaves_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker = _holder(tmp_path, True, 600.0)
    log, deadline = tmp_path / "log", time.monotonic() + 120
    while not (log.exists() and log.read_text()) and time.monotonic() < deadline:
        time.sleep(0.01)
    worker.kill()
    worker.wait(120)
    with hardware.holding(("0",), run="run", exclusive=True):
        assert log.read_text() == "in True\n"  # it was ended while it held


def test_importing_hardware_imports_no_torch() -> None:
    code = (
        "import sys, pytest_torchcheck.hardware as h; h.cores(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
