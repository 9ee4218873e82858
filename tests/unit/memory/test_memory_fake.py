from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F
from memory_zoo import MLP, ZOO, Recurrent
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from pytest_torchcheck import Contract, DeclarationError, Labels, Tokens
from pytest_torchcheck.measure.memory import measure_memory
from pytest_torchcheck.measure.steps import StepFailed, subject_for, track
from pytest_torchcheck.probes.memory.fake import Unmeasurable, as_fake, build, fake_mode


def contract_of(name: str) -> Contract:
    entry = ZOO[name]
    torch.manual_seed(0)
    return Contract(
        model=entry.build, batch=entry.batch(), loss=entry.loss, optimizer=entry.optimizer
    )


@pytest.mark.parametrize("name", [name for name, entry in ZOO.items() if entry.fake])
def test_fake_equals_real_to_the_byte(name):
    contract = contract_of(name)
    real, fake = (measure_memory(contract, fake=fake) for fake in (False, True))
    assert fake.fake
    assert not real.fake
    assert (fake.peak_bytes, fake.by_phase) == (real.peak_bytes, real.by_phase)
    assert (fake.by_category, fake.category_peaks) == (real.by_category, real.category_peaks)
    assert (fake.by_module, fake.by_line) == (real.by_module, real.by_line)


@pytest.mark.parametrize("name", ["mlp", "conv", "lstm", "transformer-sdpa"])
def test_fake_equals_real_in_half_precision_and_in_inference(name):
    contract = contract_of(name)
    half = [
        measure_memory(contract, fake=fake, dtype="bfloat16").peak_bytes for fake in (False, True)
    ]
    quiet = [
        measure_memory(contract, fake=fake, step="inference").peak_bytes for fake in (False, True)
    ]
    assert half[0] == half[1]
    assert quiet[0] == quiet[1]
    full = measure_memory(contract).peak_bytes
    assert half[0] < full
    assert quiet[0] < full


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.GRU, {}),
        (nn.RNN, {}),
        (nn.LSTM, {"bidirectional": True}),
        (nn.LSTM, {"num_layers": 2, "dropout": 0.1}),
    ],
    ids=["gru", "rnn", "both-ways", "two-layers"],
)
def test_recurrent_layers_are_the_same_on_fake_tensors(kind, options):
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = kind(8, 16, batch_first=True, **options)

        def forward(self, x):
            return self.rnn(x)[0]

    contract = Contract(model=Wrapped, batch=(torch.randn(3, 5, 8), None))
    assert measure_memory(contract).peak_bytes == measure_memory(contract, fake=False).peak_bytes


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4, dtype=torch.complex64))

    def forward(self, x):
        return torch.fft.fft(x.to(torch.complex64)).matmul(self.weight).abs()


class Mapped(nn.Linear):
    def forward(self, x):
        return torch.func.vmap(super().forward)(x)


class Autocast(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return super().forward(x).float()


class Reentrant(nn.Linear):
    def forward(self, x):
        from torch.utils.checkpoint import checkpoint

        return checkpoint(super().forward, x.requires_grad_(), use_reentrant=True)


class Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x > 0)


class WithFunction(nn.Linear):
    def forward(self, x):
        return Clamp.apply(super().forward(x))


@pytest.mark.parametrize(
    "build_model",
    [
        Complex,
        lambda: Mapped(8, 4),
        lambda: Autocast(8, 4),
        lambda: Reentrant(8, 4),
        lambda: WithFunction(8, 4),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 4)),
        lambda: nn.Sequential(nn.LazyLinear(6), nn.Dropout(0.1), nn.LazyLinear(4)),
    ],
    ids=["complex", "vmap", "autocast", "reentrant", "function", "parametrised", "lazy"],
)
@pytest.mark.parametrize("step", ["training", "inference"])
def test_fake_equals_real_for_unusual_code(build_model, step):
    contract = Contract(
        model=build_model,
        inputs="B 8",
        targets=Labels("B", classes=4),
        loss=F.cross_entropy,
        sizes={"B": (2, 9)},
    )
    real, fake = (measure_memory(contract, fake=f, step=step, at={"B": 7}) for f in (False, True))
    assert fake.peak_bytes == real.peak_bytes
    assert fake.by_category == real.by_category


