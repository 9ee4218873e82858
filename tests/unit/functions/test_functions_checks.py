"""Contracts find the Functions by themselves, check them, and list them with their lines."""

from __future__ import annotations

import functions_correct as correct
import functions_wrong as wrong
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, promises
from pytest_torchcheck.functions.coverage import rows_of


class Three(nn.Module):
    """Uses three Functions and declares none of them."""

    def __init__(self, last=correct.Linear):
        super().__init__()
        self.activation = correct.Swish.apply
        self.linear = nn.Linear(16, 16)
        self.scale = nn.Parameter(torch.ones(16))
        self.last = last
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.activation(self.linear(x))
        x = correct.MulConstant.apply(x, 2.0)
        return self.head(self.last.apply(x, self.linear.weight, self.scale))


class Quantised(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return correct.Reverse.apply(wrong.RoundThrough.apply(self.linear(x)), 0.3)


def contract(model, **fields):
    batch = (torch.randn(8, 16),), torch.randint(0, 4, (8,))
    return Contract(model=model, batch=batch, loss=F.cross_entropy, **fields)


def found(report, check):
    return [f for f in report.findings if f.check == check]


def test_three_undeclared_functions_are_in_the_table():
    report = contract(Three()).check(["gradcheck", "function-coverage"])
    assert report.ok
    rows = {row.name: row for row in rows_of(report.findings)}
    assert set(rows) == {"Swish", "MulConstant", "Linear"}
    for row in rows.values():
        assert row.file == correct.__file__
        with open(row.file) as file:
            assert file.read().splitlines()[row.line - 1].startswith(f"class {row.name}(Function)")
        assert row.status == "passed"
        assert row.contracts == ("Three",)
    (coverage,) = found(report, "function-coverage")
    assert coverage.status == "passed"
    assert [f.status for f in found(report, "gradcheck")] == ["passed"] * 3


def test_a_wrong_one_is_found_without_being_declared():
    report = contract(Three(wrong.HalfWeight)).check(["gradcheck"])
    (finding,) = report.causes
    assert finding.code == "gradcheck-scale"
    assert finding.location.text.endswith("# BUG")
    applied = next(c for c in finding.culprits if c.kind == "call")
    assert applied.location.text.startswith("return self.head(self.last.apply(")
    assert finding.check == "gradcheck"
    assert finding.reproduce


def test_a_wrong_function_that_is_also_declared_is_reported_once():
    x = torch.randn(3, 4), torch.randn(5, 4), torch.randn(5)
    report = contract(
        Three(wrong.HalfWeight), functions={"half": (wrong.HalfWeight.apply, x)}
    ).check(["gradcheck"])
    assert len(report.causes) == 1


@pytest.mark.filterwarnings(
    "ignore:.*should not be instantiated:DeprecationWarning"
)  # dynamo does it
def test_functions_of_a_compiled_model_must_compile():
    class Waves(nn.Module):
        def __init__(self, function):
            super().__init__()
            self.linear, self.function = nn.Linear(16, 4), function

        def forward(self, x):
            return self.function.apply(self.linear(x))

    eager = contract(Waves(wrong.WrongWhenCompiled)).check(["gradcheck"])
    assert eager.ok
    compiled = contract(torch.compile(Waves(wrong.WrongWhenCompiled), backend="eager")).check(
        ["gradcheck"]
    )
    assert [f.code for f in compiled.causes] == ["compiled"]


def test_functions_in_the_loss_are_found():
    model = nn.Linear(16, 4)
    report = Contract(
        model=model,
        batch=((torch.randn(8, 16),), torch.randn(8, 4)),
        loss=lambda output, target: correct.MSE.apply(output, target),
    ).check(["gradcheck", "function-coverage"])
    assert [row.name for row in rows_of(report.findings)] == ["MSE"]
    assert report.ok


def test_a_model_without_functions_is_not_concerned():
    report = contract(nn.Linear(16, 4)).check(["gradcheck", "custom-ops", "function-coverage"])
    assert {f.status for f in report.findings} == {"not-applicable"}


def test_functions_alone_make_a_contract():
    x = torch.randn(3)
    report = Contract(
        functions={
            "exp": (correct.Exp.apply, (x,)),
            "square": (wrong.Square.apply, (x,)),
            "m": (nn.Linear(3, 4), (x,)),
        }
    ).check(["gradcheck"])
    by_name = {f.summary.split(":")[0].split(".")[0]: f.status for f in report.findings}
    assert by_name == {"Exp": "passed", "Square": "violated", "Linear": "passed"}


def test_second_derivatives_where_they_are_promised():
    x = torch.randn(2, 3)
    twice = (promises.TwiceDifferentiable(),)
    right = Contract(functions={"exp": (correct.Exp.apply, (x,))}, promises=twice).check(
        ["double-backward"]
    )
    assert [f.status for f in right.findings] == ["passed"]
    refused = Contract(functions={"once": (wrong.Once.apply, (x,))}, promises=twice).check(
        ["double-backward"]
    )
    assert [f.code for f in refused.causes] == ["double-backward-refused"]
    silent = Contract(functions={"f": (wrong.SavesIntermediate.apply, (x,))}, promises=twice).check(
        ["double-backward"]
    )
    assert [f.code for f in silent.causes] == ["double-backward-wrong"]
    wrong_first = Contract(functions={"f": (wrong.Square.apply, (x,))}, promises=twice).check()
    assert [f.check for f in wrong_first.causes] == ["gradcheck"]


def test_estimators_are_declared_not_excused():
    batch = (torch.randn(8, 4),), None
    bare = Contract(model=Quantised(), batch=batch).check(["gradcheck"])
    told = {f.code for f in bare.with_status("suspicious")}
    assert told == {"gradcheck-surrogate", "gradcheck-scale"}
    rounding = promises.StraightThrough(
        functions="RoundThrough", reason="quantisation", of=lambda x: x
    )
    reversal = promises.StraightThrough(
        functions="Reverse", reason="domain adversary", of=lambda x, a: -a * x
    )
    declared = Contract(model=Quantised(), batch=batch, promises=(rounding, reversal)).check(
        ["gradcheck"]
    )
    assert {f.status for f in declared.findings} == {"passed"}
    other = promises.StraightThrough(
        functions="Reverse", reason="domain adversary", of=lambda x, a: a * x
    )
    held = Contract(model=Quantised(), batch=batch, promises=(rounding, other)).check(["gradcheck"])
    assert [f.code for f in held.causes] == ["gradcheck-sign"]


def test_a_declaration_that_is_not_needed_fails():
    x = torch.randn(3)
    for of in (None, lambda x: x.exp()):
        promise = promises.StraightThrough(functions="Exp", reason="none", of=of)
        report = Contract(functions={"exp": (correct.Exp.apply, (x,))}, promises=(promise,)).check(
            ["gradcheck"]
        )
        assert [f.code for f in report.causes] == ["surrogate-stale"]


def test_a_declared_name_that_is_not_applied_is_noticed():
    promise = promises.StraightThrough(functions="Nowhere", reason="gone")
    report = contract(nn.Linear(16, 4), promises=(promise,)).check(["gradcheck"])
    assert [(f.status, f.code) for f in report.findings if f.code == "surrogate-unknown"] == [
        ("suspicious", "surrogate-unknown")
    ]


def test_the_whole_model_where_it_promises_to_be_differentiable():
    promise = (promises.Differentiable(),)
    right = contract(Three(), promises=promise).check(["gradcheck-module"])
    assert [f.status for f in right.findings] == ["passed"]
    bad = contract(Three(wrong.HalfWeight), promises=promise).check(["gradcheck-module"])
    assert [f.code for f in bad.causes] == ["gradcheck-scale"]


def test_operators_of_the_model_are_found():
    from test_functions_operators import sine, twice

    class Waves(nn.Module):
        def __init__(self, operator):
            super().__init__()
            self.linear, self.operator = nn.Linear(16, 4), operator

        def forward(self, x):
            return self.operator(self.linear(x))

    right = contract(Waves(sine)).check(["custom-ops", "function-coverage"])
    assert right.ok
    assert [(row.name, row.kind) for row in rows_of(right.findings)] == [
        ("tcheck_right::sine", "operator")
    ]
    bad = contract(Waves(twice)).check(["custom-ops"])
    assert [f.code for f in bad.causes] == ["gradcheck-scale"]
    assert bad.causes[0].location.text == "return 2 * g * x.cos()"


@pytest.mark.parametrize("seed", [0, 3])
def test_nothing_of_the_user_changes(seed):
    model = Three()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = torch.randn(2, 3)
    generator = torch.Generator().manual_seed(5)
    made = contract(
        model,
        functions={
            "drop": (correct.GeneratorDropout.apply, (x, generator)),
            "exp": (correct.InplaceExp.apply, (x,)),
        },
    )
    kept, state, mine = x.clone(), torch.get_rng_state(), generator.get_state()
    made.check(["gradcheck", "function-coverage"], seed=seed)
    assert torch.equal(x, kept)
    assert torch.equal(generator.get_state(), mine)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())


