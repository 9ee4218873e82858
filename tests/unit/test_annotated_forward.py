"""A contract takes its specs from the annotations of ``forward`` where it declares none."""

# ruff: noqa: F722 - the strings are shapes
from __future__ import annotations

import functools
from typing import Annotated, Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import (
    Contract,
    DeclarationError,
    Floats,
    Labels,
    TensorSpec,
    Tokens,
    contract,
)
from pytest_torchcheck.specs import Mask

jaxtyping = pytest.importorskip("jaxtyping")
Float, Int, Bool = jaxtyping.Float, jaxtyping.Int, jaxtyping.Bool

built: list[str] = []


class Shaped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        built.append("Shaped")
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Float[Tensor, "B 4"], scale: float = 1.0) -> Float[Tensor, "B 3"]:
        return self.layer(x) * scale


class WrongOutput(Shaped):
    def forward(self, x: Float[Tensor, "B 4"]) -> Float[Tensor, "B 5"]:
        return self.layer(x)


class Plain(nn.Module):
    """Annotated without jaxtyping; ids say their range."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 4)

    def forward(
        self,
        ids: Annotated[Tensor, Tokens("B T", vocab=11)],
        *,
        weight: Annotated[Tensor, Floats("B T")],
        mask: Annotated[Tensor, TensorSpec("B T", dtype="bool")],
        extra: Annotated[Tensor, Floats("B T")] | None = None,
    ) -> Tensor:
        return (self.table(ids) * weight[..., None]).masked_fill(~mask[..., None], 0.0).sum(1)


class Bare(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x


class Ids(nn.Module):
    def forward(self, ids: Int[Tensor, "B T"]) -> Tensor:
        return ids


class Half(nn.Module):
    def forward(self, x: Float[Tensor, "B 4"], y: Tensor) -> Tensor:
        return x + y


def says_what_it_returns() -> Shaped:
    return Shaped()


def says_nothing():  # type: ignore[no-untyped-def]  # noqa: ANN201, RUF100
    return Shaped()


FAST = ("backward", "output-spec", "batch-sizes", "weights-update")


@pytest.mark.parametrize(
    ("model", "builds"),
    [
        (Shaped, 0),
        (says_what_it_returns, 0),
        (functools.partial(Shaped), 0),
        (says_nothing, 1),
        (lambda: Shaped(), 1),
    ],
)
def test_specs_come_from_the_annotations(model: Any, builds: int) -> None:
    built.clear()
    state = torch.get_rng_state()
    made = Contract(model=model, targets=Labels("B", classes=3), loss=F.cross_entropy)
    assert len(built) == builds  # only where nothing else tells the class
    assert torch.equal(torch.get_rng_state(), state)
    assert made.inputs == (TensorSpec("B 4", dtype="float32"),)
    assert made.output == TensorSpec("B 3", dtype="floating")
    assert made.source is not None
    assert made.source.batch_symbol == "B"
    report = made.check(FAST)
    assert report.ok
    assert len(list(report.with_status("passed"))) == len(FAST)


def test_the_decorator_and_a_module_do_the_same() -> None:
    @contract(targets=Labels("B", classes=3), loss=F.cross_entropy, sizes={"B": (2, 3)})
    def model() -> Shaped:
        return Shaped()

    assert model.inputs == Contract(model=Shaped()).inputs
    assert model.source is not None
    assert model.source.symbols["B"].top == 3


def test_what_the_return_is_annotated_with_is_held() -> None:
    report = Contract(model=WrongOutput).check(["output-spec"])
    assert [finding.code for finding in report.with_status("violated")] == ["output-shape"]
    assert Contract(model=WrongOutput, output="B 3").check(["output-spec"]).ok  # declared: it wins


def test_annotations_without_jaxtyping_and_keywords() -> None:
    made = Contract(model=Plain)
    assert made.inputs == {
        "ids": Tokens("B T", vocab=11),
        "weight": Floats("B T"),
        "mask": Mask("B T"),  # as a mask: a row without any true is no use
    }
    assert made.check(FAST).ok


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Bare, "Bare.forward: no parameter gives its shape"),
        (Ids, r"Ids.forward\(ids\).*which whole numbers"),
        (Half, r"Half.forward\(y\).*gives no shape"),
        (lambda: 1 / 0, "division by zero"),
        (lambda: 3, "must return an nn.Module; it returned a value of type int"),
    ],
)
def test_what_they_do_not_say_is_an_error(model: Any, words: str) -> None:
    with pytest.raises(DeclarationError, match=words) as raised:
        Contract(model=model)
    assert "inputs='B 3 H W'" in str(raised.value)


def test_declared_inputs_and_batches_come_first() -> None:
    built.clear()
    assert Contract(model=says_nothing, inputs="N 4").inputs == "N 4"
    assert Contract(model=says_nothing, batch=((torch.ones(2, 4),), None)).inputs is None
    assert not built
