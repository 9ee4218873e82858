"""Layers that are not registered, registered many times or never used are found by name; sharing on purpose is not."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding, promises

if TYPE_CHECKING:
    from collections.abc import Callable

torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


X = torch.randn(5, 8)


class Stack(nn.Module):
    """Runs whatever stands in ``layers`` one after the other."""

    layers: Any

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers.values() if isinstance(self.layers, dict) else self.layers:
            x = F.relu(layer(x))
        return self.head(x)

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)


class InList(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = [nn.Linear(8, 8) for _ in range(2)]


class InDict(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = {"a": nn.Linear(8, 8)}


class Multiplied(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8)] * 3)


class Named(Stack):
    def __init__(self, layer: nn.Module | None = None) -> None:
        super().__init__()
        layer = layer or nn.Linear(8, 8)
        self.layers = nn.ModuleList([layer for _ in range(3)])


class Shallow(Stack):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.Linear(8, 8)
        self.layers = nn.ModuleList([copy.copy(layer) for _ in range(3)])


class InSequential(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[nn.Linear(8, 8), nn.ReLU()] * 2)


class Deep(Stack):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([copy.deepcopy(nn.Linear(8, 8)) for _ in range(3)])


class Intended(Stack):
    """The layers share their weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8)] * 3)


class Heads(nn.Module):
    """One head behind every layer, as detection transformers have it."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 2)
        self.heads = nn.ModuleList([self.head for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = []
        for layer, head in zip(self.body, self.heads, strict=True):
            x = F.relu(layer(x))
            found.append(head(x))
        return torch.stack(found, 1)


class OneActivation(nn.Sequential):
    def __init__(self) -> None:
        act = nn.PReLU()
        super().__init__(nn.Linear(8, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 3))


class Holding(nn.Module):
    """Holds ``thing`` in an attribute and computes with it."""

    def __init__(self, thing: Any, use: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.head, self.thing, self.use = nn.Linear(8, 3), thing, use

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.use(self.thing, x))


class Forgetful(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)
        self.drop = nn.Dropout(0.1)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x))


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(8, 3), nn.Tanh()) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts[0](x)


def find(model: Any, check: str, **fields: Any) -> list[Finding]:
    return list(Contract(model=model, batch=((X,), None), **fields).check([check]).findings)


def only(found: list[Finding], code: str) -> Finding:
    assert [f.code for f in found] == [code], "\n\n".join(map(str, found))
    return found[0]


@pytest.mark.parametrize("build", [InList, InDict])
def test_layers_in_plain_containers(build: Callable[[], nn.Module]) -> None:
    found = only(find(build, "registration"), "module-hidden")
    assert found.status == "violated"
    assert found.culprits[0].name.startswith("layers[")
    assert found.location is not None
    assert "self.layers =" in found.location.text
    assert all((found.summary, found.observed, found.cause, found.because, found.fix))


@pytest.mark.parametrize(
    ("thing", "use"),
    [
        ([nn.Parameter(torch.randn(8))], lambda w, x: x * w[0]),
        (torch.randn(8, requires_grad=True), lambda w, x: x * w),
        (nn.Parameter(torch.randn(8)) * 0.5, lambda w, x: x * w),
    ],
    ids=["list", "leaf", "computed"],
)
def test_trainable_tensors_that_are_no_parameters(thing: Any, use: Any) -> None:
    found = only(find(Holding(thing, use), "registration"), "parameter-hidden")
    assert found.culprits[0].name.startswith("thing")


def _teacher(held: list[nn.Module], x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x - held[0](x)


@pytest.mark.parametrize(
    ("thing", "use"),
    [
        ([nn.Linear(8, 8)], _teacher),
        ({"act": nn.GELU()}, lambda acts, x: acts["act"](x)),
        ([nn.Linear(8, 8).requires_grad_(False)], lambda held, x: held[0](x)),
        ([nn.Linear(8, 8)], lambda held, x: x),
    ],
    ids=["teacher", "activation", "frozen", "unused"],
)
def test_helpers_that_do_not_train_may_be_hidden(thing: Any, use: Any) -> None:
    assert find(Holding(thing, use), "registration")[0].status == "passed"


def test_hidden_dropout_does_not_hear_eval() -> None:
    model = Holding([nn.Dropout(0.5)], lambda held, x: held[0](x))
    assert only(find(model, "registration"), "module-mode-lost").status == "suspicious"


def test_a_hidden_module_that_the_optimizer_holds_is_suspicious() -> None:
    model = InList()

    def optimizer(m: Any) -> torch.optim.Optimizer:
        hidden = [p for layer in m.layers for p in layer.parameters()]
        return torch.optim.SGD([*m.parameters(), *hidden], 0.1)

    found = find(model, "registration", optimizer=optimizer, loss=lambda o, t: o.sum())
    assert {f.status for f in found} == {"suspicious"}


@pytest.mark.parametrize("promise", [promises.Frozen, promises.MayLackGradient])
@pytest.mark.parametrize("model", [InList, InList()], ids=["factory", "instance"])
def test_a_promise_keeps_hidden_modules_quiet(model: Any, promise: Any) -> None:
    fixed = promise("layers*", reason="a fixed feature extractor")
    assert find(model, "registration", promises=[fixed])[0].status == "passed"


def test_a_promise_that_names_no_hidden_module_either_is_refused() -> None:
    wrong = promises.Frozen("leyers*", reason="a fixed feature extractor")
    found = find(InList, "registration", promises=[wrong])[0]
    assert (found.status, found.code) == ("violated", "unknown-name")


@pytest.mark.parametrize("build", [Multiplied, Named, Shallow, InSequential])
def test_one_layer_listed_many_times(build: Callable[[], nn.Module]) -> None:
    found = only(find(build, "registration"), "module-repeated")
    assert found.status == "violated"
    assert found.culprits[0].name == "layers"
    assert found.location is not None
    assert "for _ in range" in found.fix


def test_the_fix_is_the_expression_to_write() -> None:
    found = only(find(Multiplied, "registration"), "module-repeated")
    assert found.fix == "write [nn.Linear(8, 8) for _ in range(3)]"
    assert found.location is not None
    assert found.location.text == "self.layers = nn.ModuleList([nn.Linear(8, 8)] * 3)"


@pytest.mark.parametrize("build", [Deep, Intended, Heads, OneActivation])
def test_separate_layers_and_sharing_on_purpose(build: Callable[[], nn.Module]) -> None:
    assert find(build, "registration")[0].status == "passed"


class InForward(nn.Module):
    def __init__(self, *, kept: bool) -> None:
        super().__init__()
        self.head, self.kept = nn.Linear(8, 3), kept

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kept:
            if not hasattr(self, "body"):
                self.body = nn.Linear(8, 8)
            return self.head(self.body(x))
        return self.head(nn.Linear(8, 8)(x))


def test_layers_that_the_forward_makes() -> None:
    found = only(find(lambda: InForward(kept=False), "registration"), "module-made-in-forward")
    assert found.status == "violated"
    assert found.location is not None
    assert found.location.text == "return self.head(nn.Linear(8, 8)(x))"
    found = only(find(lambda: InForward(kept=True), "registration"), "parameter-late")
    assert found.culprits[0].name == "body.weight"
    assert found.location is not None
    assert found.location.text == "self.body = nn.Linear(8, 8)"


def test_a_layer_that_the_forward_makes_is_told_once() -> None:
    batch = ((X,), torch.zeros(len(X), 3))
    report = Contract(model=lambda: InForward(kept=True), batch=batch, loss=F.mse_loss).check()
    told = [f for f in report.findings if f.status in ("violated", "suspicious")]
    assert {f.root or f.key for f in told} == {"registration/parameter-late"}
    assert "attribute-missing" not in {f.code for f in told}


GLOBAL = nn.Linear(8, 8)


class Global(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(GLOBAL(x))


def test_a_global_layer_that_trains_is_suspicious() -> None:
    assert only(find(Global, "registration"), "module-foreign").status == "suspicious"
    GLOBAL.zero_grad()


class Weighted(nn.Module):
    """Multiplies its input by a table of its own that nothing registers."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.table = nn.Linear(8, 3), torch.ones(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x * self.table)