def test_sparse_gradients_are_unmeasurable_without_values():
    contract = Contract(
        model=lambda: nn.Embedding(50, 8, sparse=True), batch=(torch.tensor([[1, 2], [3, 3]]), None)
    )
    with pytest.raises(Unmeasurable, match="returns a sparse_coo tensor"):
        measure_memory(contract)
    assert measure_memory(contract, fake=False).peak_bytes > 50 * 8 * 4


def test_a_failed_fake_run_leaves_the_subject_real():
    contract = Contract(
        model=lambda: nn.Embedding(50, 8, sparse=True), batch=(torch.tensor([[1, 2], [3, 3]]), None)
    )
    subject = subject_for(contract)
    with pytest.raises(StepFailed):
        track(subject, fake=True)
    assert type(subject.model.weight) is nn.Parameter
    assert not isinstance(subject.model.weight.data, FakeTensor)
    subject.close()


def test_a_module_is_measured_without_being_changed():
    model = MLP(width=16, depth=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    contract = Contract(
        model=model, batch=(torch.randn(4, 16), torch.randint(0, 10, (4,))), loss=F.cross_entropy
    )
    real, fake = (measure_memory(contract, fake=fake) for fake in (False, True))
    assert real.peak_bytes == fake.peak_bytes
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_a_model_on_meta_is_measured():
    with torch.device("meta"):
        model = MLP(width=64, depth=2)
    contract = Contract(
        model=model, batch=(torch.randn(4, 64), torch.randint(0, 10, (4,))), loss=F.cross_entropy
    )
    real = Contract(
        model=lambda: MLP(width=64, depth=2),
        batch=(torch.randn(4, 64), torch.randint(0, 10, (4,))),
        loss=F.cross_entropy,
    )
    assert measure_memory(contract).peak_bytes == measure_memory(real, fake=False).peak_bytes
    assert all(p.device.type == "meta" for p in model.parameters())


def test_tied_parameters_stay_tied():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.b.weight = self.a.weight
            self.plain = torch.ones(4)

    with fake_mode() as mode:
        copied = as_fake(Tied(), mode)
        assert copied.a.weight is copied.b.weight
        assert isinstance(copied.plain, FakeTensor)


def test_sizes_beyond_the_machine_cost_nothing():
    contract = Contract(
        model=lambda: nn.Linear(1000, 1000),
        inputs="B 1000",
        sizes={"B": (1, 8)},
    )
    profile = measure_memory(contract, at={"B": 10**7})
    assert profile.peak_bytes > 8 * 10**10
    assert profile.sizes["B"] == 10**7


def test_data_dependent_code_is_unmeasurable_with_operation_and_line():
    with pytest.raises(Unmeasurable, match="depends on the values of a tensor") as error:
        measure_memory(contract_of("moe"))
    assert error.value.op == "aten.nonzero.default"
    assert "nonzero" in error.value.location.text


def test_item_is_unmeasurable_with_its_line():
    class Item(nn.Linear):
        def forward(self, x):
            return super().forward(x) * (2 if x.max().item() > 0 else 1)

    contract = Contract(model=lambda: Item(4, 4), inputs="B 4")
    with pytest.raises(Unmeasurable) as error:
        measure_memory(contract)
    assert error.value.op == "aten._local_scalar_dense.default"
    assert "x.max().item()" in error.value.location.text


def test_a_custom_operation_without_a_fake_kernel_is_unmeasurable_and_with_one_is_not():
    @torch.library.custom_op("torchcheck_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    class Custom(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x):
            return twice(x) * self.scale

    contract = Contract(model=Custom, batch=(torch.randn(3, 4), None))
    with pytest.raises(Unmeasurable, match="has no fake kernel") as error:
        measure_memory(contract)
    assert "twice" in error.value.op
    assert "twice(x)" in error.value.location.text

    twice.register_fake(torch.empty_like)
    assert measure_memory(contract).peak_bytes == measure_memory(contract, fake=False).peak_bytes


def test_a_model_that_asks_for_cuda_is_refused_before_autograd_could_abort():
    if torch.cuda.is_available():
        pytest.skip("a device is there")

    class OnCuda(nn.Linear):
        def forward(self, x):
            return super().forward(x) + torch.zeros(4, device="cuda")

    with pytest.raises(Unmeasurable, match="asks for a cuda device"):
        measure_memory(Contract(model=lambda: OnCuda(4, 4), inputs="B 4"))


CACHE: dict[int, torch.Tensor] = {}


@functools.lru_cache
def table(length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float32)


class Caching(nn.Module):
    memo: list[torch.Tensor] = []  # noqa: RUF012 - a class attribute that is written to is the point

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6)

    def forward(self, x):
        length = x.shape[1]
        if length not in CACHE:
            CACHE[length] = torch.ones(length)
        if not self.memo:
            self.memo.append(torch.ones(length))
        return self.body(x) + table(length) + CACHE[length] + self.memo[0]


def test_no_fake_tensor_stays_in_a_cache():
    contract = Contract(model=Caching, inputs="B 6")
    assert measure_memory(contract).fake
    assert CACHE == {}
    assert Caching.memo == []
    assert type(table(6)) is torch.Tensor
    assert measure_memory(contract, fake=False).peak_bytes > 0


def test_what_a_train_step_carries_is_put_back():
    carried = {"hidden": None}

    def train_step(model, optimizer, inputs, targets):
        optimizer.zero_grad()
        out = model(*inputs)
        carried["hidden"] = out.detach()
        loss = F.cross_entropy(out, targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    contract = Contract(
        model=lambda: nn.Linear(4, 3),
        batch=(torch.randn(5, 4), torch.randint(0, 3, (5,))),
        loss=F.cross_entropy,
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
        train_step=train_step,
    )
    fake = measure_memory(contract)
    assert carried == {"hidden": None}
    assert fake.peak_bytes == measure_memory(contract, fake=False).peak_bytes


def test_a_real_build_stands_in_where_initialisation_looks_at_values():
    class Looks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6, 6))
            if self.weight.sum().item() == 0:
                raise AssertionError("unreachable")

        def forward(self, x):
            return x @ self.weight

    with fake_mode() as mode:
        model = build(Looks, mode)
        assert isinstance(model.weight, FakeTensor)


