"""Every seeded wrong Function is found, once, with the right relation and line."""

from __future__ import annotations

import inspect
from collections import Counter

import functions_wrong as wrong
import pytest
import torch

from pytest_torchcheck.functions.engine import check_function


def marked_lines(function: type) -> set[int]:
    lines, start = inspect.getsourcelines(function)
    return {start + i for i, line in enumerate(lines) if "# BUG" in line}


@pytest.mark.parametrize("case", wrong.CASES, ids=lambda c: c.function.__name__)
def test_found_and_explained(case):
    torch.manual_seed(0)
    findings = check_function(case.function.apply, case.inputs(), **case.options)
    found = [f for f in findings if f.status in ("violated", "suspicious")]
    assert [(f.status, f.code) for f in found] == [(case.status, case.code)], [
        f.summary for f in findings
    ]
    (finding,) = found
    words = " ".join(
        [finding.summary, finding.observed, finding.cause, finding.because, finding.fix]
    )
    assert case.says in words
    assert finding.culprits[0].name == case.function.__name__
    assert finding.cause
    assert finding.because
    assert finding.fix
    if case.names_line:
        assert finding.location is not None
        assert finding.location.line in marked_lines(case.function), finding.location
    else:
        assert finding.location is not None
        assert finding.location.file == wrong.__file__


def test_at_least_two_for_each_clause():
    clauses = Counter(case.clause for case in wrong.CASES)
    assert {
        c: n
        for c, n in clauses.items()
        if n < 2 and c not in ("upstream ignored", "missing term", "relations", "upstream linear")
    } == {}
    assert len(wrong.CASES) >= 30


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(
    "name", ["Square", "MatmulTransposed", "NoSum", "NoConjugate", "SwappedProduct", "OneEntry"]
)
def test_the_relation_does_not_hang_on_the_draw(name, seed):
    case = next(c for c in wrong.CASES if c.function.__name__ == name)
    torch.manual_seed(seed)
    (finding,) = check_function(case.function.apply, case.inputs())
    assert finding.code == case.code


def test_fast_mode_alone_would_miss_it():
    """One wrong entry of 30 by 1 % hides from random directions; entry by entry it does not."""
    from pytest_torchcheck.functions.aspects.derivatives import check_first, check_screened
    from pytest_torchcheck.functions.binding import make_call
    from pytest_torchcheck.functions.preparation import prepare
    from pytest_torchcheck.functions.target import Target

    torch.manual_seed(0)
    target = prepare(
        make_call(wrong.OneEntry.apply, (torch.randn(5, 6),)), "OneEntry", redraw=False
    )
    assert isinstance(target, Target)
    assert not check_screened(target).violated
    assert check_first(target).violated


class _Squashed(torch.autograd.Function):
    """x tanh(x), with a wrong derivative of tanh."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.tanh()

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        t = x.tanh()
        slope = 1 - t * t * t.abs()
        _ = grad.sum()
        return grad * (t + x * slope)


def test_the_lines_that_compute_a_wrong_gradient_are_named():
    torch.manual_seed(0)
    (found,) = [f for f in check_function(_Squashed.apply, (torch.randn(3, 4),)) if f.code]
    assert (found.status, found.code) == ("violated", "gradcheck-mismatch")
    texts = [c.location.text for c in found.culprits if c.detail == "computes a part of it"]
    assert texts == ["slope = 1 - t * t * t.abs()", "t = x.tanh()"]
    assert "it is computed from lines" in found.because
