"""Arguments: cut down, drawn anew, kept where they must be; what forward reads elsewhere is left alone."""

from __future__ import annotations

import functions_correct as correct
import functions_wrong as wrong
import pytest
import torch
from torch import nn
from torch.autograd import Function

from pytest_torchcheck import Contract
from pytest_torchcheck.functions.arguments import degenerate, redrawn, reductions, resized
from pytest_torchcheck.functions.binding import make_call
from pytest_torchcheck.functions.engine import check_function
from pytest_torchcheck.functions.preparation import prepare
from pytest_torchcheck.functions.target import Target


class SoftCrossEntropy(Function):
    """Right for targets that sum to one, as its callers give them."""

    @staticmethod
    def forward(ctx, logits, target):
        ctx.save_for_backward(logits, target)
        return -(target * logits.log_softmax(-1)).sum()

    @staticmethod
    def backward(ctx, g):
        logits, target = ctx.saved_tensors
        return g * (logits.softmax(-1) - target), None


class Reversible(Function):
    """Takes a module's parameters as arguments only to return their gradients."""

    @staticmethod
    def forward(ctx, x, block, *parameters):
        with torch.no_grad():
            y = x + block(x)
        ctx.block = block
        ctx.save_for_backward(x, *parameters)
        return y

    @staticmethod
    def backward(ctx, g):
        x, *_ = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = x + ctx.block(x)
        grads = torch.autograd.grad(y, [x, *ctx.block.parameters()], g)
        return grads[0], None, *grads[1:]


class ScaleBy(Function):
    @staticmethod
    def forward(x, factor=2.0):
        return x * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx, g):
        return g * ctx.factor, None


class NotMeantToTrain(Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()


def shapes(call):
    return [tuple(v.shape) for v in call.values if isinstance(v, torch.Tensor)]


def test_equal_sizes_stay_equal_and_distinct_ones_distinct():
    call = make_call(
        correct.Linear.apply, (torch.randn(32, 64), torch.randn(128, 64), torch.randn(128))
    )
    assert shapes(next(reductions(call))) == [(4, 5), (6, 5), (6,)]


def test_integers_that_name_a_size_follow_it():
    call = make_call(lambda x, n: x.view(2, n), (torch.randn(128), 64))
    first = next(reductions(call))
    assert first.values[1] == 64  # 64 is no size of x
    call = make_call(lambda x, n: x[:n], (torch.randn(50, 64), 64))
    assert [c.values[1] for c in reductions(call)][:2] == [5, 64]


def test_indices_stay_inside_what_they_index():
    ids = torch.randint(0, 1000, (7,))
    call = make_call(correct.Gather.apply, (torch.randn(1000, 16), ids))
    table, small = next(reductions(call)).values
    assert int(small.max()) < table.shape[0]


def test_a_smaller_call_that_does_not_run_is_not_used():
    def heads(x):
        return x.view(x.shape[0], 8, 8).sum(1)

    target = prepare(make_call(heads, (torch.randn(16, 64),)), "heads", redraw=False)
    assert isinstance(target, Target)
    assert target.call.values[0].shape[1] == 64
    assert target.call.values[0].shape[0] == 2


def test_new_values_keep_the_range():
    x = torch.rand(40) + 3
    (drawn,) = redrawn(make_call(torch.log, (x,)), 0).values
    assert not torch.equal(drawn, x)
    assert float(drawn.min()) >= float(x.min())
    assert float(drawn.max()) <= float(x.max())
    (spread,) = redrawn(make_call(torch.log, (torch.ones(9),)), 0).values
    assert float(spread.std()) > 0.1
    assert float(spread.min()) > 0


def test_weak_values_are_replaced():
    x = torch.randn(2, 3)
    assert degenerate(make_call(torch.mul, (x, x.clone()))) == "input 0 equals input 1"
    assert degenerate(make_call(torch.sin, (torch.ones(3),))) == "input 0 is constant"
    (finding,) = check_function(wrong.SwappedProduct.apply, (x, x.clone()))  # hidden at x == y
    assert finding.code == "gradcheck-swapped"
    (finding,) = check_function(wrong.NoSum.apply, (torch.ones(3, 4), torch.zeros(4)))
    assert finding.code == "gradcheck-broadcast"


def test_one_size_can_be_changed():
    call = make_call(correct.Linear.apply, (torch.randn(3, 4), torch.randn(5, 4), None))
    assert shapes(resized(call, 4, 3)) == [(3, 3), (5, 3)]


def test_values_that_obey_a_rule_are_not_held_to_others():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 5)

        def forward(self, x, target):
            return SoftCrossEntropy.apply(self.linear(x), target)

    batch = (torch.randn(4, 6), torch.randn(4, 5).softmax(-1)), None
    report = Contract(model=Classifier(), batch=batch, loss="output").check(["gradcheck"])
    assert report.ok
    (finding,) = [f for f in report.findings if f.check == "gradcheck"]
    assert (finding.status, finding.code) == ("suspicious", "gradcheck-domain")


