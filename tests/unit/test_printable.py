"""What the user's code says reaches no terminal and no file as it is."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
import torch
from torch import nn

from pytest_torchcheck import Contract
from pytest_torchcheck.findings import Culprit, Finding, Location, Report
from pytest_torchcheck.render.html import render_html
from pytest_torchcheck.render.terminal import render_report
from pytest_torchcheck.text.printable import message_of, printable, printable_data

HOSTILE = (
    "a\x1b]8;;http://x\x1b\\link\x1b]8;;\x07 \x9d0;t\x9c bell\x07 nul\x00 back\x08 "
    "rtl\u202e\u2067 mark\u200f lone\udcff\ud83d \ufffe del\x7f"
)


def bad_characters(text: str) -> list[str]:
    """Return what is a control, a mark of direction or a surrogate; tabs and line breaks are none."""
    odd = {"Cc", "Cs"}
    return [
        c
        for c in text
        if c not in "\n\t"
        and (
            unicodedata.category(c) in odd
            or unicodedata.bidirectional(c) in {"RLO", "LRO", "RLE", "LRE", "PDF", "RLI", "LRI"}
            or c in "\u200e\u200f\u061c\ufffe"
        )
    ]


def test_the_test_knows_what_is_bad() -> None:
    assert len(bad_characters(HOSTILE)) > 15


def test_controls_become_visible_and_colours_go() -> None:
    assert printable("plain: é, 漢字, שלום\n\tnext") == "plain: é, 漢字, שלום\n\tnext"
    assert printable("\x1b[1;31mred\x1b[0m") == "red"
    assert printable("a\r\nb\rc") == "a\nb\nc"
    assert printable("\x07\x1b]0;t\x9b\u202e\udc80") == r"\x07\x1b]0;t\x9b\u202e\udc80"
    assert bad_characters(printable(HOSTILE)) == []


def test_plain_data_is_kept_where_nothing_is_to_change() -> None:
    data = {"a": [1, 2.5, None, ("x", True)], "b": {"c": "text"}}
    assert printable_data(data) is data
    assert printable_data({"a\x07": [("\x00",)]}) == {r"a\x07": [(r"\x00",)]}


def test_no_field_of_a_finding_or_report_lets_them_through() -> None:
    place = Location(file=f"/{HOSTILE}.py", line=1, text=HOSTILE, function=HOSTILE)
    finding = Finding(
        check="backward",
        code="crash",
        status="violated",
        summary=HOSTILE,
        culprits=(Culprit(kind="module", name=HOSTILE, detail=HOSTILE, location=place),),
        location=place,
        observed=HOSTILE,
        cause=HOSTILE,
        because=HOSTILE,
        fix=HOSTILE,
        reproduce=HOSTILE,
        evidence={HOSTILE: [HOSTILE, {"deep": HOSTILE}]},
        contract=HOSTILE,
    )
    report = Report(contract=HOSTILE, findings=(finding,))
    page = render_html([report])
    page.encode()
    for text in (render_report(report, verbosity=2), page, str(finding)):
        assert bad_characters(text) == []
    text = report.to_json()
    text.encode()
    assert Report.from_json(text) == report
    assert bad_characters(json.dumps(json.loads(text), ensure_ascii=False)) == []


class Shouting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(HOSTILE)


class Mute(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


class Mumbling(Shouting):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise Mute


def test_a_message_without_a_text_is_told_as_such() -> None:
    assert message_of(Mute()) == "(its __str__ raises KeyError)"
    assert message_of(ValueError("a\x07")) == r"a\x07"


@pytest.mark.parametrize("model", [Shouting, Mumbling])
def test_a_model_that_raises_is_told_in_plain_text(model: type[nn.Module]) -> None:
    contract = Contract(model=model, batch=torch.randn(2, 3))
    report = contract.check(["backward"])
    (finding,) = report.findings
    assert (finding.status, finding.code) == ("violated", "crash")
    assert bad_characters(render_report(report, verbosity=2)) == []
    report.to_json().encode()


@pytest.mark.parametrize(
    ("error", "told"), [(Mute, False), (ValueError, False), (OSError("full"), True)]
)
@pytest.mark.parametrize("plainly", [True, False])
def test_a_message_that_is_not_there_is_not_pointed_to(
    error: Any, told: bool, plainly: bool
) -> None:
    class Raising(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if plainly:
                raise error
            return (_ for _ in ()).throw(error)

    (finding,) = (
        Contract(model=lambda: Raising(3, 2), batch=torch.randn(2, 3)).check(["backward"]).findings
    )
    assert ("message" in finding.cause + finding.fix) is told, str(finding)
    assert finding.because.startswith("the message is" if told else "it has no message")
