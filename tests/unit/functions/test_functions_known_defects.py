"""Functions of others that are wrong: found here, and so kept out of the false-alarm corpus."""

from __future__ import annotations

import pytest
import torch

from pytest_torchcheck.functions.engine import check_function
from pytest_torchcheck.functions.target import Surrogate


@pytest.fixture
def database():
    pytest.importorskip("expecttest")
    from torch.testing._internal import autograd_function_db

    return autograd_function_db


def codes(findings, status="violated"):
    return {f.code for f in findings if f.status == status}


def test_cube_ignores_the_second_upstream_gradient(database):
    # backward returns grad_output * dinput + 6 * dinput: nothing of grad_saved, and not linear
    findings = check_function(database.CubeGenVmap.apply, (torch.rand(3) + 0.5,))
    assert "upstream-zero" in codes(findings)


def test_cube_not_composable_ignores_grad_output(database):
    findings = check_function(database.NumpyCubeNotComposable.apply, (torch.rand(3) + 0.5,))
    assert "gradcheck-upstream-ignored" in codes(findings)


def test_numpy_sort_does_not_sort(database):
    # forward returns x as it came, backward permutes the gradient
    findings = check_function(database.NumpySort.apply, (torch.randn(3, 5), 1))
    assert any(code.startswith("gradcheck") for code in codes(findings))


def test_scaled_gradient_is_declared_not_excused(database):
    # forward is the identity: nobody scales its gradient by accident, and it is reported all the same
    function = database.ScaleGradGenVmap
    undeclared = check_function(function.apply, (torch.randn(3),))
    assert codes(undeclared, "suspicious") == {"gradcheck-scale"}
    assert codes(undeclared) == set()
    meant = Surrogate(reason="scales gradients", of=lambda x: 3.14 * x)
    assert [
        f.status for f in check_function(function.apply, (torch.randn(3),), surrogate=meant)
    ] == ["passed"]
    other = Surrogate(reason="scales gradients", of=lambda x: 3 * x)
    assert codes(check_function(function.apply, (torch.randn(3),), surrogate=other)) == {
        "gradcheck-scale"
    }


def test_zeroed_gradients_are_declared(database):
    function = database.ZeroGradientsGenVmap
    inputs = torch.randn(3), torch.randn(2)
    undeclared = check_function(function.apply, inputs)
    assert codes(undeclared, "suspicious") == {"gradcheck-zero"}
    assert codes(undeclared) == set()
    meant = Surrogate(reason="stops gradients", of=lambda x, y: (0 * x, 0 * y))
    declared = check_function(function.apply, inputs, surrogate=meant)
    assert codes(declared) == codes(declared, "suspicious") == set()


def test_entmax_keeps_alpha_on_ctx():
    entmax = pytest.importorskip("entmax")
    findings = check_function(entmax.entmax_bisect, (torch.randn(3, 5), torch.tensor(1.4)))
    (finding,) = findings
    assert finding.status == "suspicious"
    assert finding.location.text == "ctx.alpha = alpha"