@pytest.mark.parametrize(
    ("model", "status", "root"),
    [
        (Weighted, "violated", "device-portability/cpu-tensor"),
        # what its caller gives to a model is the caller's to move: nothing fails
        (
            Holding(torch.ones(8), lambda table, x: x * table),
            "suspicious",
            "device-portability/cpu-tensor",
        ),
    ],
    ids=["own", "given"],
)
def test_a_constant_table_that_stays_behind_points_to_device_portability(
    model: Any, status: str, root: str | None
) -> None:
    contract = Contract(model=model, batch=((X,), None))
    report = contract.check(["device-portability", "unregistered-tensors"])
    found = {f.code: f for f in report.findings}
    assert {f.status for f in report.findings} == {status}
    assert set(found) == {"cpu-tensor", "tensor-unregistered"}
    assert found["tensor-unregistered"].root == root


def test_a_layer_that_is_never_called() -> None:
    found = only(find(Forgetful, "dead-modules"), "module-idle")
    assert [c.name for c in found.culprits] == ["drop"]
    assert found.status == "suspicious"


def test_experts_and_identities_may_rest() -> None:
    assert find(Experts, "dead-modules")[0].status == "passed"
    assert (
        find(lambda: nn.Sequential(nn.Linear(8, 3), nn.Identity()), "dead-modules")[0].status
        == "passed"
    )


def test_a_reference_to_the_parent_is_no_hidden_module() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    model[0].parent = [model]
    assert find(model, "registration")[0].status == "passed"


INTERACTIVE = """
class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(8, 8)]
        self.stack = nn.ModuleList([nn.Linear(8, 8)] * 2)

    def forward(self, x):
        for layer in (*self.layers, *self.stack):
            x = layer(x)
        return x
"""


def test_classes_without_source_are_checked_without_lines() -> None:
    names: dict[str, Any] = {"nn": nn, "__name__": "__main__"}
    exec(INTERACTIVE, names)
    codes = {f.code for f in find(names["Typed"], "registration")}
    assert "module-hidden" in codes
