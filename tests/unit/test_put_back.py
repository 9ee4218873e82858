"""Everything a run may change is put back: after success, failure and interruption."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.hardware import accelerator
from pytest_torchcheck.state import (
    ModuleState,
    Precision,
    flags_settable,
    isolated,
    randomness_kept,
    seed_everything,
    seed_torch,
)


class Unusual(nn.Module):
    """Dropout, BatchNorm, a cache in a list, a counter, a plain tensor, a hook and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.3), nn.Linear(8, 3)
        )
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.calls = 0
        self.history: list[torch.Tensor] = []
        self.scale = torch.tensor(2.0)
        self.fail: type[BaseException] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.history.append(x.sum())
        self.scale.mul_(1.5)
        with torch.no_grad():
            self.frozen.data.add_(1.0)
        if self.fail is not None and self.calls > 2:
            raise self.fail("in forward")
        return self.body(x) * self.scale + self.frozen


def everything(model: Unusual, optimizer: torch.optim.Optimizer, batch: Any) -> dict[str, Any]:
    (x,), y = batch
    tensors = {f"state.{name}": value.clone() for name, value in model.state_dict().items()}
    tensors |= {
        f"grad.{name}": None if p.grad is None else p.grad.clone()
        for name, p in model.named_parameters()
    }
    tensors |= {"scale": model.scale.clone(), "x": x.clone(), "y": y.clone()}
    return {
        "tensors": tensors,
        "ids": [id(p) for p in model.parameters()] + [id(model.scale), id(model.history)],
        "modes": {name: module.training for name, module in model.named_modules()},
        "requires": {name: p.requires_grad for name, p in model.named_parameters()},
        "plain": (model.calls, len(model.history), len(model._forward_hooks)),
        "optimizer": repr(optimizer.state_dict()),
        "torch": torch.get_rng_state().clone(),
        "numpy": repr(np.random.get_state()),
        "python": random.getstate(),
        "flags": (
            torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(),
            torch.is_anomaly_enabled(), torch.backends.cudnn.benchmark, torch.backends.cudnn.deterministic,
        ),
    }  # fmt: skip


def assert_same(before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, value in before["tensors"].items():
        now = after["tensors"][name]
        assert (value is None) == (now is None), name
        assert value is None or torch.equal(value, now), name
    assert torch.equal(before["torch"], after["torch"])
    for key in ("ids", "modes", "requires", "plain", "optimizer", "numpy", "python", "flags"):
        assert before[key] == after[key], key


@pytest.fixture
def setting() -> Any:
    torch.manual_seed(3)
    model = Unusual()
    optimizer = torch.optim.Adam(model.body.parameters(), lr=0.1)
    batch = ((torch.randn(5, 6),), torch.randint(0, 3, (5,)))
    F.cross_entropy(model(*batch[0]), batch[1]).backward()
    optimizer.step()
    model.body[1].eval()  # flags at unusual values
    model.body[0].weight.requires_grad_(False)
    model.register_forward_hook(lambda *_: None)
    flags = torch.backends.cudnn.benchmark, torch.get_num_threads()
    with flags_settable():  # other tests of this process may have imported torch's own test helpers
        torch.backends.cudnn.benchmark = True
    torch.set_num_threads(1)
    random.seed(11)
    np.random.seed(12)
    yield model, optimizer, batch
    with flags_settable():
        torch.backends.cudnn.benchmark = flags[0]
    torch.set_num_threads(flags[1])


def test_check_leaves_everything_bit_equal(setting: Any) -> None:
    model, optimizer, batch = setting
    before = everything(model, optimizer, batch)
    report = Contract(model=model, batch=batch, loss=F.cross_entropy).check()
    assert any(f.status == "passed" for f in report.findings)
    assert_same(before, everything(model, optimizer, batch))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_or_an_interruption_leaves_everything_bit_equal(
    setting: Any, error: type[BaseException]
) -> None:
    model, optimizer, batch = setting
    model.fail = error
    before = everything(model, optimizer, batch)
    made = Contract(model=model, batch=batch, loss=F.cross_entropy)
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            made.check()
    else:
        assert not made.check().ok
    assert_same(before, everything(model, optimizer, batch))


def test_other_dtypes_leave_the_module_as_it_was(setting: Any) -> None:
    model, optimizer, batch = setting
    before = everything(model, optimizer, batch)
    Contract(
        model=model,
        batch=batch,
        loss=F.cross_entropy,
        dtypes=("float64", "bfloat16"),
        devices=("cpu", "meta"),
    ).check()
    assert_same(before, everything(model, optimizer, batch))


def test_isolated_puts_back_process_wide_settings() -> None:
    before = (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.get_rng_state().clone(),
        random.getstate(),
    )
    with pytest.raises(ZeroDivisionError), isolated():  # noqa: PT012
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.manual_seed(99)
        torch.use_deterministic_algorithms(True)
        torch.autograd.set_detect_anomaly(True)
        random.random()
        raise ZeroDivisionError
    assert torch.get_default_dtype() == before[0]
    assert torch.is_grad_enabled() == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])
    assert random.getstate() == before[3]
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_anomaly_enabled()


def test_runs_that_seed_leave_random_states_to_the_block_around_them() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3), random.random(), np.random.rand()
    torch.manual_seed(7)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    with isolated():
        with isolated(seeds=True):
            seed_everything(0)
            drawn = torch.rand(3)
        # what draws without a seed of its own must not draw what the run before it drew
        assert not torch.equal(torch.rand(3), drawn)
        with isolated(seeds=True):
            seed_everything(0)
            assert torch.equal(torch.rand(3), drawn)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.equal(torch.rand(3), expected[0])
    assert random.getstate() == before[1]
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[2], strict=True))


