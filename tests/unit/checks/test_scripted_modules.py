"""Scripted and traced models: they are judged as any other, and what compiled code hides is not told as known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Labels
from pytest_torchcheck.state import isolated

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

GIVEN: dict[str, Any] = {
    "inputs": "B 8",
    "targets": Labels("B", classes=3),
    "loss": F.cross_entropy,
}
CHECKS = ("gradients-exist", "weights-update", "eval-determinism", "state-dict-roundtrip")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.h, self.drop = nn.Linear(8, 16), nn.Linear(16, 3), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.h(self.drop(torch.relu(self.a(x))))


class Unused(Net):
    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


class Detached(Net):
    def forward(self, x: Tensor) -> Tensor:
        return self.h(torch.relu(self.a(x).detach()))


class Branch(Net):
    def __init__(self) -> None:
        super().__init__()
        self.rare = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.a(x))
        out = self.h(h)
        if bool(x.sum() > 1e6):
            out = out + self.rare(h)
        return out


class Around(nn.Module):
    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.n, self.o = part, nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.o(self.n(x))


def traced(model: nn.Module) -> Any:
    return torch.jit.trace(model, torch.randn(4, 8), check_trace=False)


def found(model: Callable[[], nn.Module]) -> Any:
    report = Contract(model=model, **GIVEN).check(CHECKS)
    assert not [f for f in report.findings if "failed with" in f.summary]
    return {f.check: f for f in report.findings}


@pytest.mark.parametrize(
    "model",
    [
        lambda: torch.jit.script(Net()),
        lambda: Around(torch.jit.script(Net())),
        lambda: traced(Net().eval()),
        lambda: Around(traced(Net().eval())),
    ],
    ids=["script", "part-script", "trace", "part-trace"],
)
def test_compiled_models_pass(model: Any) -> None:
    assert {f.status for f in found(model).values()} == {"passed"}


@pytest.mark.parametrize(
    "model",
    [lambda: torch.jit.script(Unused()), lambda: Around(torch.jit.script(Unused()))],
    ids=["script", "part-script"],
)
def test_what_no_compiled_method_reads_is_dead(model: Any) -> None:
    finding = found(model)["gradients-exist"]
    assert (finding.status, finding.code) == ("violated", "grad-none")
    assert "does not read it" in finding.because
    assert "unused.weight" in finding.summary


@pytest.mark.parametrize(
    "model",
    [
        lambda: torch.jit.script(Detached()),
        lambda: Around(torch.jit.script(Detached())),
        lambda: traced(Detached()),
        lambda: Around(traced(Detached())),
    ],
    ids=["script", "part-script", "trace", "part-trace"],
)
def test_a_detach_in_compiled_code_is_found(model: Any) -> None:
    finding = found(model)["gradients-exist"]
    assert (finding.status, finding.code) == ("violated", "grad-none")
    assert finding.cause == "detach() cuts the graph"
    assert "drop .detach()" in finding.fix
    assert ".detach()" in finding.location.text


def test_a_compiled_branch_that_was_not_taken_is_no_proof() -> None:
    finding = found(lambda: torch.jit.script(Branch()))["gradients-exist"]
    assert (finding.status, finding.code) == ("suspicious", "grad-none")
    assert "rare.weight" in finding.summary
    assert "reads it" in finding.because


def test_random_numbers_of_a_trace_are_told() -> None:
    finding = found(lambda: traced(Net()))["eval-determinism"]
    assert (finding.status, finding.code) == ("suspicious", "random-in-eval")


def test_torch_refuses_again_after_a_run() -> None:
    script = torch.jit.script(Net())
    with isolated():
        assert script.get_submodule("a") is script.a
    with pytest.raises(RuntimeError, match="not supported on ScriptModules"):
        script.get_submodule("a")
    with pytest.raises(AttributeError):
        _ = type(script).forward
