"""Flame graphs: widths are shares, names are escaped, what is too narrow is left out."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from pytest_torchcheck.render.timeline import flame_svg

STACKS = [
    {"frames": ["forward", "block", "net.py:3: x = a<b", "mul"], "value": 60.0},
    {"frames": ["forward", "block", "net.py:4: y = x", "add"], "value": 15.0},
    {"frames": ["backward", "mul"], "value": 24.99},
    {"frames": ["optimizer", "tiny"], "value": 0.01},
]


def test_widths_are_shares_of_the_whole() -> None:
    drawn = flame_svg(STACKS)
    ET.fromstring(drawn)
    widths = {
        name: float(width)
        for name, width in re.findall(
            r'<title>([\w.: =&;]+): [\d.,]+ us, [\d.]+ %</title><rect x="[\d.]+" y="\d+" width="([\d.]+)"',
            drawn,
        )
    }
    assert widths["forward"] == 720.0
    assert widths["block"] == 720.0
    assert widths["net.py:3: x = a&lt;b"] == 576.0
    assert "tiny" not in drawn


def test_nothing_is_drawn_of_nothing() -> None:
    assert "<rect" not in flame_svg([])
