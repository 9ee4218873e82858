"""Declarations whose arguments do not fit: what was given, what is allowed, and a call that works as it is shown."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from dataclasses import dataclass

import pytest
from torch import nn

from pytest_torchcheck import Overfit, SlowerBy, promises, specs
from pytest_torchcheck.promises import Promise

PROMISES = [
    value
    for value in vars(promises).values()
    if inspect.isclass(value) and issubclass(value, Promise) and value is not Promise
]
SPECS = [getattr(specs, name) for name in specs.__all__]
SPECS = [s for s in SPECS if inspect.isclass(s) and issubclass(s, specs.TensorSpec)]
NAMES = {
    **{owner.__name__: owner for owner in (*PROMISES, *SPECS, SlowerBy, Overfit)},
    "Net": lambda: nn.Linear(2, 2), "run": print, "save": print, "load": print,
}  # fmt: skip
NEEDY = [
    owner
    for owner in (*PROMISES, *SPECS, SlowerBy)
    if any(
        p.default is p.empty and p.kind is not p.VAR_POSITIONAL
        for p in inspect.signature(owner).parameters.values()
    )
]


@pytest.mark.parametrize("owner", NEEDY, ids=lambda owner: owner.__name__)
def test_what_is_missing_is_named_and_the_shown_call_works(owner: type) -> None:
    with pytest.raises(ValueError, match=rf"^{owner.__name__}\(\) needs \w+") as caught:
        owner()
    shown = re.search(r"write (\w+\(.*?\)) \(arguments: ", str(caught.value))
    assert shown is not None
    assert isinstance(eval(shown[1], dict(NAMES)), owner)


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: promises.PaddingInvariant(mask="m"),
         "PaddingInvariant() needs ids; write PaddingInvariant(mask='m', ids=\"ids\")"),
        (lambda: promises.PaddingInvariant("x", "m"),
         "takes its arguments by name; write PaddingInvariant(ids='x', mask='m')"),
        (lambda: promises.Frozen("encoder.*"), "write Frozen('encoder.*', reason=\"why\")"),
        (lambda: promises.Tied("a", "b", "c"), "takes only a and b by position; write Tied(a='a', b='b')"),
        (lambda: promises.Deterministic(True), "Deterministic() takes no arguments; write Deterministic()"),
        (lambda: promises.Causal(output=3.5), "Causal(output=) must be an output's position (int)"),
        (lambda: promises.Causal(tim=1), "unknown name 'tim'; did you mean 'dim'?"),
        (lambda: specs.Labels("B", 10), "takes only shape by position; write Labels(shape='B', classes=10)"),
        (lambda: specs.Labels("B", shape="B", classes=2), "Labels() got shape twice"),
        (lambda: specs.Tokens("B T", vocab=9, special=3), "Tokens(special=) must be a tuple of ints; got 3"),
        (lambda: specs.Edges(nodes=3.5), "Edges(nodes=) must be a str or an int; got 3.5"),
        (lambda: specs.Floats("B", mean="high"), "Floats(mean=) must be a number or None; got 'high'"),
        (lambda: specs.Floats("B", requires_grad=1), "must be True or False; got 1"),
        (lambda: specs.Sparse("B 3", density="thin"), "Sparse(density=) must be a number; got 'thin'"),
        (lambda: Overfit(40), "takes its arguments by name; write Overfit(steps=40)"),
    ],
)  # fmt: skip
def test_a_call_that_does_not_fit(call: object, told: str) -> None:
    assert callable(call)
    with pytest.raises(ValueError) as caught:  # noqa: PT011  the words are compared
        call()
    assert told in str(caught.value)


def test_editors_pickles_and_copies_see_the_class_as_ever() -> None:
    assert list(inspect.signature(specs.Labels).parameters) == ["shape", "classes", "ignore_index", "dtype"]  # fmt: skip
    for made in (specs.Labels("B", classes=3), promises.PaddingInvariant(ids=0), promises.Frozen("a", reason="b")):  # fmt: skip
        assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == made


def test_a_promise_of_a_project_keeps_its_own_kinds() -> None:
    @dataclass(frozen=True)
    class Near(Promise):
        steps: int

    assert Near(1.5).steps == 1.5  # type: ignore[arg-type]
    with pytest.raises(
        promises.PromiseError, match=r"Near\(\) needs steps; write Near\(steps=\.\.\.\)"
    ):
        Near()  # type: ignore[call-arg]
