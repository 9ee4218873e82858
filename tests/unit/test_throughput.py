"""What benchmarks keep beside their times."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, Tokens
from pytest_torchcheck.measure.throughput import facts, peak_flops, per_second
from pytest_torchcheck.subject import Subject


class Embedded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.embed(ids))


def test_work_is_that_of_what_is_repeated() -> None:
    contract = Contract(model=Embedded, inputs=Tokens("B T", vocab=11), sizes={"B": 3, "T": 5})
    subject = Subject(contract)
    found = {kind: facts(subject, kind) for kind in ("forward", "inference", "training-step")}  # type: ignore[arg-type]
    subject.close()
    forward = 2 * 15 * 8 * 4
    assert {name: one["flops"] for name, one in found.items()} == {
        "forward": forward, "inference": forward, "training-step": 3 * forward,
    }  # fmt: skip
    assert found["inference"]["peak_bytes"] <= found["forward"]["peak_bytes"]
    assert found["forward"]["peak_bytes"] <= found["training-step"]["peak_bytes"]
    assert (found["forward"]["samples"], found["forward"]["tokens"]) == (3, 15)
    assert per_second(found["forward"], 0.5) == {
        "samples_per_second": 6.0, "tokens_per_second": 30.0, "flops_per_second": 2.0 * forward,
    }  # fmt: skip


def test_the_share_of_the_peak_is_given_where_the_device_is_known() -> None:
    known = {"samples": 0, "tokens": 0, "flops": 312e12, "peak_flops": 312e12}
    assert per_second(known, 2.0)["flops_utilisation"] == pytest.approx(0.5)
    name = "NVIDIA A100-SXM4-80GB"
    assert peak_flops(name, torch.bfloat16, tf32=False) == pytest.approx(312e12)
    assert peak_flops(name, torch.float32, tf32=False) == pytest.approx(19.5e12)
    assert peak_flops(name, torch.float64, tf32=False) is None
    assert peak_flops("NVIDIA H100 PCIe", torch.float16, tf32=False) == pytest.approx(756e12)
    assert peak_flops("NVIDIA L40S", None, tf32=False) == pytest.approx(91.6e12)
    assert peak_flops("some other chip", None, tf32=True) is None
