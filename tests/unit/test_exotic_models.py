"""Correct models that are unusual in what they hold, take, return or are made of: no check fails on them."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Floats, Labels

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_torchcheck.findings import Report


def _batch(targets: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(6, 4, generator=generator)
    return x, torch.randn(6, targets, generator=generator)


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def _report(
    model: Any, *checks: str, loss: Callable[..., Any] = F.mse_loss, batch: Any = None
) -> Report:
    return Contract(model=model, batch=batch or _batch(), loss=loss).check(checks or None)


def _wrong(report: Report) -> list[tuple[str, str]]:
    bad = ("violated", "error")
    return [(f.check, f"{f.code}: {f.summary}") for f in report.findings if f.status in bad]


_SHORT = (
    "backward", "weights-update", "repeatable-steps", "function-coverage", "input-influence", "batch-independence",
    "batch-sizes", "eval-determinism", "eval-purity", "seeding", "state-dict-roundtrip", "copy-and-pickle",
    "unregistered-tensors", "dead-modules", "device-portability", "sampling-paths", "degenerate-inputs",
)  # fmt: skip


class Schedule:
    """A held value none of whose special methods can be used."""

    def __init__(self) -> None:
        self.factor = 0.5

    def _refuse(self, *_: object) -> Any:
        raise RuntimeError("not before fit()")

    __bool__ = __len__ = __eq__ = __repr__ = __str__ = __iter__ = __contains__ = _refuse
    __hash__ = None  # type: ignore[assignment]


class Closed:
    """A held value that lets nobody read its attributes but one."""

    def __getattribute__(self, name: str) -> Any:
        if name == "gain":
            return 2.0
        if name.startswith("__") and name != "__dict__":
            return object.__getattribute__(self, name)
        raise PermissionError(name)


class Endless(Mapping[int, torch.Tensor]):
    """A lazy table that has a row for every number."""

    def __getitem__(self, key: int) -> torch.Tensor:
        return torch.full((1,), float(key))

    def __iter__(self) -> Iterator[int]:
        return itertools.count()

    def __len__(self) -> int:
        return 2


class Guarded(list[Any]):
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("locked")


class Sealed:
    """Not even its class can be asked for."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class _Unhashed(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")


class Nameless(metaclass=_Unhashed):
    pass


def _nested() -> list[Any]:
    outer: list[Any] = []
    inner = outer
    for _ in range(4000):
        inner.append([])
        inner = inner[0]
    return outer


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = _net()
        self.schedule, self.closed = Schedule(), Closed()
        self.table = {"warm": Schedule()}
        self.rows, self.locked = Endless(), Guarded([torch.zeros(2), 1])
        self.others = Sealed(), Nameless(), _nested()
        vars(self).update(sealed=self.others[0], nameless=self.others[1])  # as torch refuses to ask

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) * self.schedule.factor * self.table["warm"].factor * self.closed.gain


class Strict(nn.Module):
    """A layer without a size, and with errors of its own for what it lacks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def __bool__(self) -> bool:
        raise ValueError("a layer is neither true nor false")

    __len__ = __bool__  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            raise LookupError(name) from None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def _strict() -> nn.Module:
    return nn.Sequential(Strict(), nn.Tanh(), nn.Linear(4, 2))


class Graph(nn.Module):
    """Propagation along a fixed graph, kept in a sparse layout."""

    def __init__(self, layout: str) -> None:
        super().__init__()
        ring = torch.eye(4) + torch.eye(4).roll(1, 0)
        self.register_buffer("ring", getattr(ring, f"to_sparse{layout}")())
        self.head = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh((self.ring @ x.T).T))


class Packed(nn.Module):
    """Weights stored in eight bits, used in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        stored = torch.linspace(-1, 1, 8).view(4, 2)
        self.register_buffer("stored", stored.to(torch.float8_e5m2))
        self.frozen = nn.Parameter(stored.T.to(torch.float8_e4m3fn).clone(), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.scale) @ (self.stored.to(x.dtype) + self.frozen.T.to(x.dtype))


