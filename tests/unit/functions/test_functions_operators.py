"""Operators registered with torch.library: opcheck's verdicts get a name, a line and an edit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pytest_torchcheck.functions.operators import check_operator


@torch.library.custom_op("tcheck_right::sine", mutates_args=())
def sine(x: Tensor) -> Tensor:
    return x.sin()


@sine.register_fake
def _(x):
    return torch.empty_like(x)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


sine.register_autograd(lambda ctx, g: g * ctx.saved_tensors[0].cos(), setup_context=_save)


@torch.library.custom_op("tcheck_wrong::mutates", mutates_args=())
def mutates(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.clone()


@torch.library.custom_op("tcheck_wrong::fake_shape", mutates_args=())
def fake_shape(x: Tensor) -> Tensor:
    return x.sum(0)


@fake_shape.register_fake
def fake_of_shape(x):
    return torch.empty_like(x)


@torch.library.custom_op("tcheck_wrong::fake_dtype", mutates_args=())
def fake_dtype(x: Tensor) -> Tensor:
    return x > 0


@fake_dtype.register_fake
def fake_of_dtype(x):
    return torch.empty_like(x)


@torch.library.custom_op("tcheck_wrong::no_fake", mutates_args=())
def no_fake(x: Tensor) -> Tensor:
    return x.exp()


@torch.library.custom_op("tcheck_wrong::alias", mutates_args=())
def alias(x: Tensor) -> Tensor:
    return x.view(-1)


@torch.library.custom_op("tcheck_wrong::twice", mutates_args=())
def twice(x: Tensor) -> Tensor:
    return x.sin()


@twice.register_fake
def _(x):
    return torch.empty_like(x)


def twice_backward(ctx, g):
    (x,) = ctx.saved_tensors
    return 2 * g * x.cos()


twice.register_autograd(twice_backward, setup_context=_save)


def test_a_right_operator_passes():
    (finding,) = check_operator(sine, (torch.randn(3, 4),))
    assert finding.status == "passed"


@pytest.mark.parametrize(
    ("operator", "status", "code", "line"),
    [
        (mutates, "violated", "opcheck-mutation", "tcheck_wrong::mutates"),
        (fake_shape, "violated", "opcheck-fake", "@fake_shape.register_fake"),
        (fake_dtype, "violated", "opcheck-fake", "@fake_dtype.register_fake"),
        (no_fake, "suspicious", "opcheck-fake-missing", "tcheck_wrong::no_fake"),
        (alias, "violated", "opcheck-alias", "tcheck_wrong::alias"),
        (twice, "violated", "gradcheck-scale", "return 2 * g * x.cos()"),
    ],
    ids=lambda v: getattr(v, "_name", None),
)
def test_wrong_operators_are_explained(operator, status, code, line):
    (finding,) = check_operator(operator, (torch.randn(3, 4),))
    assert (finding.status, finding.code) == (status, code)
    assert line in finding.location.text
    assert finding.culprits[0].name.startswith("tcheck_wrong::")
    assert finding.fix


def test_torch_own_operators_pass():
    pytest.importorskip("expecttest")
    from torch.testing._internal.custom_op_db import custom_op_db

    for entry in custom_op_db:
        if entry.name in (
            "NumpyMulCustomOp",
            "NumpyTakeCustomOp",
            "NumpyViewCopyCustomOp",
            "NumpyNMSCustomOp",
        ):
            sample = next(iter(entry.sample_inputs("cpu", torch.float64, requires_grad=True)))
            findings = check_operator(entry.op, (sample.input, *sample.args))
            assert [f.status for f in findings] == ["passed"], findings[0].summary