def test_alone_a_run_that_seeds_puts_random_states_back_itself() -> None:
    before = torch.get_rng_state()
    with isolated(seeds=True):
        seed_everything(0)
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_checks_of_one_contract_leave_random_states_to_the_block_around_all_of_them() -> None:
    torch.manual_seed(7)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()
    with randomness_kept():
        between = []
        for draws in (3, 5):
            with isolated(seeds=True):
                torch.rand(draws), random.random(), np.random.rand(draws)
            between.append((torch.get_rng_state(), random.getstate()))
        assert torch.equal(between[0][0], between[1][0])  # the next one begins alike
        assert between[0][1] == between[1][1]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert all(np.array_equal(a, b) for a, b in zip(np.random.get_state(), before[2], strict=True))


def test_seeding_gives_the_numbers_of_manual_seed() -> None:
    torch.manual_seed(12)
    expected = torch.rand(3)
    seed_torch(12)
    assert torch.equal(torch.rand(3), expected)


def test_a_lazy_module_is_uninitialised_again() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyBatchNorm1d())
    state = ModuleState(model)
    model(torch.randn(4, 2))
    assert type(model[0]) is nn.Linear
    state.restore()
    assert type(model[0]) is nn.LazyLinear
    assert torch.nn.parameter.is_lazy(model[0].weight)
    assert model(torch.randn(4, 7)).shape == (4, 3)


def test_a_lazy_module_under_contract_is_uninitialised_again() -> None:
    model = nn.Sequential(nn.LazyLinear(3), nn.ReLU())
    Contract(model=model, inputs="B 5").check(["backward"])
    assert torch.nn.parameter.is_lazy(model[0].weight)


def test_buffers_that_forward_registers_or_resizes_are_taken_back() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("grown", torch.zeros(1))
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.register_buffer("late", torch.zeros(2))
            self.grown = torch.zeros(7)
            return x * self.weight

    model = Cached()
    grown = model.grown
    Contract(model=model, inputs="B 3").check()
    assert model.grown is grown
    assert "late" not in dict(model.named_buffers())


def test_storage_that_a_conversion_replaces_is_put_back() -> None:
    model = nn.Linear(3, 2)
    pointers = [p.data_ptr() for p in model.parameters()]
    state = ModuleState(model, copy_parameters=True)
    model.double()
    model.to("meta")
    state.restore()
    assert [p.data_ptr() for p in model.parameters()] == pointers
    assert model.weight.dtype == torch.float32


def test_original_returns_the_value_before() -> None:
    model = nn.Linear(3, 2)
    state = ModuleState(model, copy_parameters=True)
    weight = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.add_(1)
    original = state.original(model.weight)
    assert original is not None
    assert torch.equal(original, weight)
    assert state.original(torch.zeros(1)) is None


def test_the_old_settings_of_precision_come_back_with_the_new_ones() -> None:
    before = Precision.now()
    try:
        with isolated():
            torch.set_float32_matmul_precision("medium")
            with flags_settable():
                torch.backends.cudnn.allow_tf32 = not torch.backends.cudnn.allow_tf32
            torch.backends.cudnn.conv.fp32_precision = "ieee"
        assert Precision.now() == before
        torch.backends.cuda.matmul.fp32_precision = "tf32"  # a mix that torch refuses to read
        mixed = Precision.now()
        assert mixed.matmul is None
        with isolated():
            torch.backends.cuda.matmul.fp32_precision = "ieee"
        assert Precision.now() == mixed
    finally:
        before.put_back()


def test_flags_that_torchs_test_helpers_have_locked_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    benchmark = torch.backends.cudnn.benchmark
    with isolated():
        with flags_settable():
            torch.backends.cudnn.benchmark = not benchmark
        # what importing torch.testing._internal.common_utils does, for good
        flags = torch.backends.disable_global_flags.__globals__
        monkeypatch.setitem(flags, "__allow_nonbracketed_mutation_flag", False)
        with pytest.raises(RuntimeError, match="disable_global_flags"):
            torch.backends.cudnn.benchmark = benchmark
    assert torch.backends.cudnn.benchmark == benchmark
    before = Precision.now()
    with accelerator.Cuda().precision(tf32=True):
        assert torch.backends.cudnn.conv.fp32_precision == "tf32"
    assert Precision.now() == before
    assert torch.backends.flags_frozen()


class Writes(nn.Module):
    """Writes to the gradient that its weight has, and to one that it was handed."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.way = way
        self.seen: set[bool] = set()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            if self.layer.weight.grad is not None:
                self.layer.weight.grad.fill_(7.0)
            elif handed and self.way == "in place":
                handed[0].fill_(8.0)
            elif handed and self.way == "through data":
                handed[0].data.fill_(9.0)
        return self.layer(x)


handed: list[torch.Tensor] = []


@pytest.mark.parametrize("way", ["own", "in place", "through data"])
def test_gradients_that_there_were_come_back_with_their_values(way: str) -> None:
    model = Writes(way)
    model.layer.weight.grad = torch.ones(2, 3)
    handed[:] = [model.layer.weight.grad]
    batch = ((torch.randn(4, 3),), torch.randint(0, 2, (4,)))
    try:
        Contract(model=model, batch=batch, loss=F.cross_entropy).check(["backward", "seeding"])
        assert model.layer.weight.grad is handed[0]
        assert model.layer.bias.grad is None
        assert torch.equal(handed[0], torch.ones(2, 3))
    finally:
        handed.clear()
