"""What a GPU would refuse is found on the CPU: tensors left behind, made there or handed to NumPy; legal uses pass."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from pytest_torchcheck import Contract, Finding
from pytest_torchcheck.probes.placement import Pretend
from pytest_torchcheck.runs.portability import portability
from pytest_torchcheck.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


X = torch.randn(5, 8)
IDS = torch.randint(0, 10, (5, 7))
SEQUENCE = torch.randn(4, 6, 8)
ELSEWHERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Net(nn.Module):
    """One layer; what ``step`` computes with its output is under test."""

    def __init__(self, step: Callable[[Any, torch.Tensor], torch.Tensor] | None = None) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(8, 8), step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y if self.step is None else self.step(self, y)


class Positions(nn.Module):
    def __init__(self, *, device: bool) -> None:
        super().__init__()
        self.token, self.position, self.device = nn.Embedding(10, 8), nn.Embedding(12, 8), device

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        if self.device:
            places = torch.arange(ids.shape[1], device=ids.device)
        else:
            places = torch.arange(ids.shape[1])
        return self.token(ids) + self.position(places)


class Grid(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer, self.kind = nn.Linear(8, 8), kind
        grid = torch.linspace(0, 1, 8)
        if kind == "buffer":
            self.register_buffer("grid", grid)
        else:
            self.grid = grid

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        grid = self.grid.to(x) if self.kind == "moved" else self.grid
        return self.layer(x) + grid


class Cached(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(8, 8), torch.ones(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.table.device != x.device:
            self.table = self.table.to(x.device)
        return self.layer(x) * self.table


class ByHand(nn.Module):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table = torch.ones(8).to(device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.table


class Mover(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(8, 8), torch.ones(8)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        self.table = fn(self.table)
        return super()._apply(fn, recurse)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.table


class Lengths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 4, batch_first=True)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.rnn(packed)[1][0][-1]


class StateLeftBehind(Lengths):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        state = torch.zeros(1, len(x), 4)
        return self.rnn(packed, (state, state))[1][0][-1]


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * torch.full((8,), 2.0)  # stays on the CPU


def _mask(model: Any, y: torch.Tensor) -> torch.Tensor:
    hidden = torch.triu(torch.ones(8, 8), 1).bool()
    return (y.unsqueeze(1) + y.unsqueeze(2)).masked_fill(hidden, 0.0).sum(1)


def _window(model: Any, y: torch.Tensor) -> torch.Tensor:
    window = torch.from_numpy(np.hanning(8)).float()
    return y * window


def _experts(model: Any, y: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(y)
    chosen = (y.sum(-1) > 0).nonzero().squeeze(-1)
    out[chosen] = y[chosen] * 2
    return out


def find(model: Any, check: str, *inputs: torch.Tensor, **fields: Any) -> list[Finding]:
    contract = Contract(model=model, batch=(inputs or (X,), None), **fields)
    return list(contract.check([check]).findings)


def only(found: list[Finding], code: str) -> Finding:
    assert [f.code for f in found] == [code], "\n\n".join(map(str, found))
    return found[0]


def test_a_position_table_indexed_by_a_cpu_range() -> None:
    found = only(find(lambda: Positions(device=False), "device-portability", IDS), "cpu-factory")
    assert found.status == "violated"
    assert found.location is not None
    assert found.location.text == "places = torch.arange(ids.shape[1])"
    assert "torch.arange" in found.culprits[0].detail
    assert all((found.summary, found.observed, found.cause, found.because, found.fix))
    assert find(lambda: Positions(device=True), "device-portability", IDS)[0].status == "passed"


def _noisy(where: torch.device | None) -> Any:
    def step(model: nn.Module, y: torch.Tensor) -> torch.Tensor:
        low = torch.zeros(y.shape[-1], device=where or y.device)
        return y * torch.distributions.Laplace(low, 1.0).rsample(y.shape[:1]) + (
            torch.distributions.LogNormal(y, y.exp()).rsample()
        )

    return lambda: Net(step)


def test_noise_of_a_distribution_is_where_its_parameters_are() -> None:
    assert find(_noisy(None), "device-portability")[0].status == "passed"
    found = only(find(_noisy(torch.device("cpu")), "device-portability"), "device-fixed")
    assert found.location is not None
    assert "torch.zeros" in found.location.text


def test_rejection_sampling_of_torch_waits_for_no_device_of_the_model() -> None:
    def step(model: nn.Module, y: torch.Tensor) -> torch.Tensor:
        return y + torch.distributions.VonMises(y, y.exp()).sample()

    assert find(lambda: Net(step), "device-portability")[0].status == "passed"


@pytest.mark.parametrize("kind", ["plain", "moved", "buffer"])
def test_a_constant_in_an_attribute(kind: str) -> None:
    found = find(lambda: Grid(kind), "device-portability")
    if kind == "plain":
        violation = only(found, "cpu-tensor")
        assert violation.status == "violated"
        assert violation.culprits[0].name == "grid"
        assert violation.location is not None
        assert violation.location.text == "self.grid = grid"
        assert 'register_buffer("grid"' in violation.fix
    else:
        assert found[0].status == "passed"


def test_the_model_is_left_where_it_was() -> None:
    model = Grid("plain")
    find(model, "device-portability")
    assert {p.device.type for p in model.parameters()} == {"cpu"}
    assert model.grid.device.type == "cpu"


@pytest.mark.parametrize(
    ("step", "code"),
    [
        (_mask, "cpu-factory"),
        (_window, "cpu-tensor"),
        (lambda m, y: y + torch.zeros(8, device="cpu"), "cpu-literal"),
        (lambda m, y: torch.as_tensor(np.sort(y.detach().numpy())).to(y), "numpy-on-device"),
        (lambda m, y: torch.cat([y, torch.randn(5, 8)]), "cpu-factory"),
        (lambda m, y: torch.ones(9, 8)[torch.argmax(y, 1)], "cpu-factory"),
    ],
    ids=["mask", "numpy", "literal", "to-numpy", "cat", "table"],
)
def test_cpu_tensors_in_the_forward(step: Any, code: str) -> None:
    assert only(find(lambda: Net(step), "device-portability"), code).status == "violated"


class Saves(torch.autograd.Function):
    """Makes a tensor in its backward where a saved one is."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (saved,) = ctx.saved_tensors
        return grad * (saved + torch.zeros(8, device=saved.device))


