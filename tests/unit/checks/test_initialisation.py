"""Models that cannot start to learn are told from those that can: memory, symmetry, signals, dead and collapsed layers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Finding, Labels

if TYPE_CHECKING:
    from collections.abc import Callable

torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


X, Y = torch.randn(8, 16), torch.randint(0, 4, (8,))


class Empty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(16, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(x @ self.weight.nan_to_num(posinf=0, neginf=0)))


class Filled(nn.Module):
    def __init__(self, value: float) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 8), nn.Linear(8, 4)
        with torch.no_grad():
            self.body.weight[0, 0] = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.tanh(self.body(x)))


def stack(
    depth: int,
    act: Callable[[], nn.Module],
    init: Callable[[nn.Linear], Any] | None = None,
    width: int = 64,
) -> nn.Sequential:
    layers: list[nn.Module] = []
    size = 16
    for _ in range(depth):
        layers += [nn.Linear(size, width), act()]
        size = width
    model = nn.Sequential(*layers, nn.Linear(size, 4))
    for layer in model:
        if init is not None and isinstance(layer, nn.Linear):
            init(layer)
    return model


def constant(layer: nn.Linear) -> None:
    nn.init.constant_(layer.weight, 0.05)
    nn.init.zeros_(layer.bias)


def he(layer: nn.Linear) -> None:
    nn.init.kaiming_normal_(layer.weight)


def wide(layer: nn.Linear) -> None:
    nn.init.normal_(layer.weight)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.layer(self.norm(x)))


class TinyHead(nn.Module):
    """Starts near zero on purpose, as policies do."""

    def __init__(self) -> None:
        super().__init__()
        self.body = stack(5, nn.Tanh, lambda layer: nn.init.xavier_normal_(layer.weight))
        nn.init.normal_(self.body[-1].weight, std=1e-7)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Two(nn.Module):
    def __init__(
        self, between: Callable[[torch.Tensor], torch.Tensor] | None = None, width: int = 32
    ) -> None:
        super().__init__()
        self.first, self.second, self.last = (
            nn.Linear(16, width),
            nn.Linear(width, 16),
            nn.Linear(16, 4),
        )
        self.between, self.drop = between, nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.drop(self.first(x))
        h = h if self.between is None else self.between(h)
        return self.last(F.relu(self.second(h)))


class Affine(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, width), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x))


class Negative(nn.Module):
    def __init__(self, bias: float) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(16, 32), nn.Linear(32, 4)
        nn.init.constant_(self.body.bias, bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(F.relu(self.body(x)))


def find(model: Any, check: str) -> list[Finding]:
    contract = Contract(model=model, batch=((X,), Y), loss=F.cross_entropy)
    return list(contract.check([check]).findings)


def only(found: list[Finding], code: str) -> Finding:
    assert [f.code for f in found] == [code], "\n\n".join(map(str, found))
    return found[0]


def test_memory_that_nobody_wrote_is_found_whatever_it_holds() -> None:
    found = only(find(Empty, "initialisation"), "never-written")
    assert found.status == "violated"
    assert found.culprits[0].name == "weight"
    assert found.location is not None
    assert "torch.empty" in found.location.text
    assert all((found.summary, found.observed, found.cause, found.because, found.fix))
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize(
    ("value", "code"), [(float("nan"), "parameter-non-finite"), (1e30, "parameter-huge")]
)
@pytest.mark.parametrize("given", [False, True], ids=["factory", "module"])
def test_values_that_no_initialisation_draws(value: float, code: str, given: bool) -> None:
    build = lambda: Filled(value)  # noqa: E731
    found = only(find(build() if given else build, "initialisation"), code)
    assert found.culprits[0].name == "body.weight"


def test_equal_units_that_stay_equal() -> None:
    found = find(lambda: stack(3, nn.ReLU, constant), "initialisation")
    assert {(f.status, f.code) for f in found} == {("violated", "units-equal")}
    assert found[0].culprits[0].name == "0.weight"


def test_equal_units_that_their_outputs_tell_apart_pass() -> None:
    def build() -> nn.Module:
        model = stack(1, nn.ReLU)
        constant(model[0])
        return model

    assert find(build, "initialisation")[0].status == "passed"


def test_zero_heads_and_constant_heads_pass() -> None:
    def build() -> nn.Module:
        model = stack(2, nn.ReLU)
        nn.init.zeros_(model[-1].weight)
        return model

    assert find(build, "initialisation")[0].status == "passed"


@pytest.mark.parametrize(
    ("build", "code"),
    [
        (lambda: stack(20, nn.ReLU), "signal-vanishes"),
        (lambda: stack(20, nn.Sigmoid), "signal-vanishes"),
        (lambda: stack(12, nn.ReLU, wide), "signal-explodes"),
    ],
    ids=["relu", "sigmoid", "std-1"],
)
def test_signals_that_fade_or_burst(build: Callable[[], nn.Module], code: str) -> None:
    found = only(find(build, "signal-propagation"), code)
    assert found.status == "violated"
    assert len(found.evidence["layers"]) >= 13  # type: ignore[arg-type]
    assert found.evidence["layers"][0]["spread"] > 0  # type: ignore[index,call-overload]


@pytest.mark.parametrize(
    "build",
    [
        lambda: stack(20, nn.ReLU, he),
        lambda: stack(8, nn.ReLU),
        lambda: stack(10, nn.SELU),
        lambda: nn.Sequential(*[Residual() for _ in range(40)], nn.Linear(16, 4)),
        TinyHead,
    ],
    ids=["he", "plain-8", "selu", "residual-40", "tiny-head"],
)
def test_signals_that_arrive(build: Callable[[], nn.Module]) -> None:
    assert find(build, "signal-propagation")[0].status == "passed"


def test_shallow_models_and_single_samples_decide_nothing() -> None:
    assert find(lambda: stack(2, nn.ReLU), "signal-propagation")[0].status == "not-applicable"
    contract = Contract(model=lambda: stack(6, nn.ReLU), batch=((X[:1],), None))
    assert contract.check(["signal-propagation"]).findings[0].status == "inconclusive"


def test_rectifiers_that_let_nothing_through() -> None:
    found = only(find(lambda: Negative(-30.0), "dead-units"), "units-dead")
    assert found.status == "suspicious"
    assert found.location is not None
    assert "F.relu" in found.location.text
    assert find(lambda: Negative(0.0), "dead-units")[0].status == "passed"


def test_layers_without_a_nonlinearity_between_them() -> None:
    found = only(find(Two, "nonlinearity"), "layers-collapse")
    assert found.status == "suspicious"
    assert [c.name for c in found.culprits] == ["second", "first"]
    found = only(find(Affine, "nonlinearity"), "model-affine")
    assert found.status == "suspicious"


class Scaled(nn.Module):
    """Adds a branch by a scale that starts near zero."""

    def __init__(self, bend: Callable[[torch.Tensor], torch.Tensor], start: float = 1e-6) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.last = nn.Conv1d(16, 4, 1)
        self.scale, self.bend = nn.Parameter(torch.full((16,), start)), bend

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x + self.scale * self.second(self.bend(self.first(x)))
        return self.last(h[..., None])[..., 0]


@pytest.mark.parametrize("start", [0.0, 1e-6])
def test_what_a_scale_near_zero_hides_may_bend(start: float) -> None:
    assert find(lambda: Scaled(torch.sin, start), "nonlinearity")[0].status == "passed"
    found = only(find(lambda: Scaled(lambda h: h, start), "nonlinearity"), "model-affine")
    assert found.status == "suspicious"


@pytest.mark.parametrize(
    "build",
    [
        lambda: Two(torch.relu),
        lambda: Two(lambda h: h * torch.sigmoid(h)),
        lambda: Two(width=4),
        lambda: Affine(width=2),
        lambda: nn.Sequential(nn.Linear(16, 4)),
    ],
    ids=["relu", "gate", "low-rank", "factors", "one-layer"],
)
def test_compositions_that_are_meant(build: Callable[[], nn.Module]) -> None:
    assert find(build, "nonlinearity")[0].status in ("passed", "not-applicable")


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(16, 8)
        self.value = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.value(torch.tanh(self.trunk(x))).squeeze(-1)


class Twins(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.one = Critic()
        self.two = Critic()
        if how == "assigned":
            self.two = copy.deepcopy(self.one)
        elif how == "loaded":
            self.two.load_state_dict(self.one.state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.one(x), self.two(x)], -1)


def test_a_copied_branch_is_told_by_the_line_that_copies_it() -> None:
    made = {"loss": lambda output, targets: (output - targets[:, None].float()).square().mean()}
    for how in ("assigned", "loaded"):
        report = Contract(model=Twins(how), batch=((X,), Y), **made).check(["initialisation"])
        (found,) = report.causes
        assert found.location is not None
        assert found.location.function.startswith("Twins")
        assert "self.two" in found.location.text
        assert "construct two again" in found.fix
    assert Contract(model=Twins("anew"), batch=((X,), Y), **made).check(["initialisation"]).ok


class Tied(nn.Module):
    """A language model whose head is its table of token vectors."""

    def __init__(self, tied: bool, std: float) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(40, 32), nn.Linear(32, 40, bias=False)
        nn.init.normal_(self.table.weight, std=std)
        nn.init.normal_(self.head.weight, std=std)
        if tied:
            self.head.weight = self.table.weight
        self.norm = nn.LayerNorm(32)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.table(ids))).mT


@pytest.mark.parametrize(
    ("tied", "std", "status"),
    [(True, 1.0, "violated"), (False, 1.0, "suspicious"), (True, 0.02, "passed")],
)
def test_a_hot_head_is_wrong_only_where_nobody_chose_its_scale(
    tied: bool, std: float, status: str
) -> None:
    ids = torch.randint(0, 40, (4, 9), generator=torch.Generator().manual_seed(0))
    contract = Contract(
        model=lambda: Tied(tied, std), batch=((ids,), ids.roll(-1, 1)), loss=F.cross_entropy
    )
    (finding,) = contract.check(["loss-at-start"]).findings
    assert finding.status == status, str(finding)
    if tied and status == "violated":
        assert "self.table.weight" in finding.fix or "self.head.weight" in finding.fix


class Stacked(nn.Module):
    """Copies of one layer, one after another, beside two that stay equal."""

    def __init__(self, copies):
        super().__init__()
        layer = nn.Linear(6, 6)
        self.stack = nn.ModuleList([copy.deepcopy(layer) for _ in range(copies)])
        self.left, self.right = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x):
        for layer in self.stack:
            x = x + torch.tanh(layer(x))
        return self.left(x) + self.right(x)


@pytest.mark.parametrize("equal", [True, False])
def test_copies_in_a_stack_are_told_from_branches_that_stay_one(equal):
    torch.manual_seed(0)
    model = Stacked(40)
    if equal:
        model.right.load_state_dict(model.left.state_dict())
    contract = Contract(
        model=model, batch=((torch.randn(8, 6),), torch.randint(0, 3, (8,))), loss=F.cross_entropy
    )
    (found,) = [f for f in contract.check("initialisation").findings if f.check == "initialisation"]
    assert found.status == ("violated" if equal else "passed")
    if equal:
        assert [c.name for c in found.culprits[1:]] == ["left.weight", "right.weight"]


@pytest.mark.parametrize("gain", [1.0, 0.02])
def test_layers_with_a_parametrised_weight_count_as_layers(gain):
    def deep():
        layers = []
        for _ in range(8):
            layer = nn.utils.parametrizations.weight_norm(nn.Linear(12, 12, bias=False))
            with torch.no_grad():
                layer.parametrizations.weight.original0.fill_(1.5 * gain)
            layers += [layer, nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(12, 3))

    contract = Contract(
        model=deep, inputs="B 12", targets=Labels("B", classes=3), loss=F.cross_entropy
    )
    (finding,) = contract.check(["signal-propagation"]).findings
    assert finding.status == ("passed" if gain == 1 else "violated"), finding.summary
