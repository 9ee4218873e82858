"""Parameters and outputs that torch itself can do little with: nothing fails on them, and what is not known is said."""

from __future__ import annotations

from typing import Any, Self

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.checks import initialisation

_DRAW = torch.Generator().manual_seed(8)
X, Y = torch.randn(6, 4, generator=_DRAW), torch.tensor([0, 1, 2, 2, 1, 0])


def report(model: Any, loss: Any = F.cross_entropy, targets: Any = Y) -> Any:
    return Contract(model=model, batch=((X,), targets), loss=loss).check()


def wrong(found: Any) -> list[str]:
    return [str(f) for f in found.findings if f.status in ("violated", "error")]


class Spread(nn.Module):
    """A sparse matrix that is trained: the checks' own optimizer cannot update it, SGD one by coordinates."""

    def __init__(self, layout: torch.layout) -> None:
        super().__init__()
        ring = torch.eye(4) + torch.eye(4).roll(1, 0)
        self.ring = nn.Parameter(ring.to_sparse(layout=layout))
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.ring @ x.T).T)


@pytest.mark.filterwarnings("ignore:Sparse CS")
@pytest.mark.parametrize("layout", [torch.sparse_csr, torch.sparse_coo])
def test_a_parameter_that_the_own_optimizer_does_not_update(layout: torch.layout) -> None:
    found = report(lambda: Spread(layout))
    assert wrong(found) == []
    (update,) = [f for f in found.findings if f.check == "weights-update"]
    assert update.status == "inconclusive"
    assert "ring is stored as" in update.summary
    assert "the checks' own optimizer (Adam) does not update" in update.summary


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_a_model_of_which_nothing_can_be_trained() -> None:
    def build() -> nn.Module:
        net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).eval()
        return torch.ao.quantization.quantize_dynamic(net, {nn.Linear})

    assert wrong(report(build)) == []


class Parts(nn.Module):
    """Cuts rows into parts at fixed places, whatever the number of rows."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nested.nested_tensor_from_jagged(self.net(x), torch.tensor([0, 2, 6]))


class Ragged(nn.Module):
    """Gives the words of each text as parts of one nested tensor, which each call makes."""

    def __init__(self, *, jagged: bool, bent: bool = True) -> None:
        super().__init__()
        self.net, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.jagged, self.bent = jagged, bent

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.net(x)
        y = self.out(h.tanh() if self.bent else h)
        layout = torch.jagged if self.jagged else torch.strided
        return torch.nested.as_nested_tensor([y[:2], y[2:]], layout=layout)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("jagged", [True, False])
def test_outputs_that_each_call_makes_as_parts_of_other_lengths(jagged: bool) -> None:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(torch.cat(output.unbind()), target)

    for bent in (True, False):
        found = report(lambda bent=bent: Ragged(jagged=jagged, bent=bent), loss)
        assert wrong(found) == []
        if jagged:
            assert [f for f in found.findings if f.code == "not-measurable"] == []
        affine = [f for f in found.findings if f.code == "model-affine"]
        assert len(affine) == (not bent)


class Partly(nn.Module):
    """Holds a layer on meta that no forward reads, unless it is told to."""

    def __init__(self, *, read: bool = False) -> None:
        super().__init__()
        self.net, self.out = nn.Linear(4, 8), nn.Linear(8, 3)
        self.later, self.read = nn.Linear(8, 3, device="meta"), read

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.net(x).tanh()
        return self.later(h.to("meta")) if self.read else self.out(h)


def test_a_model_of_which_an_unread_part_is_on_meta() -> None:
    found = report(Partly)
    late = {"gradients-exist", "weights-update"}
    assert {f.check for f in found.findings if f.status == "violated"} == late
    assert [f for f in found.findings if f.status == "error" or "meta" in f.summary] == []
    held = Contract(model=lambda: Partly(read=True), batch=X).check(
        ["registration", "nonlinearity"]
    )
    assert {f.code for f in held.findings} == {"no-values"}, str(held)
    assert all("later.weight is on the meta device" in f.summary for f in held.findings)


class Pair(torch.Tensor):
    """Two tensors in one, which a class of the user's makes where the first of them is."""

    @staticmethod
    def __new__(cls, one: torch.Tensor, two: torch.Tensor) -> Self:
        made = torch.Tensor._make_wrapper_subclass(
            cls, one.shape, dtype=one.dtype, device=one.device
        )
        made.one, made.two = one, two
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(f"no {func} of a pair")


