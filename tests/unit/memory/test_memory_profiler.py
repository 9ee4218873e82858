"""The tracker against torch's profiler, which records the CPU allocator itself."""

from __future__ import annotations

import pytest
import torch
from memory_zoo import ZOO

from pytest_torchcheck import Contract, largest_batch, measure_growth, measure_memory
from pytest_torchcheck.measure.memory import record
from pytest_torchcheck.probes.memory import MemoryTracker, build_profile

KERNELS = {"conv", "lstm", "unet"}
"""Models whose CPU kernels reorder data within one operation, which no tensor shows."""


def runner(name: str):
    entry = ZOO[name]
    torch.manual_seed(0)
    model = entry.build()
    args, targets = entry.batch()
    optimizer = entry.optimizer(model)

    def step() -> None:
        optimizer.zero_grad()
        loss = entry.loss(model(*args), targets)
        loss.backward()
        optimizer.step()

    return model, args, targets, step


@pytest.mark.parametrize("name", ZOO)
def test_the_peak_is_the_allocators_within_a_thousandth(name):
    model, args, targets, step = runner(name)
    tracker = MemoryTracker(model=model, inputs=(args, targets))
    with tracker:
        step()
        tracker.next_step()
        step()
    tracked = build_profile(tracker).peak_bytes
    operations = {
        a.op.rpartition(".")[0].replace("aten.", "aten::") for a in tracker.allocations() if a.op
    }

    model, args, targets, step = runner(name)
    held = sum(t.nbytes for t in (*args, targets, *model.buffers()))
    held += sum({p.data_ptr(): p.nbytes for p in model.parameters()}.values())
    seen = record(step)

    assert tracked == pytest.approx(held + seen.peak_between(operations), rel=1e-3)
    if name not in KERNELS:  # nothing is hidden in kernels: the whole record agrees
        assert tracked == pytest.approx(held + seen.peak, rel=1e-3)
    else:
        assert held + seen.peak > tracked


def test_what_a_kernel_takes_and_gives_back_is_told_from_what_it_returns():
    from pytest_torchcheck.measure.memory import Record

    outer, other = ("aten::convolution", 1), ("aten::add", 2)
    made = Record(
        changes=(100, 40, -40, 30, -30, -100),
        addresses=(1, 2, 2, 2, 2, 1),
        paths=((outer,), (outer,), (outer,), (other,), (), ()),
        last=0,
    )
    assert made.peak == 140
    assert made.peak_between({"aten::convolution"}) == 130
    assert made.peak_between(set()) == 140


def test_what_is_measured_can_be_printed():
    declared = Contract(model=lambda: torch.nn.Linear(4, 2), inputs="B 4", sizes={"B": (1, 64)})
    profile = str(measure_memory(declared, at={"B": 32}))
    assert profile.startswith("peak ")
    assert "B=32" in profile.splitlines()[0]
    assert "optimizer state" in profile
    assert len(profile) < 1500
    growth = str(measure_growth(declared, "B"))
    assert "·B" in growth.splitlines()[0]
    assert len(repr(largest_batch(declared, "1 MiB"))) < 500
