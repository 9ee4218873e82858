"""What is declared wrongly is an error where it is declared, with what was given and what is allowed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract, DeclarationError, assert_gradcheck, measure_memory, promises
from pytest_torchcheck.specs import Edges, Ints, Labels, Mask, Packed, Sparse, SpecError, Tokens
from pytest_torchcheck.strategies import batches


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        (
            lambda: batches(x="B 3", sizes={"Q": (1, 3)}),
            r"sizes\['Q'\]: no spec has.*symbols are: B",
        ),
        (lambda: batches(m=Mask("B T", of="ids")), "refers to 'ids', which does not come before"),
        (lambda: batches(m=Mask("B T", lengths="n")), "refers to 'n'"),
        (lambda: Edges("3 E", nodes=4), "shape = '3 E': an edge index is '2 E' or 'E 2'"),
        (lambda: batches(x=Packed("B")), "rows and steps"),
        (lambda: batches(x=Sparse("A B C", layout="csr")), "csr tensor has two axes"),
        (lambda: Labels("B", classes="ten"), "classes = 'ten': must be a whole number"),
        (lambda: Labels("B", classes=3, ignore_index=0.5), "ignore_index = 0.5"),
        (lambda: Tokens("B T", vocab=None), "vocab = None: must be a whole number"),
        (lambda: Ints("B", high="9"), "high = '9': must be a whole number"),
    ],
)
def test_specs(declare, says):
    with pytest.raises(SpecError, match=says):
        declare()


def declared(**fields):
    return Contract(model=nn.Linear(4, 2), inputs="B 4", **fields)


def test_contracts():
    with pytest.raises(DeclarationError, match=r"sizes\['b'\]: no spec has .*symbols are: B"):
        declared(sizes={"b": (1, 3)})
    with pytest.raises(DeclarationError, match=r"dataset: got an empty dict"):
        Contract(dataset={})
    with pytest.raises(
        DeclarationError, match="examples: must be a whole number of at least 1; got 0"
    ):
        declared().check(["batch-sizes"], examples=0)
    with pytest.raises(
        DeclarationError, match="step: 'train' is not a step; choose from 'training' and"
    ):
        measure_memory(declared(), step="train")
    with pytest.raises(TypeError, match=r"a Contract is needed.*got Linear"):
        measure_memory(nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"inputs": ("B 4", "B"), "batch_dim": 2}, r"no input has a dimension 2; x0 has 2; allowed: 0, 1"),
        ({"batch": torch.zeros(6, 4, 3), "batch_dim": 3}, "x has 3; allowed: 0, 1, 2"),
        ({"inputs": "B 4", "batch_dim": -1}, "batch_dim = -1: dimensions are counted from the front"),
    ],
)  # fmt: skip
def test_a_dimension_of_the_batch_that_no_input_has(fields, says):
    with pytest.raises(DeclarationError, match=says):
        Contract(model=nn.Bilinear(4, 4, 2), **fields)


def test_dimensions_of_the_batch_that_an_input_has_or_may_have():
    assert Contract(model=nn.LSTM(4, 3), inputs="T B 4", batch_dim=1).batch_dim == 1
    assert Contract(model=nn.Identity(), inputs="*S 4", batch_dim=2).batch_dim == 2
    assert Contract(model=nn.Bilinear(4, 4, 2), inputs=("4", "B C 4"), batch_dim=1).batch_dim == 1


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * g * x


def test_a_function_may_be_named_by_its_class():
    assert_gradcheck(Square, (torch.randn(3),))
    report = Contract(functions={"square": (Square, (torch.randn(3),))}).check(["gradcheck"])
    assert [f.status for f in report.findings] == ["passed"]


def test_an_estimator_is_declared_by_its_name():
    promise = promises.StraightThrough("Round", reason="no gradient of its own")
    assert promise.functions == ("Round",)
    with pytest.raises(promises.PromiseError, match="must name autograd Functions"):
        promises.StraightThrough(3, reason="none")