class Paired(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        return Pair(x, 2 * x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class Doubles(nn.Linear):
    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(x)
        return {"value": y, "pair": Paired.apply(y.detach())}


def test_a_tensor_of_the_users_is_not_made_for_a_gpu_that_is_not_there() -> None:
    found = report(lambda: Doubles(4, 3), lambda o, t: F.cross_entropy(o["value"], t))
    assert [f.summary for f in found.findings if f.status == "error"] == []
    assert any("of a Pair is not supported" in f.summary for f in found.findings)


def test_an_output_whose_parts_go_beyond_its_values_fails_as_its_forward_does() -> None:
    assert wrong(report(Parts, lambda o, _: o.values().square().mean(), None)) == []


class Refusing(torch.Tensor):
    """A tensor that only some functions take."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("equal", "eq", "isnan", "isfinite", "clone"):
            raise TypeError(f"no {func.__name__} of a {cls.__name__}")
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapping(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).as_subclass(Refusing)


def test_an_output_that_cannot_be_compared_is_said() -> None:
    found = report(
        lambda: Wrapping(4, 3), lambda o, t: F.cross_entropy(o.as_subclass(torch.Tensor), t)
    )
    assert [f for f in found.findings if f.status == "error"] == []
    said = [f.summary for f in found.findings if f.code == "not-measurable"]
    assert said
    assert all(" of a Refusing is not supported: TypeError: no " in text for text in said)


class Marked(torch.Tensor):
    """A tensor that does what any other does."""


class Marking(nn.Sequential):
    def __init__(self, kind: type[torch.Tensor]) -> None:
        super().__init__(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).as_subclass(self.kind)


def test_an_error_that_plain_tensors_meet_too_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(initialisation.layers, "is_affine", _adds_unlike_sizes)
    for kind in (torch.Tensor, Marked):
        found = Contract(model=lambda kind=kind: Marking(kind), batch=X).check(["nonlinearity"])
        assert [f.code for f in found.with_status("error")] == ["internal-error"], kind


def _adds_unlike_sizes(subject: Any) -> bool:
    output = subject.forward()
    return bool((output + torch.ones(5)).any())


class Flat(nn.Module):
    """Parameters that are views of one buffer, as some collectives want them."""

    def __init__(self, *, views: bool = True) -> None:
        super().__init__()
        self.views = views
        flat = torch.randn(4 * 6 + 6 * 3) / 3
        self.register_buffer("flat", flat, persistent=False)
        one, two = flat[: 4 * 6].view(6, 4), flat[4 * 6 :].view(3, 6)
        self.one = nn.Parameter(one if views else one.clone())
        self.two = nn.Parameter(two if views else two.clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = (x @ self.one.T).tanh() @ self.two.T
        return y if self.views else y + self.flat[:3]


def test_parameters_in_the_memory_of_a_buffer() -> None:
    assert wrong(report(Flat())) == []
    apart = report(Flat(views=False))
    assert [f.code for f in apart.with_status("violated")] == ["state-lost"]


def of_each_call(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    class Own(torch.Tensor):
        """Knows no other class that this line makes."""

    return F.cross_entropy(output, targets).as_subclass(Own)


def of_one_class(output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, targets).as_subclass(Marked)


class Mean(nn.Module):
    """A loss of one element, which is no scalar."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1), requires_grad=False)

    def forward(self, output: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return self.factor * F.cross_entropy(output, targets)


@pytest.mark.parametrize("loss", [of_each_call, of_one_class, Mean()])
def test_a_loss_of_any_class_is_the_number_that_it_holds(loss: Any) -> None:
    found = report(lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), loss)
    assert wrong(found) == []
    judged = [f for f in found.findings if f.check in ("target-alignment", "loss-weights")]
    assert {f.status for f in judged} <= {"passed"}


class Local(nn.Module):
    """Returns a class of its own from each call."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        class Own(torch.Tensor):
            """Knows no other class that this line makes."""

        return self.net(x).as_subclass(Own)


def test_outputs_that_cannot_be_added_are_said() -> None:
    found = report(Local)
    assert wrong(found) == []
    (finding,) = [f for f in found.findings if f.check == "nonlinearity"]
    assert "of a Own is not supported: TypeError: unsupported operand" in finding.summary