def test_findings_are_plain_data():
    import json

    report = contract(Three(wrong.HalfWeight)).check(["gradcheck", "function-coverage"])
    json.dumps([f.to_dict() for f in report.findings])


class KeepsGate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.gate = torch.sigmoid(x)
        ctx.half = torch.full((), 0.5, dtype=x.dtype)
        ctx.save_for_backward(x)
        return ctx.half * x * ctx.gate

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        gate, half = ctx.gate, ctx.half
        return grad * half * (gate + x * gate * (1 - gate))


def test_an_intermediate_on_ctx_is_named_where_backward_reads_it():
    made = Contract(
        functions={"f": (KeepsGate.apply, (torch.randn(2, 3),))},
        promises=(promises.TwiceDifferentiable(),),
    )
    (found,) = made.check(["double-backward"]).causes
    assert found.code == "double-backward-wrong"
    assert "reads ctx.gate, an intermediate" in found.cause  # the constant factor is none
    assert found.location.text == "gate, half = ctx.gate, ctx.half"
    assert "ctx.gate = torch.sigmoid(x)" in {c.location.text for c in found.culprits if c.location}


class SavesGate(KeepsGate):
    @staticmethod
    def forward(ctx, x):
        gate, unused = torch.sigmoid(x), x + 1
        if x.dim() > 5:
            ctx.save_for_backward(x, x)
        ctx.save_for_backward(x, gate, unused, x > 0)
        return x * gate

    @staticmethod
    def backward(ctx, grad):
        x, gate, *_ = ctx.saved_tensors
        return grad * (gate + x * gate * (1 - gate))


class DetachesGate(SavesGate):
    @staticmethod
    def backward(ctx, grad):
        x, *_ = ctx.saved_tensors
        gate = torch.sigmoid(x.detach())
        return grad * (gate + x * gate * (1 - gate))


def second(function):
    made = Contract(
        functions={"f": (function.apply, (torch.randn(2, 3),))},
        promises=(promises.TwiceDifferentiable(),),
    )
    (found,) = made.check(["double-backward"]).causes
    assert found.code == "double-backward-wrong"
    return found


def test_an_intermediate_that_was_saved_is_named_where_it_is_saved():
    found = second(SavesGate)
    assert "uses gate, an intermediate" in found.cause
    assert found.location.text == "ctx.save_for_backward(x, gate, unused, x > 0)"
    named = [c.name for c in found.culprits if c.detail == "an intermediate, saved here"]
    assert named == ["gate"]


def test_an_intermediate_that_backward_does_not_use_is_not_named():
    assert "no longer connected" in second(DetachesGate).cause
