"""Lines of the user's source: which of them ran, which of them match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from pytest_torchcheck import sources

if TYPE_CHECKING:
    from collections.abc import Callable


def made(fast: bool) -> Callable[[int], int]:
    def double(x: int) -> int:
        if fast:
            return x << 1
        else:  # noqa: RET505
            return x + x

    return double


def shadowed(fast: bool) -> Callable[[int], int]:
    def double(x: int, fast: bool = fast) -> int:
        if not fast:
            return x + x
        return x << 1

    return double


def texts(function: Callable[..., object], pattern: str) -> list[str]:
    return [place.text for place in sources.matches(function, pattern)]


def test_a_branch_ruled_out_by_the_closure_holds_no_match() -> None:
    assert texts(made(True), "return") == ["return x << 1"]
    assert texts(made(False), "return") == ["return x + x"]


def test_an_argument_rules_nothing_out() -> None:
    assert len(texts(shadowed(True), "return")) == 2
    assert not sources.untaken_lines(shadowed(True))


def test_classes_and_builtins_have_no_untaken_lines() -> None:
    assert not sources.untaken_lines(dict)
    assert not sources.untaken_lines(len)


def test_the_nearest_line_above_stays_within_the_function() -> None:
    (last,) = sources.matches(made(False), r"x \+ x")
    found = sources.line_above(last, r"if fast")
    assert found is not None
    assert found.line == last.line - 3
    assert sources.line_above(last, r"^def made") is None


def early(fast: bool) -> Callable[[int], int]:
    def double(x: int) -> int:
        if fast:
            return x << 1
        return x + x

    return double


def test_what_follows_a_branch_that_returns_is_not_reached() -> None:
    assert texts(early(True), "return") == ["return x << 1"]
    assert texts(early(False), "return") == ["return x + x"]


def explained(parameter: object) -> str:
    """Set requires_grad = False
    requires_grad = False
    """
    words = "with requires_grad = False nothing trains"  # requires_grad = False
    name = str(parameter).replace("requires_grad = False", "")
    requires_grad = False  # as the words say
    return f"{words} {name} {requires_grad}"


def test_a_search_heeds_code_and_no_comments_or_texts() -> None:
    assert texts(explained, r"requires_grad = False") == [
        "requires_grad = False  # as the words say"
    ]
    assert texts(explained, r"^\s*requires_grad") == ["requires_grad = False  # as the words say"]
    assert len(sources.file_matches(__file__, r"\bx << 1")) == 3


def test_a_name_in_quotes_is_found() -> None:
    def named(model: object) -> object:
        return getattr(model, "weight")  # noqa: B009

    assert len(texts(named, r"\bweight\b")) == 1
    assert len(texts(named, r"[\"']weight[\"']")) == 1


class _Looped(torch.nn.Module):
    limit = 3

    def __init__(self):
        super().__init__()
        for name, start in (("mean", torch.zeros(2)), ("spread", torch.ones(2))):
            setattr(self, name, start)  # by a variable
        self.count = 0

    def update(self, values):
        self.mean = values.mean(0)
        self.count = self.count + 1
        self.last = values  # only here
        spread = values.std(0)
        self.spread = spread


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mean", "by a variable"),
        ("spread", "by a variable"),
        ("count", "self.count = 0"),
        ("last", "only here"),
        ("limit", "limit = 3"),
    ],
)
def test_an_attribute_is_found_where_it_is_made_first(name, text):
    place = sources.of_assignment(_Looped(), name)
    assert place is not None
    assert text in place.text


def test_an_attribute_of_nowhere_has_no_line():
    assert sources.of_assignment(_Looped(), "missing") is None


class _Opens:
    def __init__(self, path):
        self.path = path
        self.file = self.rows = None
        if path is not None:
            self.file = open(path)  # noqa: SIM115

    def load(self):
        self.rows = []


@pytest.mark.parametrize(
    ("name", "text"), [("file", "open(path)"), ("rows", "= None"), ("path", "self.path = path")]
)
def test_an_attribute_is_not_made_where_its_constructor_says_that_it_is_not_there_yet(name, text):
    place = sources.of_assignment(_Opens(None), name)
    assert place is not None
    assert text in place.text


class _Either(torch.nn.Module):
    def __init__(self, *, registered):
        super().__init__()
        if registered:
            self.register_buffer("table", torch.ones(2))
        else:
            self.table = torch.ones(2)


@pytest.mark.parametrize(("plain", "text"), [(False, "register_buffer"), (True, "self.table =")])
def test_what_is_registered_nowhere_was_made_by_a_plain_line(plain, text):
    place = sources.of_assignment(_Either(registered=not plain), "table", plain=plain)
    assert place is not None
    assert text in place.text