class PartlyMeta(nn.Module):
    """A part that is loaded later keeps its shapes on meta."""

    def __init__(self) -> None:
        super().__init__()
        self.net = _net()
        self.later = nn.Linear(5, 5, device="meta").requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class EachRow(nn.Module):
    """A layer written for one sample, mapped over the batch, then a plain one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.vmap(lambda row: torch.relu(self.first(row)))(x))


class NoFeatures(nn.Module):
    """A model of a family in which one member has a part without features."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.rest = nn.Linear(4, 2), nn.Linear(4, 0)
        self.tail = nn.Sequential(nn.Linear(0, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x) + self.tail(self.rest(x))


def _exported() -> nn.Module:
    sizes = ({0: torch.export.Dim("b", min=2, max=64)},)
    return torch.export.export(_net(), (_batch()[0],), dynamic_shapes=sizes).module()


def _scripted() -> nn.Module:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Linear(4, 2)
            self.register_buffer("scale", torch.full((4,), 0.5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x * self.scale)

    return torch.jit.script(Scaled())


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
@pytest.mark.filterwarnings("ignore:Sparse CS")  # torch calls its own layouts beta
@pytest.mark.parametrize(
    "build",
    [
        Holder,
        _strict,
        lambda: Graph(""),
        lambda: Graph("_csr"),
        lambda: Graph("_csc"),
        Packed,
        PartlyMeta,
        EachRow,
        NoFeatures,
        _exported,
        _scripted,
    ],
    ids=[
        "held",
        "strict",
        "coo",
        "csr",
        "csc",
        "float8",
        "meta",
        "vmap",
        "zero",
        "exported",
        "scripted",
    ],
)
def test_no_check_fails_on_an_unusual_model(build: Callable[[], nn.Module]) -> None:
    assert _wrong(_report(build)) == []


def test_a_module_of_the_user_keeps_its_buffers_where_it_is_scripted() -> None:
    model = _scripted()
    scale = model.scale
    _report(model, "batch-independence", "dtype-conversion")
    assert model.scale is scale
    assert model.scale.dtype == torch.float32


def test_an_exported_module_of_the_user_keeps_its_own_train() -> None:
    model = _exported()
    assert _wrong(_report(model, "backward", "mode-flags")) == []
    with pytest.raises(NotImplementedError):
        model.train()


def test_a_model_on_meta_is_not_judged_and_told_why() -> None:
    def build() -> nn.Module:
        with torch.device("meta"):
            return _net()

    report = _report(build, "backward", "weights-update")
    assert {f.status for f in report.findings} == {"inconclusive"}
    assert "to_empty" in report.findings[0].summary


# what a forward returns


class Heads(nn.Module):
    """Two heads, returned in whatever form ``put`` makes of them."""

    def __init__(self, put: Callable[[list[torch.Tensor]], Any]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
        self.put = put

    def forward(self, x: torch.Tensor) -> Any:
        return self.put([head(x) for head in self.heads])


class Lazily(Heads):
    def forward(self, x: torch.Tensor) -> Any:
        for head in self.heads:
            yield head(x)


@dataclasses.dataclass
class Pair:
    mean: torch.Tensor
    other: torch.Tensor


class Slotted:
    __slots__ = ("first", "later", "second")

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self.first, self.second = parts


class Predictor:
    """An object that is called for its result."""

    def __init__(self, parts: list[torch.Tensor]) -> None:
        self.parts = parts

    def __call__(self) -> torch.Tensor:
        return self.parts[0] + self.parts[1]


def _of(output: Any) -> list[torch.Tensor]:
    if isinstance(output, Pair):
        return [output.mean, output.other]
    if isinstance(output, Slotted):
        return [output.first, output.second]
    if callable(output):
        return [output()]
    return list(output)


def _summed(output: Any, targets: torch.Tensor) -> torch.Tensor:
    return sum((F.mse_loss(part, targets) for part in _of(output)), torch.zeros(()))


@pytest.mark.parametrize(
    "put",
    [
        lambda parts: Pair(*parts),
        Slotted,
        set,
        frozenset,
        collections.deque,
        lambda parts: dict(enumerate(parts)).values(),
        lambda parts: map(torch.tanh, parts),
        Predictor,
        lambda parts: lambda: parts[0] * parts[1],
    ],
    ids=["dataclass", "slots", "set", "frozenset", "deque", "values", "map", "callable", "closure"],
)
def test_the_tensors_of_an_output_are_found_in_any_form(put: Callable[..., Any]) -> None:
    report = _report(lambda: Heads(put), *_SHORT, loss=_summed)
    assert _wrong(report) == []
    held = {f.check for f in report.findings if f.status == "passed"}
    assert {"backward", "input-influence", "eval-determinism"} <= held


def test_an_input_that_a_set_of_outputs_ignores_is_still_found() -> None:
    class Deaf(Heads):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(torch.ones_like(x))

    report = _report(lambda: Deaf(set), "input-influence", loss=_summed)
    assert _wrong(report)[0][0] == "input-influence"


def test_a_generator_is_run_as_a_part_of_the_forward() -> None:
    report = _report(lambda: Lazily(list), *_SHORT, loss=_summed)
    assert _wrong(report) == []

    class Late(Lazily):
        def forward(self, x: torch.Tensor) -> Any:
            yield self.heads[0](x)
            raise ZeroDivisionError("the second head")

    found = _report(lambda: Late(list), "backward", loss=_summed).findings[0]
    assert found.status == "violated"
    assert "the forward pass raises ZeroDivisionError" in found.summary


D = torch.distributions


@pytest.mark.parametrize(
    "law",
    [
        lambda m, s: D.Independent(D.Laplace(m, s), 1),
        lambda m, s: D.TransformedDistribution(D.Normal(m, s), [D.AffineTransform(0.5, 2.0)]),
        lambda m, s: D.LogNormal(m, s).base_dist,
        lambda m, s: D.MixtureSameFamily(D.Categorical(logits=m), D.Normal(m, s)),
    ],
    ids=["independent", "transformed", "normal", "mixture"],
)
def test_the_parameters_of_a_distribution_are_its_output(law: Callable[..., Any]) -> None:
    """What torch reads of a distribution's arguments, as it does by default, is no wait of the model's."""

    class Density(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean, self.scale = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> Any:
            return law(self.mean(x), F.softplus(self.scale(x)) + 0.2)

    x, y = _batch()
    mixture = isinstance(law(torch.zeros(1, 2), torch.ones(1, 2)), D.MixtureSameFamily)
    batch = (x, y[:, 0] if mixture else y)
    checks = (*_SHORT, "device-portability")
    report = _report(Density, *checks, batch=batch, loss=lambda d, t: -d.log_prob(t).mean())
    assert _wrong(report) == []
    assert not [f for f in report.findings if f.status == "suspicious"]


def test_a_sparse_and_a_nested_output_are_compared() -> None:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.net(x)).to_sparse()

    class Ragged(Sparse):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    dense = lambda o, t: F.mse_loss(o.to_dense(), t)  # noqa: E731
    assert _wrong(_report(Sparse, *_SHORT, loss=dense)) == []
    parts = [torch.randn(n, 4) for n in (2, 3, 1)]
    ragged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    padded = lambda o, t: F.mse_loss(o.to_padded_tensor(0.0).sum(1), t)  # noqa: E731
    assert _wrong(_report(Ragged, *_SHORT, loss=padded, batch=(ragged, torch.randn(3, 2)))) == []


def test_what_an_observer_raises_is_never_blamed_on_the_model(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "pytest_torchcheck.probes.numbers.signals.readable", int
    )  # raises for most tensors
    report = _report(_net, "dead-modules")
    assert {f.status for f in report.findings} == {"error"}

    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = _net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x) * float(x)

    monkeypatch.undo()
    assert _report(Broken, "dead-modules").findings[0].status == "violated"


def test_a_module_that_cannot_be_hashed_is_named_with_what_to_add() -> None:
    class Equal(nn.Linear):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Equal)

        __hash__ = None  # type: ignore[assignment]

    for model in (lambda: nn.Sequential(Equal(4, 2)), nn.Sequential(Equal(4, 2))):
        report = _report(model, "backward", "weights-update")
        assert [f.status for f in report.findings] == ["violated", "inconclusive"]
        assert "cannot be hashed" in str(report.findings[0])

    class Hashed(Equal):
        __hash__ = nn.Module.__hash__

    assert _wrong(_report(lambda: nn.Sequential(Hashed(4, 2)), "backward")) == []


def test_a_branch_that_torch_compiles_by_itself_is_not_judged() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.low, self.high = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cond(x.mean() > 0, self.high, self.low, (x,))

    checks = ("backward", "loss-sound", "input-influence", "inference-memory", "eval-determinism")
    report = _report(Branch, *checks)
    assert _wrong(report) == []
    assert any(f.code == "not-measurable" for f in report.findings)


def test_a_model_compiled_as_one_graph_is_observed_eagerly() -> None:
    def build() -> nn.Module:
        return torch.compile(_net(), backend="aot_eager", fullgraph=True)

    checks = ("backward", "loss-sound", "function-coverage", "inference-memory", "weights-update")
    assert _wrong(_report(build, *checks)) == []


class Point(nn.Parameter):
    """A parameter that is no plain tensor to torch: every function but a few is refused."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") not in ("__get__", "add", "requires_grad_"):
            raise TypeError(f"use Point.tensor as argument to {func}")
        return super().__torch_function__(func, types, args, kwargs or {})


class OnSphere(nn.Module):
    def __init__(self):
        super().__init__()
        self.at = Point(torch.ones(3))

    def forward(self, x):
        with torch._C.DisableTorchFunctionSubclass():
            return x + self.at.as_subclass(torch.Tensor)


@pytest.mark.parametrize("made", [OnSphere, OnSphere()], ids=["class", "instance"])
def test_a_parameter_that_refuses_torchs_functions_is_said_to(made):
    report = Contract(
        model=made, batch=((torch.randn(4, 3),), torch.randn(4, 3)), loss=F.mse_loss
    ).check()
    assert {finding.status for finding in report.findings} <= {"inconclusive", "not-applicable"}
    assert not report.ok
    assert any("at is a Point" in finding.summary for finding in report.findings)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_inputs_of_no_declared_dtype_follow_the_model(dtype: torch.dtype) -> None:
    declared = {"model": lambda: nn.Linear(4, 3).to(dtype), "targets": Labels("B", classes=3)}
    free = Contract(inputs="B 4", loss=F.cross_entropy, **declared).check()
    assert free.ok, str(free)
    fixed = Floats("B 4", dtype=torch.float32)
    report = Contract(inputs=fixed, loss=F.cross_entropy, **declared).check(
        ["backward", "batch-sizes"]
    )
    assert [f.code for f in report.findings if f.status == "violated" and f.root is None] == [
        "dtype-pair"
    ]
    assert f"dtype={dtype}" in report.findings[0].fix


class LongList(list):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise RuntimeError("ask for .size")


class LongDict(dict):  # type: ignore[type-arg]
    def __len__(self) -> int:
        raise RuntimeError("ask for .size")


class ListsParameters(nn.Module):
    """Holds containers that refuse their length, and gives its parameters as a list."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.rows, self.table = _net(), LongList([1, 2]), LongDict(a=1)

    def parameters(self, recurse: bool = True) -> Any:
        return list(super().parameters(recurse))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


def test_containers_without_a_length_and_listed_parameters() -> None:
    torch.manual_seed(0)
    batch = ((torch.randn(6, 4),), torch.randn(6, 2))
    report = Contract(model=ListsParameters, batch=batch, loss=F.mse_loss).check()
    assert [f for f in report.findings if f.status in ("error", "violated")] == []


class Endlessly(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.forward(torch.tanh(x + self.inner(x).sum()))


def test_a_forward_that_calls_itself_without_end_is_the_models_own_fault() -> None:
    report = _report(Endlessly, "backward", "sampling-paths", "axis-order")
    assert not [*report.with_status("error")]
    assert "RecursionError" in next(iter(report.with_status("violated"))).summary


class Criterion(nn.CrossEntropyLoss):
    """A loss that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("compare losses by value")

    __hash__ = nn.Module.__hash__


def test_a_loss_is_never_compared() -> None:
    made = Contract(model=_net, batch=((torch.randn(6, 4),), torch.arange(6) % 2), loss=Criterion())
    assert made.check(["backward", "target-ownership", "loss-arguments"]).ok


def test_a_mock_of_a_tensor_is_none() -> None:
    class Holding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.held = _net(), mock.MagicMock(spec=torch.Tensor)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    batch = ((torch.randn(6, 4),), torch.randn(6, 2))
    report = Contract(model=Holding, batch=batch, loss=F.mse_loss).check()
    assert [f for f in report.findings if f.status in ("error", "violated")] == []


def test_an_output_that_is_nested_too_deep_is_not_followed_and_no_error_of_a_check():
    class Nested(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            made = self.layer(x)
            for _ in range(1500):
                made = {"inner": [made]}
            return made

    def loss(output, labels):
        while isinstance(output, dict):
            output = output["inner"][0]
        return F.cross_entropy(output, labels)

    batch = (torch.randn(5, 4),), torch.arange(5) % 3
    report = Contract(model=Nested, batch=batch, loss=loss).check(["backward", "eval-purity"])
    assert [f.status for f in report.findings] == ["inconclusive"] * 2
    assert "nested more than 100 containers deep" in report.findings[0].summary


class Shy(nn.Linear):
    """Has parts that may not be listed."""

    def named_children(self) -> Any:
        raise PermissionError("ask for one by name")


@pytest.mark.parametrize("made", [lambda: Shy(4, 2), Shy(4, 2)], ids=["factory", "module"])
def test_a_model_that_cannot_be_listed_was_built(made: Any) -> None:
    (found,) = Contract(model=made, batch=_batch()).check(["backward"]).findings
    assert found.summary.startswith("listing the model's parts raises PermissionError")
    assert found.location is not None
    assert found.location.function.endswith("named_children")
