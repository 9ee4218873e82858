"""Edges of the domain, low precision and memory layouts: what breaks is named by operation and line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, Finding, Floats

if TYPE_CHECKING:
    from collections.abc import Callable

torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


X = torch.randn(6, 8)


class Net(nn.Module):
    """One layer, then what ``step`` computes."""

    def __init__(self, step: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(8, 4, bias=False), step

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.step(self.layer(x))


class Standardised(nn.Module):
    """Divides by the standard deviation of each sample."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.layer, self.eps = nn.Linear(8, 4), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return self.layer(centred / (x.std(-1, keepdim=True) + self.eps))


class Spread(nn.Module):
    """Needs two steps of time to have a deviation."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).std(1)


class Distance(nn.Module):
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.layer, self.eps = nn.Linear(8, 4), eps

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ((self.layer(a) - self.layer(b)).pow(2).sum(-1) + self.eps).sqrt()


class Loud(nn.Module):
    """Its second layer leaves the range of float16."""

    def __init__(self, *, careful: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.careful = nn.Linear(8, 64), nn.Linear(64, 4), careful
        nn.init.constant_(self.first.weight, 30.0)
        nn.init.constant_(self.second.weight, 400.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x.abs() + 1)
        if self.careful:
            return nn.functional.linear(h.float(), self.second.weight.float()) / 1e6
        return self.second(h) / 1e6


class Rigid(nn.Module):
    """Reads the memory of its input as if it were contiguous."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(8, 4), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "strided":
            x = torch.as_strided(x, x.shape, (x.shape[1], 1))
        elif self.how == "view":
            x = x.view(-1).view(x.shape)
        else:
            x = x.reshape(-1).view(x.shape)
        return self.layer(x)


def find(model: Any, check: str, *inputs: torch.Tensor, **fields: Any) -> list[Finding]:
    fields = fields if "inputs" in fields else {"batch": (inputs or (X,), None), **fields}
    return list(Contract(model=model, **fields).check([check]).findings)


def only(found: list[Finding], code: str) -> Finding:
    assert [f.code for f in found] == [code], "\n\n".join(map(str, found))
    return found[0]


def test_a_zero_sample_is_suspicious_where_no_range_is_declared() -> None:
    found = only(
        find(lambda: Net(lambda y: y / y.norm(dim=-1, keepdim=True)), "degenerate-inputs"),
        "edge-non-finite",
    )
    assert found.status == "suspicious"
    assert "all zero" in found.summary


def test_a_constant_sample_is_a_violation_within_a_declared_range() -> None:
    spec = Floats("B 8", low=0.0, high=1.0)
    found = only(
        find(lambda: Standardised(0.0), "degenerate-inputs", inputs=spec), "edge-non-finite"
    )
    assert found.status == "violated"
    assert found.location is not None
    assert "x.std" in found.location.text
    assert all((found.summary, found.observed, found.cause, found.because, found.fix))
    assert find(lambda: Standardised(1e-5), "degenerate-inputs", inputs=spec)[0].status == "passed"


def test_values_outside_of_what_was_seen_are_not_tried() -> None:
    found = find(lambda: Net(torch.exp), "degenerate-inputs", X.abs() + 1)
    assert found[0].status == "passed"
    logarithm = nn.Sequential(nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 4))

    class Positive(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = logarithm

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x.log())

    assert find(Positive, "degenerate-inputs", X.abs() + 1)[0].status == "passed"


def test_equal_inputs_of_a_pair() -> None:
    pair = (X, X.roll(1, 0))
    found = only(find(lambda: Distance(0.0), "degenerate-inputs", *pair), "edge-non-finite")
    assert (found.status, "equal to" in found.summary) == ("suspicious", True)
    assert find(lambda: Distance(1e-6), "degenerate-inputs", *pair)[0].status == "passed"


def test_the_shortest_declared_length() -> None:
    fields = {"inputs": "B T 8", "sizes": {"B": (2, 4), "T": (1, 6)}}
    found = only(find(Spread, "degenerate-inputs", **fields), "edge-non-finite")
    assert found.status == "violated"
    assert "T=1" in found.summary
    longer = {**fields, "sizes": {"B": (2, 4), "T": (2, 6)}}
    assert find(Spread, "degenerate-inputs", **longer)[0].status == "passed"


def test_a_model_that_is_not_finite_anyway_is_left_to_its_own_check() -> None:
    found = find(lambda: Net(lambda y: (y * 0).log()), "degenerate-inputs")
    assert [(f.status, f.code) for f in found] == [("inconclusive", "blocked")]


def test_an_overflow_in_float16_names_the_layer_and_the_line() -> None:
    found = only(find(Loud, "low-precision", dtypes=["float16"]), "precision-overflow")
    assert found.status == "violated"
    assert found.culprits[0].name == "second"
    assert found.location is not None
    assert found.location.text == "return self.second(h) / 1e6"
    assert "65504" in found.cause


