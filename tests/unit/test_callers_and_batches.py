"""What the caller has switched on, how specs and real batches meet, and what only our own runs provoke."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Floats
from pytest_torchcheck.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_torchcheck.findings import Finding, Report


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Sigmoid(), nn.Linear(8, 2))


def _batch(size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return torch.randn(size, 4, generator=generator), torch.randn(size, 2, generator=generator)


def _wrong(report: Report) -> list[tuple[str, str]]:
    bad = ("violated", "error")
    return [(f.check, f"{f.code}: {f.summary}") for f in report.findings if f.status in bad]


@contextlib.contextmanager
def _no_gradients() -> Iterator[None]:
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_grad_enabled(before)


@pytest.mark.parametrize("instance", [False, True], ids=["factory", "instance"])
@pytest.mark.parametrize(
    "block",
    [torch.no_grad, _no_gradients, torch.inference_mode, lambda: torch.autocast("cpu")],
    ids=["no-grad", "grad-off", "inference", "autocast"],
)
def test_the_blocks_of_the_caller_change_no_verdict(block: Any, instance: bool) -> None:
    contract = Contract(model=_net() if instance else _net, batch=_batch(), loss=F.mse_loss)
    checks = ["backward", "gradients-exist", "weights-update", "loss-sound", "dtype-conversion"]
    with block():
        modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        report = contract.check(checks)
        assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == modes
    assert _wrong(report) == []
    assert {f.status for f in report.findings} == {"passed"}


def test_a_model_that_turns_gradients_off_is_still_found_in_such_a_block() -> None:
    class Off(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

        @torch.no_grad()
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    with torch.no_grad():
        report = Contract(model=Off, batch=_batch(), loss=F.mse_loss).check("backward")
    assert _wrong(report) != []


@pytest.fixture
def _float64() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("_float64")
@pytest.mark.parametrize("bounded", [False, True], ids=["shape", "range"])
def test_drawn_inputs_have_the_default_dtype(bounded: bool) -> None:
    spec = Floats("B 4", low=0, high=1) if bounded else "B 4"
    sizes = {"B": (2, 6)}
    contract = Contract(model=_net, inputs=spec, targets="B 2", sizes=sizes, loss=F.mse_loss)
    assert contract.source is not None
    assert contract.source.base(0).tensors()["x"].dtype == torch.float64
    assert _wrong(contract.check(["backward", "batch-sizes", "layout-invariance"])) == []


def test_drawn_inputs_have_the_dtype_of_the_model() -> None:
    def build() -> nn.Module:
        return _net().double()

    def contract(spec: Any) -> Contract:
        return Contract(
            model=build, inputs=spec, targets="B 2", sizes={"B": (2, 6)}, loss=F.mse_loss
        )

    assert _wrong(contract("B 4").check(["backward", "batch-sizes"])) == []
    narrow = contract(Floats("B 4", dtype="float32")).check("backward")
    assert [code.partition(":")[0] for _, code in _wrong(narrow)] == ["dtype-pair"]


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = _net()

    def forward(self, image: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.net(image * torch.sigmoid(gate))


@pytest.mark.parametrize("named", [("image", "gate"), ("gate", "image")])
def test_named_specs_meet_a_tuple_of_data(named: tuple[str, str]) -> None:
    x, y = _batch()
    shapes = {"image": "B 4", "gate": "B 1"}
    specs = {name: shapes[name] for name in named}
    data = (x, x[:, :1].clone())
    contract = Contract(model=Mixer, inputs=specs, targets="B 2", batch=(data, y), loss=F.mse_loss)
    assert _wrong(contract.check()) == []
    assert contract.source is not None
    assert list(contract.source.base(0).tensors()) == ["image", "gate", "y"]


def test_a_tuple_of_specs_meets_named_data() -> None:
    x, y = _batch()
    data = {"image": x, "gate": x[:, :1].clone()}
    contract = Contract(
        model=Mixer, inputs=("B 4", "B 1"), targets="B 2", batch=(data, y), loss=F.mse_loss
    )
    assert _wrong(contract.check(["backward", "batch-sizes"])) == []


class Folded(nn.Module):
    """Reads its input as so many rows."""

    def __init__(self, rows: int | None) -> None:
        super().__init__()
        self.head = nn.Linear(12, 2)
        self.rows = rows


class Spelled(Folded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.reshape(6, 12))


class Taken(Folded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.reshape(x.shape[0], 12))


class Kept(Folded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.reshape(self.rows, 12))


class Grouped(Folded):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        groups = x.reshape(-1, 6, 12)
        return self.head(groups - groups.mean(1, keepdim=True)).flatten(0, 1)


def _size_of(model: type[Folded]) -> Finding:
    x = torch.randn(6, 3, 4)
    contract = Contract(model=lambda: model(6), batch=(x, torch.randn(6, 2)), loss=F.mse_loss)
    return contract.check("batch-sizes").findings[0]


def test_a_batch_size_that_is_spelled_out_is_named() -> None:
    found = _size_of(Spelled)
    assert (found.status, found.code) == ("violated", "size-crash")
    assert found.location is not None
    assert "x.reshape(6, 12)" in found.location.text
    assert found.summary.startswith("the batch size is hard-coded in the model: 6 on line")
    assert _size_of(Taken).status == "passed"


@pytest.mark.parametrize("model", [Kept, Grouped])
def test_a_size_that_may_be_meant_is_inconclusive_with_its_error(model: type[Folded]) -> None:
    found = _size_of(model)
    assert found.status == "inconclusive"
    assert "6 samples, but not with 5" in found.summary


class Covariance(nn.Module):
    """Needs a positive variance, which a step that is too long takes away."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Linear(4, 2)
        self.variance = nn.Parameter(torch.full((2,), 0.02))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.mean(x) @ torch.linalg.cholesky(torch.diag(self.variance))


def test_an_error_that_only_our_own_training_provokes_is_inconclusive() -> None:
    found = Contract(model=Covariance, batch=_batch(), loss=F.mse_loss).check("overfit").findings
    assert [f.status for f in found] == ["inconclusive"]
    assert "which the contract does not declare" in found[0].summary

    class Raises(Covariance):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.mean(x) @ torch.linalg.cholesky(-torch.diag(self.variance))

    wrong = Contract(model=Raises, batch=_batch(), loss=F.mse_loss).check(["backward"])
    assert _wrong(wrong) != []


def test_a_batch_that_is_first_drawn_in_float64_has_the_models_own_dtype() -> None:
    made = Contract(model=lambda: nn.Linear(4, 2), inputs="B 4", sizes={"B": (2, 4)})
    subject = Subject(made)
    subject.batch()
    with subject.in_double():
        inside = subject.batch(1)
    assert {t.dtype for t in inside.tensors().values()} == {torch.float32}
