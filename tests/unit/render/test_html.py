from __future__ import annotations

import re
from html.parser import HTMLParser

from test_terminal import CUT, REPORT

from pytest_torchcheck.findings import Finding, Report
from pytest_torchcheck.render.html import render_html

VOID = {"meta"}


class Page(HTMLParser):
    """Collects tags and text, and checks that every element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))

    def all(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


FULL = CUT.replace(
    summary="weight <b> & more",
    evidence={
        "losses": [2.0, float("nan"), 1.0],
        "layers": [{"name": "a", "rms": 0.5}],
        "holders": ["Tensor", "cache"],
        "lines": [{"where": "a.py:3", "bytes": 2048}],
        "note": "<script>alert(1)</script>",
    },
)


def test_the_page_is_well_formed_and_loads_nothing():
    text = render_html([REPORT, Report(contract="fine", findings=())])
    page = Page(text)
    assert page.open == []
    assert text.startswith("<!DOCTYPE html>")
    assert page.all("html") == [{"lang": "en"}]
    for forbidden in ("<script", "<link", "src=", "@import", "url(", "http"):
        assert forbidden not in text
    assert "2 contracts, 1 violated by 1 cause" in page.text


def test_it_tells_what_the_terminal_tells():
    page = Page(render_html([REPORT]))
    for words in (CUT.summary, CUT.observed, CUT.cause, CUT.because, CUT.fix, CUT.reproduce):
        assert words in page.text
    assert "models/net.py:41: h = self.encoder(x).detach()" in page.text
    assert "1 more finding of the same cause" in page.text
    assert "no dropout here" in page.text
    assert "two steps ran" in page.text


def test_text_of_the_user_is_escaped():
    text = render_html([Report(contract="<net>", findings=(FULL,))], title="a & b")
    assert "<script>" not in text
    page = Page(text)
    assert page.open == []
    assert "weight <b> & more" in page.text
    assert "<net>" in page.text


def test_evidence_is_drawn_with_words_beside_it():
    page = Page(render_html([Report(contract="net", findings=(FULL,))]))
    (picture,) = page.all("svg")
    assert picture["role"] == "img"
    assert picture["aria-label"] == "loss by step: 2 at first, 1 after 3 steps, 1 not finite"
    assert len(page.all("circle")) == 1
    assert "2.0 KiB" in page.text
    assert "held by" in page.text


def test_links_lead_to_their_contract_and_tables_have_heads():
    page = Page(render_html([REPORT, Report(contract="fine", findings=())]))
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = [attrs["href"] for attrs in page.all("a")]
    assert len(links) == 3
    assert {link.removeprefix("#") for link in links} <= ids
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.all("th"))
    assert len(page.all("h1")) == 1


def test_every_status_has_a_place():
    statuses = ("violated", "suspicious", "inconclusive", "passed", "not-applicable")
    found = tuple(Finding(status=s, check=s, code=s, summary=f"summary of {s}") for s in statuses)
    text = Page(render_html([Report(contract="net", findings=found)])).text
    for status in statuses:
        assert f"summary of {status}" in text
    assert "none violated" in Page(render_html([Report(contract="net", findings=())])).text