def test_the_careful_twin_and_bfloat16_pass() -> None:
    assert (
        find(lambda: Loud(careful=True), "low-precision", dtypes=["float16"])[0].status == "passed"
    )
    assert find(Loud, "low-precision", dtypes=["bfloat16"])[0].status == "passed"


def test_overflow_that_a_division_hides() -> None:
    class Unit(nn.Module):
        """Scales rows to length one; the sum of squares leaves the range of float16, and the quotient does not."""

        def __init__(self, careful: bool = False) -> None:
            super().__init__()
            self.head, self.careful = nn.Linear(8, 3), careful

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = 300.0 * x
            wide = x.float() if self.careful and x.dtype == torch.float16 else x
            norm = wide.pow(2).sum(-1, keepdim=True).sqrt()
            return self.head((x / norm).to(x.dtype))

    found = only(find(Unit, "low-precision", dtypes=["float16"]), "precision-overflow")
    assert "no correct digit" in found.summary
    assert found.location is not None
    assert "pow(2)" in found.location.text
    assert (
        find(lambda: Unit(careful=True), "low-precision", dtypes=["float16"])[0].status == "passed"
    )


def test_a_gradient_that_overflows_only_in_float16() -> None:
    def loss(output: torch.Tensor, target: object) -> torch.Tensor:
        return (output.float() * 1e6).sum() * 1e3

    found = find(lambda: Net(lambda y: y), "low-precision", dtypes=["float16"], loss=loss)
    assert (found[0].status, found[0].code) == ("violated", "precision-overflow")
    assert "gradient" in found[0].summary


def test_masks_of_minus_infinity_are_no_overflow() -> None:
    def step(y: torch.Tensor) -> torch.Tensor:
        hidden = torch.tensor([False, False, True, True])
        return y.masked_fill(hidden, float("-inf"))

    def loss(output: torch.Tensor, target: object) -> torch.Tensor:
        return output[:, :2].float().sum()

    assert (
        find(lambda: Net(step), "low-precision", dtypes=["float16"], loss=loss)[0].status
        == "passed"
    )


def test_a_lost_count_is_suspicious() -> None:
    def step(y: torch.Tensor) -> torch.Tensor:
        big = y * 0 + 4096.0
        return (big + 0.25 * y.tanh()) - big

    found = find(lambda: Net(step), "low-precision", dtypes=["bfloat16"])
    assert [(f.status, f.code) for f in found] == [("suspicious", "precision-lost")]


def test_strides_read_past_torch_change_the_result() -> None:
    found = only(find(lambda: Rigid("strided"), "layout-invariance"), "layout-differs")
    assert found.status == "violated"
    assert found.location is not None
    assert "as_strided" in found.location.text


def test_a_view_of_the_input_crashes_and_is_suspicious() -> None:
    found = only(
        find(lambda: Rigid("view"), "layout-invariance", torch.randn(4, 5, 8)), "layout-crash"
    )
    assert found.status == "suspicious"
    assert found.location is not None
    assert "x.view(-1)" in found.location.text


@pytest.mark.parametrize(
    ("build", "x"),
    [
        (lambda: Rigid("reshape"), X),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(2)),
            torch.randn(2, 3, 6, 6),
        ),
        (lambda: nn.Embedding(5, 3), torch.randint(0, 5, (2, 4))),
    ],
    ids=["reshape", "images", "ids"],
)
def test_layouts_that_give_the_same(build: Callable[[], nn.Module], x: torch.Tensor) -> None:
    assert find(build, "layout-invariance", x)[0].status == "passed"


def _policy(fill: float, *, kept: bool = False) -> Any:
    illegal = torch.arange(4) < 1

    def step(h: torch.Tensor) -> torch.Tensor:
        logs = h.masked_fill(illegal, fill).log_softmax(-1)  # the mask
        return (logs if kept else logs.exp() * logs).sum(-1)

    contract = Contract(
        model=lambda: Net(step), batch=(X, torch.zeros(6)), loss=nn.functional.mse_loss
    )
    return contract.check("gradients-finite")


def test_the_line_that_wrote_an_infinity_leads_the_finding() -> None:
    (finding,) = _policy(-torch.inf).findings
    assert finding.code == "non-finite-forward"
    first = finding.culprits[0]
    assert (first.name, first.detail) == ("Tensor.masked_fill", "writes -inf")
    assert first.location.text.endswith("# the mask")
    line = first.location.line
    assert (
        finding.cause
        == f"Tensor.masked_fill writes -inf on purpose on line {line}, and Tensor.mul makes NaN of it"
    )
    assert "wrote -inf to 6 of 24 elements" in finding.because
    assert finding.fix.startswith(
        f"fill a large finite number such as torch.finfo(dtype).min on line {line}"
    )
    assert _policy(-1e8).ok


def test_an_infinity_that_reaches_the_loss_is_its_writers() -> None:
    (finding,) = _policy(-torch.inf, kept=True).findings
    assert finding.location.text.endswith("# the mask")
    assert finding.cause == "Tensor.masked_fill writes -inf on purpose, and it reaches the result"
