from __future__ import annotations

import gc
import inspect
import sys

import pytest
import torch
import torch.nn.functional as F
from memory_zoo import MLP, Block, Transformer
from torch import nn

from pytest_torchcheck.probes.memory import (
    CATEGORIES,
    NOWHERE,
    MemoryTracker,
    OutOfBudget,
    build_profile,
)


def line_of(function, text: str) -> int:
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


def profile_of(model, inputs, step, repeats: int = 1, **options):
    tracker = MemoryTracker(model=model, inputs=inputs, **options)
    with tracker:
        step()
        for _ in range(repeats - 1):
            tracker.next_step()
            step()
    return build_profile(tracker)


def test_bytes_by_category_are_those_of_the_tensors():
    model = nn.Linear(30, 20)
    optimizer = torch.optim.Adam(model.parameters())
    x, y = torch.randn(8, 30), torch.randn(8, 20)

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()

    profile = profile_of(model, {"x": x, "y": y}, step, repeats=2)
    own = (30 * 20 + 20) * 4
    assert profile.by_category["parameters"] == own
    assert profile.category_peaks["gradients"] == own
    assert profile.category_peaks["optimizer_state"] == 2 * own + 2 * 4  # and two step counters
    assert profile.by_category["inputs"] == x.nbytes + y.nbytes
    assert profile.category_peaks["activations"] >= 8 * 20 * 4
    assert set(profile.by_category) <= set(CATEGORIES)
    assert profile.end_bytes == own * 4 + 8 + x.nbytes + y.nbytes


def test_every_breakdown_adds_up_to_the_peak():
    torch.manual_seed(0)
    model = Transformer(depth=1)
    ids, targets = torch.randint(0, 100, (2, 16)), torch.randint(0, 100, (32,))

    def step() -> None:
        F.cross_entropy(model(ids), targets).backward()

    profile = profile_of(model, (ids, targets), step)
    for parts in (profile.by_category, profile.by_module, profile.by_line):
        assert sum(parts.values()) == profile.peak_bytes
    assert max(profile.by_phase.values()) == profile.peak_bytes
    assert profile.by_phase[profile.peak_phase] == profile.peak_bytes
    assert [h.bytes for h in profile.largest] == sorted(
        (h.bytes for h in profile.largest), reverse=True
    )
    assert sum(profile.by_line.values()) > profile.by_line.get(NOWHERE, 0)


def test_lines_and_modules_name_what_made_a_tensor_in_backward_too():
    torch.manual_seed(0)
    model = nn.Sequential(Block(32, 2, fused=False))
    x = torch.randn(2, 64, 32)
    tracker = MemoryTracker(model=model, inputs=x)
    with tracker:
        model(x).sum().backward()
    wanted = line_of(Block.forward, "softmax(-1) @ v")
    made = [a for a in tracker.allocations() if a.shape == (2, 2, 64, 64) and "softmax" in a.op]
    assert {(a.phase, a.site[1], a.module) for a in made} == {
        ("forward", wanted, "0"),
        ("backward", wanted, "0"),
    }
    gelu = next(a for a in tracker.allocations() if "gelu_backward" in a.op)
    assert gelu.phase == "backward"
    assert gelu.site[1] == line_of(Block.forward, "F.gelu")


def test_parameters_point_to_the_line_that_makes_them():
    model = MLP(width=8, depth=1)
    profile = profile_of(model, (), lambda: model(torch.randn(2, 8)).sum().backward())
    weight = next(h for h in profile.largest if h.name == "layers.0.weight")
    assert weight.location.line == line_of(MLP.__init__, "self.layers")
    assert weight.phase == "before"


