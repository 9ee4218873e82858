"""Autocast in bfloat16, gradient scalers and deterministic algorithms, as they are on a CPU."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels, TensorSpec, promises
from pytest_torchcheck.measure import parity
from pytest_torchcheck.subject import Subject


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.norm(self.body(x)))))


def contract(model=Net, **fields) -> Contract:
    return Contract(
        model=model, targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": 8},
        devices=("cpu",), **{"inputs": "B 6", **fields},
    )  # fmt: skip


def told(name: str, declared: Contract):
    [finding] = [f for f in declared.check([name]).findings if f.check == name]
    return finding


# -- autocast ----------------------------------------------------------------------------------------

AUTOCASTS = (promises.Autocasts("bfloat16"),)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(6, 2, 16, batch_first=True)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.layer(x[:, None].expand(-1, 5, -1) * torch.arange(1.0, 6)[:, None]))[:, 0]  # fmt: skip


class Conv(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.GELU(), nn.Conv1d(8, 8, 3), nn.ReLU()
        )  # fmt: skip
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layers(x[:, None]).mean(-1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(1, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.cell(x[:, :, None])[0][:, -1])


@pytest.mark.parametrize("model", [Net, Attention, Conv, Recurrent])
def test_correct_models_hold_under_autocast(model) -> None:
    finding = told("autocast", contract(model, promises=AUTOCASTS))
    assert finding.status == "passed", finding
    assert "within what rounding explains" in finding.summary


class Unscaled(Net):
    """Forgets the scale where the fast path runs."""

    def forward(self, x):
        hidden = self.body(x)
        if hidden.dtype == torch.bfloat16:
            return self.head(hidden)
        return self.head(hidden / 16**0.5)


def test_a_branch_that_only_low_precision_takes_is_found() -> None:
    finding = told("autocast", contract(Unscaled, promises=AUTOCASTS))
    assert (finding.status, finding.code) == ("violated", "autocast-differs")
    assert finding.location is not None
    assert "torch.bfloat16" in finding.location.text


class Overflows(Net):
    def forward(self, x):
        hidden = self.body(x)
        if hidden.dtype == torch.bfloat16:
            hidden = (hidden.half() * 1e5).float() / 1e5
        return self.head(hidden)


def test_what_leaves_the_range_is_found() -> None:
    finding = told("autocast", contract(Overflows, promises=AUTOCASTS))
    assert (finding.status, finding.code) == ("violated", "autocast-overflow")


class Mixes(Net):
    def forward(self, x):
        return self.body(x) @ self.head.weight.t()


def test_a_product_by_hand_is_cast_too() -> None:
    assert told("autocast", contract(Mixes, promises=AUTOCASTS)).status == "passed"


class Indexed(Net):
    def forward(self, x):
        out = torch.zeros(len(x), 16)
        out[torch.arange(len(x))] = self.body(x)
        return self.head(out)


class Product(nn.Module):
    """Has a layer in full precision, and a product by hand that autocast casts."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(6, 16) / 3), nn.Linear(16, 3)

    def forward(self, x):
        h = torch.tanh(x @ self.weight)
        with torch.autocast(x.device.type, enabled=False):
            return self.last(h.to(self.last.weight.dtype))


def test_a_model_that_autocast_does_not_reach_is_found() -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

        def forward(self, x):
            with torch.autocast(x.device.type, enabled=False):
                return self.layers(x)

    finding = told("autocast", contract(Whole, promises=AUTOCASTS))
    assert (finding.status, finding.code) == ("violated", "autocast-unused")
    assert "enabled=False" in finding.location.text


def test_a_model_that_autocast_reaches_in_part_passes() -> None:
    assert told("autocast", contract(Product, promises=AUTOCASTS)).status == "passed"


def test_a_dtype_that_does_not_fit_is_explained() -> None:
    finding = told("autocast", contract(Indexed, promises=AUTOCASTS))
    assert finding.status == "violated"
    assert "dtype" in finding.code
    assert finding.location is not None


