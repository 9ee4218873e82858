from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck.probes.gradient.provenance import find_cut
from pytest_torchcheck.probes.numbers.activations import watch_activations
from pytest_torchcheck.probes.numbers.finiteness import find_nonfinite
from pytest_torchcheck.probes.randomness import find_draws
from pytest_torchcheck.probes.recorded.divergence import record
from pytest_torchcheck.probes.recorded.watch import Watch, name_of, tensors_in

LINEAR = nn.Linear(4, 4)


TOOL = """
class Ops(Watch):
    def __init__(self, module=None):
        super().__init__(module)
        self.seen = []

    def after(self, func, args, kwargs, result, token):
        if any(True for _ in tensors_in(result)):
            self.seen.append(self.op(name_of(func)))


def run(watch):
    with watch:
        torch.ones(2)
"""
NAMES = {"Watch": Watch, "tensors_in": tensors_in, "name_of": name_of, "torch": torch}
exec(compile(TOOL, "<tool>", "exec"), NAMES)  # not the user's code, as the package itself
Ops, run_tool = NAMES["Ops"], NAMES["run"]


def test_each_call_with_its_line_and_module():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 4), nn.GELU())

        def forward(self, x):
            h = self.body(x)  # CALL
            return h.softmax(-1).data  # OWN

    model = Net()
    with Ops(model) as watch:
        F.relu(model(torch.ones(2, 4)))
    assert [op.name for op in watch.seen] == [
        "torch.ones", "F.linear", "F.gelu", "Tensor.softmax", "Tensor.data", "F.relu",
    ]  # fmt: skip
    _, linear, gelu, softmax, data, relu = watch.seen
    assert (linear.module, linear.module_class) == ("body.0", "Linear")
    assert (gelu.module, gelu.location.text) == ("body.1", "h = self.body(x)  # CALL")
    assert (softmax.module, softmax.module_class) == ("", "Net")
    assert softmax.location.text.endswith("# OWN")
    assert data.location.function.endswith("Net.forward")
    assert (relu.module, relu.module_class) == ("", "")
    assert [op.index for op in watch.seen] == list(range(6))
    assert str(linear) == "F.linear in body.0 (Linear)"


def test_nothing_stays_behind_even_after_an_error():
    engine = torch.autograd._engine_run_backward
    model = nn.Sequential(nn.Linear(4, 2))
    watch = Ops(model)
    with pytest.raises(RuntimeError, match="mat1"), watch:
        model(torch.ones(2, 5))
    assert torch.autograd._engine_run_backward is engine
    assert watch.scopes == []
    count = len(watch.seen)
    model(torch.ones(2, 4))
    assert len(watch.seen) == count
    assert watch._until is None


@pytest.mark.parametrize(
    "backward",
    [
        lambda y: y.backward(),
        lambda y: torch.autograd.backward([y]),
        lambda y: torch.autograd.grad(y, [LINEAR.weight]),
    ],
    ids=["Tensor.backward", "autograd.backward", "autograd.grad"],
)
def test_python_that_runs_in_the_backward_is_seen(backward):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g.mul(2)  # HERE

    with Ops() as watch:
        backward(Double.apply(LINEAR(torch.ones(4))).sum())
    LINEAR.zero_grad()
    (op,) = [op for op in watch.seen if op.backward]
    assert op.name == "Tensor.mul"
    assert op.location.text.endswith("# HERE")


def test_lines_outside_of_the_watched_block_are_not_the_users():
    watch = Ops()
    run_tool(watch)
    assert [(op.name, op.location) for op in watch.seen] == [("torch.ones", None)]


def test_the_result_under_a_watch_is_the_plain_one():
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x = torch.randn(2, 5, 8)
    torch.manual_seed(1)
    plain = model(x)
    torch.manual_seed(1)
    with Ops(model):
        watched = model(x)
    assert torch.equal(plain, watched)


def test_tensors_in_nests():
    a, b, c = torch.ones(3).unbind()
    nest = {"x": [a, (b, None)], "y": "text", "z": SimpleNamespace(t=c)}
    assert [id(t) for t in tensors_in(nest)] == [id(a), id(b)]


def vmapped():
    def loss(weights, x):
        return torch.func.functional_call(LINEAR, weights, (x,)).square().sum()

    weights = dict(LINEAR.named_parameters())
    each = torch.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, torch.randn(3, 4))
    return each["weight"].sum() + LINEAR(torch.ones(4)).sum()


def sparse():
    return LINEAR(torch.sparse.mm(torch.eye(4).to_sparse(), LINEAR.weight)).sum()


def nested():
    rows = [torch.randn(2, 4), torch.randn(3, 4)]
    return LINEAR(torch.nested.nested_tensor(rows, layout=torch.jagged)).values().sum()


def spectrum():
    return torch.fft.fft(LINEAR(torch.ones(3, 4))).abs().sum()


def packed():
    rnn = nn.GRU(4, 4)
    rows = nn.utils.rnn.pack_padded_sequence(LINEAR(torch.randn(5, 2, 4)), [5, 3])
    return nn.utils.rnn.pad_packed_sequence(rnn(rows)[0])[0].sum()


def penalty():
    x = torch.randn(3, 4, requires_grad=True)
    (slope,) = torch.autograd.grad(LINEAR(x).tanh().sum(), x, create_graph=True)
    return slope.square().sum()


def mixed():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return LINEAR(torch.randn(3, 4)).float().sum()


@pytest.mark.parametrize("run", [vmapped, sparse, nested, spectrum, packed, penalty, mixed])
def test_probes_bear_every_kind_of_tensor(run):
    assert find_cut(run, LINEAR, dict(LINEAR.named_parameters())) == {}
    assert find_nonfinite(run, LINEAR) is None
    assert record(run, LINEAR).steps
    rows = watch_activations(run, LINEAR)
    assert all(row.module_class == "Linear" for row in rows)
    assert bool(rows) == (run is not nested)
    assert all(draw.kind == "draw" for draw in find_draws(run, LINEAR))