def test_phases_of_a_user_step_are_told_apart():
    model = MLP(width=16, depth=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = torch.randn(4, 16), torch.randint(0, 10, (4,))
    criterion = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    tracker = MemoryTracker(model=model, inputs=(x, y))
    with tracker:
        step()
    phases = [phase for _, phase in tracker.phases]
    assert phases == ["forward", "loss", "backward", "optimizer"]
    by_op = {a.op: a.phase for a in tracker.allocations() if a.op}
    assert by_op["aten.addmm.default"] == "forward"
    assert by_op["aten._log_softmax.default"] == "loss"
    assert by_op["aten._log_softmax_backward_data.default"] == "backward"
    assert (
        next(a for a in tracker.allocations() if a.category == "optimizer_state").phase
        == "optimizer"
    )


def test_two_optimizers_and_two_models_in_one_step():
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    both = nn.ModuleDict({"g": first, "d": second})
    one, two = (torch.optim.Adam(m.parameters()) for m in (first, second))
    x = torch.randn(2, 4)

    def step() -> None:
        for optimizer in (one, two):
            optimizer.zero_grad()
            second(first(x)).sum().backward()
            optimizer.step()

    profile = profile_of(both, x, step, repeats=2)
    own = sum(p.nbytes for p in both.parameters())
    assert profile.category_peaks["optimizer_state"] == 2 * own + 4 * 4


def test_activations_are_what_backward_finds_and_temporaries_the_rest():
    weight, x = nn.Parameter(torch.randn(100, 100)), torch.randn(100, 100)
    tracker = MemoryTracker()
    with tracker:
        (
            x @ weight
        ).exp().sum().backward()  # the exponential is saved for backward, the product is not
    backward = next(place for place, phase in tracker.phases if phase == "backward")
    born = next(a.born for a in tracker.allocations() if a.op == "aten.exp.default")
    forward = {
        h.op: h.category for h in build_profile(tracker, largest=-1, moment=born + 1).largest
    }
    found = {h.op: h.category for h in build_profile(tracker, largest=-1, moment=backward).largest}
    assert forward["aten.mm.default"] == "temporaries"
    assert forward["aten.exp.default"] == found["aten.exp.default"] == "activations"
    assert "aten.mm.default" not in found


def test_what_checkpointing_makes_again_is_an_activation():
    torch.manual_seed(0)
    plain, saved = (Transformer(depth=2, checkpointed=c) for c in (False, True))
    ids = torch.randint(0, 100, (2, 32))
    found = [profile_of(m, ids, lambda m=m: m(ids).sum().backward()) for m in (plain, saved)]
    assert found[1].by_phase["loss"] < found[0].by_phase["loss"]
    tracker = MemoryTracker(model=saved, inputs=ids)
    with tracker:
        saved(ids).sum().backward()
    again = [a for a in tracker.allocations() if a.phase == "backward" and "gelu.default" in a.op]
    assert len(again) == 2  # one per block
    assert {a.site[1] for a in again} == {line_of(Block.forward, "F.gelu")}
    assert len(tracker.recomputed) == 2


def test_the_states_that_checkpointing_keeps_are_counted():
    model = Transformer(depth=2, checkpointed=True)
    ids = torch.randint(0, 100, (1, 4))
    before = torch.get_rng_state
    tracker = MemoryTracker(model=model, inputs=ids)
    with tracker:
        model(ids).sum().backward()
    states = [a for a in tracker.allocations() if a.op == "get_rng_state"]
    assert len(states) >= 2
    assert states[0].size == torch.get_rng_state().nbytes
    assert torch.get_rng_state is before


def test_a_storage_that_grows_is_counted_at_its_size():
    tracker = MemoryTracker()
    with tracker:
        x = torch.empty(10)
        x.resize_(1000)
        middle = tracker.live_bytes
        del x
    assert middle == 4000
    assert tracker.live_bytes == 0
    assert sum(change for _, change in tracker.log) == 0


def test_sparse_gradients_are_counted():
    model = nn.Embedding(50, 8, sparse=True)
    ids = torch.tensor([1, 2, 2])
    profile = profile_of(model, ids, lambda: model(ids).sum().backward())
    assert profile.category_peaks["gradients"] >= 3 * 8 * 4


def test_composite_operations_are_seen_part_by_part_in_inference_mode():
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    with torch.inference_mode():
        tracker = MemoryTracker(model=model, inputs=x)
        with tracker:
            model(x)
    assert [a.op for a, change in tracker.log if change > 0] == ["aten.addmm.default"]


def test_a_budget_stops_the_step_where_it_is_exceeded():
    model = MLP(width=64, depth=3)
    x = torch.randn(32, 64)
    start = sum(p.nbytes for p in model.parameters()) + x.nbytes
    tracker = MemoryTracker(model=model, inputs=x, budget=start + 20_000)
    with (
        pytest.raises(
            OutOfBudget, match=r"simulated out of memory: aten\.\w+\.default takes 8192 bytes"
        ) as error,
        tracker,
    ):
        model(x).sum().backward()
    assert isinstance(error.value, torch.OutOfMemoryError)
    moment = build_profile(tracker, moment=tracker.failed_at)
    assert start + 20_000 < moment.peak_bytes <= start + 20_000 + 32 * 64 * 4
    assert moment.peak_phase == "forward"


def test_the_operation_that_raised_is_known():
    tracker = MemoryTracker()
    with pytest.raises(RuntimeError), tracker:
        torch.randn(3) + torch.randn(4)
    assert str(tracker.running) == "aten.add.Tensor"
    assert tracker.failed_at == len(tracker.log) or tracker.failed_at is not None


@pytest.mark.parametrize("fails", [False, True])
def test_nothing_stays_behind(fails):
    model = MLP(width=8, depth=1)
    hooks, optimizers = nn.modules.module, sys.modules[torch.optim.Optimizer.__module__]
    before = (
        len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks),
        len(optimizers._global_optimizer_post_hooks), torch.get_rng_state, gc.isenabled(),
    )  # fmt: skip
    tracker = MemoryTracker(model=model)
    try:
        with tracker:
            model(torch.randn(2, 9 if fails else 8))
    except RuntimeError:
        assert fails
    after = (
        len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks),
        len(optimizers._global_optimizer_post_hooks), torch.get_rng_state, gc.isenabled(),
    )  # fmt: skip
    assert before == after
    assert not any(m._forward_hooks for m in model.modules())
    assert not tracker.addresses()