def test_a_long_lstm_is_predicted_from_short_ones():
    contract = Contract(
        model=Recurrent,
        inputs=Tokens("B T", vocab=100),
        targets=Labels("B", classes=10),
        sizes={"B": (2, 2), "T": (4, 512)},
        loss=F.cross_entropy,
    )
    short = [
        measure_memory(contract, at={"T": n}).category_peaks["activations"] for n in (256, 512)
    ]
    assert 1.8 < short[1] / short[0] < 2.2


def test_symbols_and_dtypes_are_checked():
    contract = Contract(model=lambda: nn.Linear(4, 4), inputs="B 4")
    with pytest.raises(DeclarationError, match="no input has the symbol 'T'; symbols are: B"):
        measure_memory(contract, at={"T": 3})
    with pytest.raises(DeclarationError, match=r"at\['B'\]: must be an int"):
        measure_memory(contract, at={"B": 2.5})
    with pytest.raises(DeclarationError, match="dtype: unknown name 'int8'"):
        measure_memory(contract, dtype="int8")


def test_the_real_targets_of_another_size_are_not_invented():
    contract = Contract(
        model=lambda: nn.Linear(4, 6),
        batch=(torch.randn(2, 3, 4), torch.randint(0, 6, (6,))),
        loss=lambda output, targets: F.cross_entropy(output.flatten(0, 1), targets),
    )
    with pytest.raises(Unmeasurable, match="shape of the real targets is not known"):
        measure_memory(contract, at={"B": 5})


def test_the_users_own_error_is_raised_as_it_is_in_a_real_run():
    class Broken(nn.Linear):
        def forward(self, x):
            return super().forward(x) @ torch.ones(7, 7)

    contract = Contract(model=lambda: Broken(4, 4), inputs="B 4")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        measure_memory(contract, fake=False)
    with pytest.raises(Unmeasurable, match="it cannot run on fake tensors") as error:
        measure_memory(contract)
    assert "aten.mm" in error.value.op
    assert "torch.ones(7, 7)" in error.value.location.text


def test_the_allocators_own_peak_can_be_asked_for():
    contract = contract_of("conv")
    profile = measure_memory(contract, fake=False, allocator=True)
    assert profile.allocator_peak_bytes >= profile.peak_bytes
    assert profile.workspace_bytes == profile.allocator_peak_bytes - profile.peak_bytes
    assert measure_memory(contract).workspace_bytes is None


def test_the_state_of_the_process_is_as_before():
    contract = contract_of("mlp")
    subject = subject_for(contract)
    state = torch.get_rng_state()
    track(subject, fake=True)
    track(subject, fake=False)
    subject.close()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()