def test_float16_on_a_cpu_is_no_verdict() -> None:
    finding = told("autocast", contract(promises=(promises.Autocasts("float16"),)))
    assert finding.status == "not-applicable"


class MixesInBackward(torch.autograd.Function):
    """Its backward multiplies the gradient, in low precision, by a weight of full precision."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        return grad @ weight.T, x.T.to(grad.dtype) @ grad


def test_backward_runs_outside_of_autocast_as_in_training() -> None:
    class Mixes(Net):
        def forward(self, x):
            return MixesInBackward.apply(super().forward(x), self.turn)

        def __init__(self) -> None:
            super().__init__()
            self.turn = nn.Parameter(torch.eye(3))

    finding = told("autocast", contract(Mixes, promises=AUTOCASTS))
    assert finding.status == "violated"
    assert "backward" in finding.summary
    assert finding.location is not None
    assert "grad @ weight.T" in finding.location.text


def test_only_low_precisions_can_be_promised() -> None:
    with pytest.raises(promises.PromiseError, match="float32"):
        promises.Autocasts("float32")


# -- scalers -----------------------------------------------------------------------------------------


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


SCALER = torch.amp.GradScaler("cpu", init_scale=1024.0)


def _backward(scaler, model, optimizer, inputs, targets):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(*inputs), targets)
    scaler.scale(loss).backward()


def scaled(model, optimizer, inputs, targets):
    _backward(SCALER, model, optimizer, inputs, targets)
    SCALER.step(optimizer)
    SCALER.update()


def clips(model, optimizer, inputs, targets):
    _backward(SCALER, model, optimizer, inputs, targets)
    SCALER.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    SCALER.step(optimizer)
    SCALER.update()


def never_updates(model, optimizer, inputs, targets):
    _backward(SCALER, model, optimizer, inputs, targets)
    SCALER.step(optimizer)
    SCALER._per_optimizer_states.clear()


def made_anew(model, optimizer, inputs, targets):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    _backward(scaler, model, optimizer, inputs, targets)
    scaler.step(optimizer)
    scaler.update()


def by_hand(model, optimizer, inputs, targets):
    _backward(SCALER, model, optimizer, inputs, targets)
    for parameter in model.parameters():
        parameter.grad /= SCALER.get_scale()
    optimizer.step()
    SCALER.update(new_scale=512.0)


@pytest.mark.parametrize("step", [scaled, clips])
def test_a_scaler_that_is_used_well_passes_and_is_put_back(step) -> None:
    SCALER.scale(
        torch.ones(())
    )  # from its first use on its factor is a tensor, which is written in place
    before = SCALER.state_dict()
    finding = told("grad-scaler", contract(train_step=step, optimizer=sgd))
    assert finding.status == "passed", finding
    assert "from 1024 to 512" in finding.summary
    assert SCALER.state_dict() == before


@pytest.mark.parametrize(
    ("step", "code"),
    [(never_updates, "scaler-not-updated"), (made_anew, "scaler-anew"), (by_hand, "overflow-applied")],
)  # fmt: skip
def test_a_scaler_that_is_used_badly_is_found(step, code) -> None:
    finding = told("grad-scaler", contract(train_step=step, optimizer=sgd))
    assert (finding.status, finding.code) == ("violated", code), finding
    assert finding.location is not None
    assert finding.location.file == __file__


def test_a_step_without_a_scaler_is_not_concerned() -> None:
    def step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        F.cross_entropy(model(*inputs), targets).backward()
        optimizer.step()

    assert told("grad-scaler", contract(train_step=step, optimizer=sgd)).status == "not-applicable"


def test_a_disabled_scaler_is_not_concerned() -> None:
    disabled = torch.amp.GradScaler("cpu", enabled=False)

    def step(model, optimizer, inputs, targets):
        _backward(disabled, model, optimizer, inputs, targets)
        disabled.step(optimizer)
        disabled.update()

    finding = told("grad-scaler", contract(train_step=step, optimizer=sgd))
    assert finding.status == "not-applicable"


# -- determinism -------------------------------------------------------------------------------------

DETERMINISTIC = (promises.Deterministic(),)


class Puts(Net):
    def forward(self, x):
        table = torch.zeros(16).put_(torch.tensor([0, 0, 1]), torch.ones(3))
        return self.head(self.body(x) + table)


class Reverses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return torch.empty_like(g).put_(torch.arange(g.numel()), g)


class PutsInBackward(Net):
    def forward(self, x):
        return self.head(Reverses.apply(self.body(x)))


class Unwritten(Net):
    def forward(self, x):
        made = torch.empty(len(x), 16)
        made[:, :15] = 0.0
        return self.head(self.body(x) + torch.nan_to_num(made * 0.0, nan=7.0))


class ReadsEmpty(Net):
    def forward(self, x):
        made = torch.empty(len(x), 16)
        made[:, :15] = 0.0
        return self.head(self.body(x) + made.clamp(-1, 1) * 0.0)


class Counting(Net):
    calls = 0

    def forward(self, x):
        Counting.calls += 1
        return super().forward(x) + 1e-3 * (Counting.calls % 7)


def test_a_deterministic_model_passes_and_the_flag_is_put_back() -> None:
    assert told("deterministic-algorithms", contract(promises=DETERMINISTIC)).status == "passed"
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(("model", "text"), [(Puts, "put_("), (PutsInBackward, "Reverses.apply")])
def test_an_operation_without_a_fixed_order_is_named(model, text) -> None:
    finding = told("deterministic-algorithms", contract(model, promises=DETERMINISTIC))
    assert (finding.status, finding.code) == ("violated", "nondeterministic-op")
    assert finding.culprits[0].name == "put_"
    assert finding.location is not None
    assert text in finding.location.text or "put_(" in finding.location.text


def test_memory_that_nobody_wrote_is_found() -> None:
    finding = told("deterministic-algorithms", contract(ReadsEmpty, promises=DETERMINISTIC))
    assert (finding.status, finding.code) == ("violated", "memory-unwritten")
    assert "torch.empty" in finding.location.text


def test_what_differs_in_spite_of_it_is_found() -> None:
    finding = told("deterministic-algorithms", contract(Counting, promises=DETERMINISTIC))
    assert (finding.status, finding.code) == ("violated", "not-deterministic")


# -- autocast and float64 -----------------------------------------------------------------------------


class Wide(nn.Module):
    """Computes one layer in float64, the other in what autocast chooses."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(6, 16).double(), nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.relu(self.body(x.double())).to(self.head.weight.dtype))


def doubled(**fields) -> Contract:
    return contract(
        lambda: Net().double(),
        dtypes=("float64",),
        promises=AUTOCASTS,
        **{"inputs": TensorSpec("B 6", dtype="float64"), **fields},
    )


def test_autocast_leaves_a_model_in_float64_as_it_is() -> None:
    finding = told("autocast", doubled())
    assert finding.status == "not-applicable"
    assert "float64" in finding.summary


def test_buffers_in_float64_are_those_of_the_pass_not_what_is_put_back() -> None:
    subject = Subject(doubled(), dtype="float64")
    batch = subject.batch()
    with subject.pristine() as model:
        found = parity.run(subject, model, batch)
        mean = model.norm.running_mean.clone()
    assert torch.equal(found.buffer["norm.running_mean"], mean)
    assert not torch.equal(subject.model.norm.running_mean, mean)


@pytest.mark.parametrize("model", [Net, Wide])
def test_autocast_is_judged_where_any_layer_is_cast(model) -> None:
    assert told("autocast", contract(model, promises=AUTOCASTS)).status == "passed"