def test_tensors_of_an_earlier_step_are_told_from_the_model():
    kept = []
    model = nn.Linear(8, 8)
    x = torch.randn(16, 8)

    def step() -> None:
        y = model(x)
        kept.append(y)
        y.sum().backward()

    profile = profile_of(model, x, step, repeats=2)
    assert [h.phase for h in profile.largest if h.shape == (16, 8) and "addmm" in h.op].count(
        "earlier"
    ) == 1


def test_a_step_without_tensors_is_refused():
    tracker = MemoryTracker()
    with tracker:
        pass
    with pytest.raises(ValueError, match="no tensor"):
        build_profile(tracker)


def test_profiles_answer_by_name_and_are_plain():
    import json

    model = MLP(width=8, depth=1)
    profile = profile_of(model, (), lambda: model(torch.randn(2, 8)).sum().backward())
    assert profile.of("total") == profile.peak_bytes
    assert profile.of("backward") == profile.by_phase["backward"]
    assert profile.of("optimizer") == 0
    assert profile.of("parameters") == profile.category_peaks["parameters"]
    with pytest.raises(KeyError, match="no phase and no category"):
        profile.of("everything")
    assert json.loads(json.dumps(profile.to_dict()))["peak_bytes"] == profile.peak_bytes
    assert next(row["category"] for row in profile.rows()) == "parameters"
    assert profile.line_rows(1)[0]["bytes"] == max(profile.by_line.values())


def test_transient_memory_leaves_out_what_model_and_optimizer_own():
    model = nn.Linear(100, 100)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(2, 100)
    tracker = MemoryTracker(model=model, inputs=x)
    with tracker:
        model(x).sum().backward()
        optimizer.step()
    growing = build_profile(tracker, transient=True, largest=-1)
    assert growing.peak_bytes < 100 * 100 * 4 < build_profile(tracker).peak_bytes
    assert {h.category for h in growing.largest} <= {"activations", "temporaries", "inputs"}
