"""Known findings as lines: what is recorded, read, sorted and matched."""

from __future__ import annotations

import pytest

from pytest_torchcheck.findings import Culprit, Finding, Location
from pytest_torchcheck.storage.baseline import (
    BaselineError,
    Known,
    known_of,
    matches,
    parse,
    render,
)


def finding(*names: str, device: str = "cpu", line: int = 3) -> Finding:
    return Finding(
        check="gradients-exist",
        code="grad-none",
        status="violated",
        summary=f"{len(names)} parameters",
        culprits=tuple(Culprit(kind="parameter", name=name) for name in names),
        location=Location(file="net.py", line=line),
        device=device,
        dtype="float32",
    )


def test_a_line_holds_no_place_and_no_number_of_the_run() -> None:
    one, other = finding("a.weight", line=3), finding("a.weight", line=90)
    assert known_of("t.py::net", one) == known_of("t.py::net", other)
    assert str(known_of("t.py::net", finding("b", "a"))) == (
        "t.py::net | gradients-exist | grad-none | a, b"
    )
    assert known_of("n", finding()).culprits == "-"
    assert known_of("n", finding(*"edcba")).culprits == "a, b, c and 2 more"
    assert known_of("n", finding("a|b\nc")).culprits == "a/b c"


def test_what_is_written_is_read_sorted_and_once() -> None:
    entries = [
        known_of("t.py::net", finding("b")),
        known_of("t.py::net", finding("a")),
        known_of("t.py::net", finding("a")),
        known_of("t.py::net[x | y]", finding("c")),
    ]
    text = render(entries)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines == sorted(lines)
    assert len(lines) == 3
    assert set(parse(text, "known.txt")) == set(entries)
    assert render(parse(text, "known.txt")) == text


def test_one_device_more_is_no_new_finding() -> None:
    cpu, cuda = known_of("n", finding("a")), known_of("n", finding("a", device="cuda:0"))
    assert cuda.check == "gradients-exist@cuda"
    assert matches({cpu: 1}, cuda)
    assert not matches({cuda: 1}, cpu)
    assert "@cuda" not in render([cpu, cuda])
    assert "@cuda" in render([cuda])


def test_what_a_check_that_is_left_out_would_report_is_known_from_another() -> None:
    recorded = Known("n", "backward", "crash", "forward")
    seen = Known("n", "gradients-exist", "crash", "forward")
    assert not matches({recorded: 1}, seen)
    assert not matches({recorded: 1}, seen, selected=["backward", "gradients-exist"])
    assert matches({recorded: 1}, seen, selected=["gradients-exist"])
    assert not matches({recorded: 1}, Known("n", "gradients-exist", "crash", "loss"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "# fine\n\nnet gradients-exist",
            r"known.txt:3: 'net gradients-exist' must be of the form",
        ),
        ("a | b | c", "known.txt:1"),
        ("<<<<<<< HEAD\n", "known.txt:1: a merge conflict; keep the lines of both sides"),
    ],
)
def test_other_lines_are_refused_with_their_number(text: str, told: str) -> None:
    with pytest.raises(BaselineError, match=told):
        parse(text, "known.txt")
