"""What a run applies is recorded, however it is called; what packages define is listed."""

from __future__ import annotations

import cProfile
import sys

import functions_correct as correct
import pytest
import torch
from torch import nn

from pytest_torchcheck.functions.coverage import NEVER, rows_of, table, unchecked
from pytest_torchcheck.functions.defined import defined_in
from pytest_torchcheck.functions.discovery import record_functions, recording


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.activation = correct.Swish.apply  # bound before anything is recorded
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        x = self.activation(self.linear(x))
        with torch.no_grad():
            correct.Exp.apply(x)
        return correct.MulConstant.apply(x, 2.0)


def test_every_application_is_seen():
    model = Net()
    calls = record_functions(lambda: model(torch.randn(3, 4)))
    assert [call.name for call in calls] == ["Swish", "Exp", "MulConstant"]
    first = calls[0]
    assert first.function is correct.Swish
    assert first.shapes == {0: (3, 4)}
    assert first.dtypes == {0: "float32"}
    assert first.requires == (0,)
    assert first.location.text == "x = self.activation(self.linear(x))"
    assert first.defined.text == "class Swish(Function):"
    assert first.backward.text == "def backward(ctx, g):"
    assert calls[2].args[1] == 2.0


def test_recorded_values_are_copies():
    x = torch.randn(3)
    (call,) = record_functions(lambda: correct.InplaceExp.apply(x.clone()))
    assert torch.equal(call.args[0], x)
    assert not call.args[0].requires_grad


def test_torch_itself_is_left_out():
    from torch.utils.checkpoint import checkpoint

    linear = nn.Linear(3, 3)

    def run():
        x = torch.randn(2, 3, requires_grad=True)
        checkpoint(lambda t: correct.Exp.apply(linear(t)), x, use_reentrant=True).sum().backward()

    assert {call.name for call in record_functions(run)} == {"Exp"}


def test_equal_calls_are_kept_once_and_their_needs_are_united():
    x = torch.randn(3)

    def run():
        correct.Exp.apply(x)
        correct.Exp.apply(x)
        correct.Exp.apply(x.clone().requires_grad_())
        correct.Exp.apply(torch.randn(2))

    calls = record_functions(run)
    assert [call.whole for call in calls] == [True, False, True]
    assert [call.requires for call in calls] == [(), (0,), ()]


def test_very_large_arguments_are_cut():
    x = torch.zeros(3000, 2000)
    (call,) = record_functions(lambda: correct.Exp.apply(x))
    assert call.shapes == {0: (3000, 2000)}
    assert call.args[0].shape == (64, 64)
    assert call.corner == 64


def test_create_graph_is_noticed():
    def run(create_graph):
        x = torch.randn(3, requires_grad=True)
        torch.autograd.grad(correct.Exp.apply(x).sum(), x, create_graph=create_graph)

    assert [call.twice for call in record_functions(lambda: run(True))] == [True]
    assert [call.twice for call in record_functions(lambda: run(False))] == [False]


def test_autocast_is_noticed():
    def run():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            correct.Exp.apply(torch.randn(3))

    assert [call.autocast for call in record_functions(run)] == [True]


def test_inside_vmap_only_the_call_is_known():
    calls = record_functions(lambda: torch.vmap(correct.Cube.apply)(torch.randn(2, 3)))
    assert calls[0].name == "Cube"
    assert not calls[0].whole


def test_a_running_profiler_is_put_back():
    seen = []

    def hook(frame, event, arg):
        seen.append(event)

    sys.setprofile(hook)
    try:
        record_functions(lambda: correct.Exp.apply(torch.randn(2)))
        assert sys.getprofile() is hook
    finally:
        sys.setprofile(None)
    assert "call" in seen
    profile = cProfile.Profile()
    profile.enable()
    calls = record_functions(lambda: correct.Exp.apply(torch.randn(2)))
    profile.disable()
    assert len(calls) == 1


def test_an_error_in_the_run_leaves_nothing_behind():
    def run():
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        record_functions(run)
    assert sys.getprofile() is None


def test_packages_are_listed_with_lines():
    found = {d.name: d for d in defined_in(["functions_correct"])}
    assert {"Swish", "Linear", "Cube"} <= set(found)
    assert found["Swish"].location.text == "class Swish(Function):"
    assert found["Swish"].kind == "function"
    assert defined_in(["no_such_package_at_all"]) == []


def test_what_no_contract_applies_is_never_checked():
    rows = table([], packages=["functions_correct"])
    assert all(row.status == NEVER for row in rows)
    finding = next(f for f in unchecked(rows) if f.culprits[0].name == "Swish")
    assert finding.status == "suspicious"
    assert finding.code == "function-unchecked"
    assert finding.location.line == next(r.line for r in rows if r.name == "Swish")
    again = rows_of([finding])
    assert [(r.name, r.line, r.status) for r in again] == [("Swish", finding.location.line, NEVER)]


@pytest.mark.filterwarnings(  # dynamo does both, the second in torch 2.11
    "ignore:.*should not be instantiated:DeprecationWarning",
    "ignore:The .grad attribute:UserWarning",
)
def test_compiled_models_are_seen():
    model = torch.compile(Net(), backend="eager")
    model(torch.randn(3, 4))
    calls = record_functions(lambda: model(torch.randn(3, 4)))
    assert [call.name for call in calls] == ["Swish", "Exp", "MulConstant"]


def test_what_ran_before_an_error_is_kept():
    kept = []

    def run():
        with recording() as calls:
            kept.append(calls)
            correct.Exp.apply(torch.randn(2))
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run()
    assert [call.name for call in kept[0]] == ["Exp"]