def test_a_real_error_does_not_hide_behind_the_values_as_given():
    class Model(nn.Module):
        def forward(self, x):
            return wrong.OneEntry.apply(x)

    x = torch.randn(20, 30, requires_grad=True)
    report = Contract(model=Model(), batch=((x,), None)).check(["gradcheck"])
    assert [f.code for f in report.causes] == ["gradcheck-entries"] or not report.ok


def test_parameters_that_forward_reads_through_a_module_are_left_out():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.block = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x):
            return Reversible.apply(self.first(x), self.block, *self.block.parameters())

    report = Contract(model=Net(), batch=((torch.randn(3, 4),), None)).check(["gradcheck"])
    assert report.ok, report.causes[0].summary
    block = nn.Linear(4, 4)
    call = make_call(Reversible.apply, (torch.randn(3, 4), block, *block.parameters()))
    assert call.wanted == (0,)


def test_an_adjoint_solver_in_a_model_passes():
    torchdiffeq = pytest.importorskip("torchdiffeq")

    class Field(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, t, y):
            return torch.tanh(self.linear(y))

    class Flow(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.field = nn.Linear(3, 3), Field()

        def forward(self, x):
            times = torch.tensor([0.0, 0.5])
            return torchdiffeq.odeint_adjoint(
                self.field, self.first(x), times, rtol=1e-4, atol=1e-5
            )[-1]

    report = Contract(model=Flow(), batch=((torch.randn(2, 3),), None)).check(
        ["gradcheck", "function-coverage"]
    )
    assert report.ok, report.causes[0].summary


def test_entmax_in_a_model_passes():
    entmax = pytest.importorskip("entmax")

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            x = self.linear(x)
            return entmax.sparsemax(x, dim=-1) + entmax.entmax15(x, dim=-1)

    report = Contract(model=Attention(), batch=((torch.randn(4, 6),), None)).check(["gradcheck"])
    assert report.ok
    assert len([f for f in report.findings if f.status == "passed"]) == 2


def test_keyword_arguments():
    (finding,) = check_function(ScaleBy.apply, {"x": torch.randn(3), "factor": 3.0})
    assert finding.status == "passed"
    with pytest.raises(TypeError, match="nothing"):
        check_function(ScaleBy.apply, {"x": torch.randn(3), "nothing": 1})


def _takes_keywords():
    try:
        ScaleBy.apply(torch.ones(1), factor=1.0)
    except TypeError:
        return False
    return True


@pytest.mark.skipif(not _takes_keywords(), reason="apply takes positional arguments, as in 2.11")
def test_keyword_arguments_in_a_model():
    class Model(nn.Module):
        def forward(self, x):
            return ScaleBy.apply(x, factor=0.5)

    batch = (torch.randn(3, requires_grad=True),), None
    report = Contract(model=Model(), batch=batch).check(["gradcheck"])
    assert report.ok


def test_no_gradient_is_asked_where_none_is_wanted():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            with torch.no_grad():
                codes = NotMeantToTrain.apply(self.linear(x))
            return self.linear(x) + codes

    report = Contract(model=Model(), batch=((torch.randn(2, 3),), None)).check(
        ["gradcheck", "function-coverage"]
    )
    assert report.ok
    assert [f.status for f in report.findings if f.check == "gradcheck"] == ["not-applicable"]
    assert [f.status for f in report.findings if f.check == "function-coverage"] == ["passed"]


def test_what_refuses_to_run_alone_is_said_to():
    class Picky(Function):
        @staticmethod
        def forward(ctx, x):
            raise RuntimeError("not here")

    (finding,) = check_function(Picky.apply, (torch.randn(3),))
    assert (finding.status, finding.code) == ("inconclusive", "forward-raises")
    assert "not here" in finding.summary


def test_what_raises_for_some_values_only_is_a_finding():
    class Picky(Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            if int((g == 0).sum()) == g.numel() - 1:
                raise ValueError("one-hot")
            return g * 2

    (finding,) = check_function(Picky.apply, (torch.randn(4),))
    assert (finding.status, finding.code) == ("violated", "gradcheck-raises")
    assert finding.location.text == 'raise ValueError("one-hot")'


def test_a_defect_of_ours_is_not_blamed_on_the_user(monkeypatch):
    from pytest_torchcheck.functions import engine

    monkeypatch.setattr(
        engine, "check_repeatable", {}.__getitem__
    )  # raises with no frame of the user
    with pytest.raises((KeyError, TypeError)):
        check_function(correct.Exp.apply, (torch.randn(4),))


class Adjoint(torch.autograd.Function):
    """Differentiates what a module computes, by the module's own parameters."""

    @staticmethod
    def forward(ctx, field, x, *parameters):
        ctx.field = field
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return field(x)

    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = ctx.field(x)
        return (None, *torch.autograd.grad(out, (x, *parameters), grad))


class Solves(nn.Module):
    def __init__(self):
        super().__init__()
        self.field, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.head(Adjoint.apply(self.field, x, *self.field.parameters()))


def test_a_backward_that_needs_the_modules_own_parameters_is_not_blamed():
    report = Contract(model=Solves, batch=((torch.randn(2, 3),), None)).check(["gradcheck"])
    (finding,) = report.findings
    assert (finding.status, finding.code) == ("inconclusive", "own-arguments")
