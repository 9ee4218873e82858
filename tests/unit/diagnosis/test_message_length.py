"""Explaining an error takes no longer for a longer message: it may hold a printed tensor or a whole file."""

from __future__ import annotations

import re
import re._constants as kinds
import re._parser as parser
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.diagnosis.crashes import explain
from pytest_torchcheck.diagnosis.crashes import explain as errors
from pytest_torchcheck.diagnosis.crashes.table import Entry, entries
from pytest_torchcheck.state.devices import _RANGE

if TYPE_CHECKING:
    from collections.abc import Iterator


def starts_without_end(pattern: str) -> bool:
    """Say whether a search with this pattern takes the square of a text's length where nothing matches.

    It does so where it begins with a repetition that has no end, and may begin anywhere within what that takes.
    """
    for operation, argument in _first(parser.parse(pattern)):
        if operation in (kinds.ASSERT_NOT, kinds.ASSERT, kinds.AT):
            return False
        if operation in (kinds.MAX_REPEAT, kinds.MIN_REPEAT):
            return bool(argument[1] == kinds.MAXREPEAT)
    return False


def _first(parsed: Any) -> Iterator[tuple[Any, Any]]:
    """Yield what a pattern begins with; groups are opened, and what may be missing is passed over."""
    for operation, argument in parsed:
        if operation is kinds.SUBPATTERN:
            yield from _first(argument[-1])
            return
        if operation is kinds.BRANCH:
            for branch in argument[1]:
                yield from _first(branch)
            return
        if operation is kinds.MAX_REPEAT and argument[0] == 0 and argument[1] == 1:
            continue
        yield operation, argument
        if operation is not kinds.ASSERT_NOT:
            return


def test_what_counts_as_a_start_without_end() -> None:
    assert starts_without_end(r"(\w+) is not")
    assert starts_without_end(r"\"?(?P<f>\S+): x")
    assert starts_without_end(r"(?:.*a|b)")
    for fine in (
        r"(?<!\w)(\w+) is not",
        r"^(\w+) x",
        r"size (\d+)",
        r"\"?(?<!\w)(\w+)",
        r"a{1,9}b",
    ):
        assert not starts_without_end(fine)


def test_no_pattern_of_the_table_starts_without_end() -> None:
    patterns = [entry.pattern.pattern for entry in entries()]
    assert len(patterns) > 200
    assert [pattern for pattern in patterns if starts_without_end(pattern)] == []
    assert not starts_without_end(_RANGE.pattern)


class Searched:
    """Stands for a pattern and counts the characters that it is asked to look at."""

    def __init__(self) -> None:
        self.most = 0

    def search(self, text: str) -> None:
        self.most = max(self.most, len(text))


class Reciting(nn.Module):
    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.head = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"cannot go on: {self.words}")


@pytest.mark.parametrize(
    "unit", ["a", "7", "[", "'\"", " ", "\n", "a.b.", "(x) ", "\x1b", "\u202e"]
)
def test_what_is_searched_and_told_does_not_grow(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Searched()
    pattern: Any = counting
    known = list(entries())
    monkeypatch.setattr(
        errors, "entries", lambda: [Entry(pattern=pattern, explain=lambda *_: None), *known]
    )
    texts = []
    for length in (20_000, 80_000):
        words = (unit * length)[:length]
        report = Contract(model=Reciting(words), batch=torch.randn(2, 2)).check(["backward"])
        (finding,) = report.findings
        assert (finding.status, finding.code) == ("violated", "crash")
        texts.append(str(finding))
    assert 0 < counting.most <= explain.SEARCHED
    assert len(texts[0]) == len(texts[1]) < 3000


def test_torchs_words_are_found_in_front_of_data() -> None:
    class Long(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            try:
                found: torch.Tensor = self.head(torch.cat([x, x], 1))
            except RuntimeError as error:
                raise RuntimeError(f"{error}; the values: " + "0.123, " * 9000) from None
            return found

    (finding,) = Contract(model=Long(), batch=torch.randn(3, 2)).check(["backward"]).findings
    assert finding.code == "matmul-shapes"
    assert re.search(r"\b4\b", finding.observed + finding.summary)