def test_a_tensor_that_is_made_where_a_saved_one_is_passes() -> None:
    found = find(lambda: Net(lambda m, y: Saves.apply(y)), "device-portability")
    assert [f.status for f in found] == ["passed"]


@pytest.mark.parametrize("is_reused", [False, True])
def test_cpu_tensors_in_the_backward_of_a_function(
    is_reused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's gradient may stand where a tensor stood that is gone, and counts as one of the GPU all the same."""
    looked = Pretend._is_gradient

    def at_an_address_of_before(self: Pretend, tensor: torch.Tensor) -> bool:
        if is_reused and id(tensor) not in self._stayed and not self._is_moved(tensor):
            self._moved[id(tensor)] = weakref.ref(torch.ones(1))  # dead at once
        return looked(self, tensor)

    monkeypatch.setattr(Pretend, "_is_gradient", at_an_address_of_before)
    found = find(lambda: Net(lambda m, y: Scale.apply(y)), "device-portability")
    assert only(found, "cpu-factory").status == "violated"


@pytest.mark.parametrize(
    "step",
    [
        lambda m, y: y * torch.tensor(0.5),
        lambda m, y: y[torch.arange(3)],
        lambda m, y: y[torch.tensor([True, False, True, True, False])],
        lambda m, y: y + torch.zeros(8).to(y.device),
        lambda m, y: y + torch.zeros(8).cuda() if y.is_cuda else y,
        lambda m, y: y + torch.zeros(8).type_as(y),
        lambda m, y: torch.as_tensor(np.sort(y.detach().cpu().numpy())).to(y.device),
        lambda m, y: y.cpu().sort().values.to(y.device),
        lambda m, y: y + torch.zeros(8, device=m.layer.weight.device),
        lambda m, y: y + y.new_ones(8) + torch.ones_like(y),
        lambda m, y: F.dropout(y, 0.5) + torch.randn(y.shape, device=y.device),
        lambda m, y: y.masked_fill(torch.ones(8, dtype=torch.bool, device=y.device), 0.0),
        lambda m, y: y + y.detach().as_subclass(torch.Tensor),
        _experts,
    ],
    ids=[
        "scalar",
        "index",
        "mask",
        "to",
        "cuda",
        "type-as",
        "numpy of a copy",
        "a copy and back",
        "weight",
        "new",
        "random",
        "fill",
        "class",
        "experts",
    ],
)
def test_legal_uses_of_the_cpu(step: Any) -> None:
    found = find(lambda: Net(step), "device-portability")
    assert [f.status for f in found] == ["passed"], "\n\n".join(map(str, found))


@pytest.mark.parametrize("build", [Cached, Mover])
def test_models_that_move_their_tensors_themselves(build: Callable[[], nn.Module]) -> None:
    assert find(build, "device-portability")[0].status == "passed"


def test_tensors_placed_by_hand_are_suspicious() -> None:
    assert only(find(ByHand, "device-portability"), "tensor-placed-by-hand").status == "suspicious"
    step = lambda m, y: y + torch.zeros(8).to(ELSEWHERE)  # noqa: E731
    assert (
        only(find(lambda: Net(step), "device-portability"), "device-fixed").status == "suspicious"
    )


def test_noise_of_a_generator_that_stays_on_the_cpu() -> None:
    """Which generator draws, and so where, is chosen on purpose; no ``device=`` would move what it draws."""
    own = torch.Generator()
    step = lambda m, y: y + torch.rand(8, generator=own)  # noqa: E731
    found = only(find(lambda: Net(step), "device-portability"), "device-fixed")
    assert found.status == "suspicious"
    assert "torch.Generator stays" in found.cause
    assert "device=x" not in found.fix
    moved = lambda m, y: y + torch.rand(8, generator=own).to(y.device)  # noqa: E731
    assert find(lambda: Net(moved), "device-portability")[0].status == "passed"


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.home = next(self.layer.parameters()).device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + torch.ones(8, device=self.home)


def test_a_device_that_is_remembered_from_the_constructor() -> None:
    found = only(find(Remembers, "device-portability"), "device-fixed")
    assert found.status == "violated"
    assert "self.home" in {c.name for c in found.culprits}


class Converted(nn.Module):
    """Says nothing of devices: a conversion of the dtype, and a comment on the device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.table = torch.arange(8).to(torch.float32)  # on the right device later

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) + self.table


def test_a_conversion_of_the_dtype_is_no_placement() -> None:
    assert only(find(Converted, "device-portability"), "cpu-tensor").status == "violated"


def test_lengths_that_go_to_the_cpu_pass() -> None:
    found = find(Lengths, "device-portability", SEQUENCE, torch.tensor([6, 2, 5, 3]))
    assert [f.status for f in found] == ["passed"], "\n\n".join(map(str, found))


def test_a_state_on_the_cpu_is_found_beside_a_packed_sequence() -> None:
    found = find(StateLeftBehind, "device-portability", SEQUENCE, torch.tensor([6, 2, 5, 3]))
    assert [f.status for f in found] == ["violated"], "\n\n".join(map(str, found))
    assert found[0].location is not None
    assert "torch.zeros(1, len(x), 4)" in found[0].location.text


def test_a_value_read_on_the_host_is_named_with_its_line() -> None:
    step = lambda m, y: y / 10 if y.abs().max().item() > 1e3 else y  # noqa: E731
    found = only(find(lambda: Net(step), "device-portability"), "host-sync")
    assert (found.status, found.culprits[0].name) == ("suspicious", ".item()")
    assert found.location is not None


def test_a_mask_as_an_index_is_noted_and_no_mistake() -> None:
    [found] = find(lambda: Net(lambda m, y: y + y[y > 0].sum()), "device-portability")
    assert found.status == "passed", found
    assert any("a mask as an index" in sync for sync in found.evidence["syncs"])


def test_a_model_declared_for_the_cpu_need_not_move() -> None:
    assert (
        find(lambda: Grid("plain"), "device-portability", devices=["cpu"])[0].status
        == "not-applicable"
    )


def test_meta_is_the_second_witness_where_devices_are_declared() -> None:
    contract = Contract(model=lambda: Grid("plain"), batch=((X,), None), devices=["cpu", "meta"])
    subject = Subject(contract)
    seen = portability(subject)
    assert seen.meta.kind == "mixed"
    assert seen.meta.explanation is not None
    assert [m.stray.name for m in seen.pretended.mixtures if m.stray] == ["grid"]
    assert next(subject.model.parameters()).device.type == "cpu"
    subject.close()


def test_code_that_needs_a_real_gpu_decides_nothing() -> None:
    def step(model: Any, y: torch.Tensor) -> torch.Tensor:
        if y.is_cuda:
            raise RuntimeError("no kernel image is available")
        return y.relu() if bool(y.sum() > 0) else y

    assert only(find(lambda: Net(step), "device-portability"), "not-run").status == "inconclusive"


def test_the_crash_of_a_broken_model_is_left_to_its_own_check() -> None:
    found = find(lambda: Net(lambda m, y: y @ y), "device-portability")
    assert found[0].status == "violated"
    assert found[0].code not in ("cpu-tensor", "cpu-factory")


class Fixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        noise = torch.zeros(x.shape)
        noise[:, 0] = 1.0
        return self.second(noise) + self.second(self.first(x))


def test_a_default_dtype_in_the_forward() -> None:
    undeclared = find(Fixed, "dtype-conversion")[0]
    assert undeclared.status in ("suspicious", "inconclusive")
    declared = find(Fixed, "dtype-conversion", dtypes=["float32", "float64"])[0]
    assert declared.status == "violated"
    assert (
        find(lambda: Net(), "dtype-conversion", dtypes=["float32", "float64"])[0].status == "passed"
    )


def test_low_precision_is_left_to_its_own_check() -> None:
    assert find(lambda: Net(), "dtype-conversion", dtypes=["float16"])[0].status == "not-applicable"


def test_complex_parameters_convert_to_the_same_width() -> None:
    class Spectral(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(5, dtype=torch.cfloat))
            self.layer = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(torch.fft.irfft(torch.fft.rfft(x) * self.weight, n=8))

    found = find(Spectral, "dtype-conversion")
    assert found[0].status == "passed", str(found[0])
