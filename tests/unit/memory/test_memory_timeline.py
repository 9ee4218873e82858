from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
import torch
from memory_zoo import MLP

from pytest_torchcheck.findings import Finding
from pytest_torchcheck.probes.memory import MemoryTracker, Timeline, build_profile
from pytest_torchcheck.render.evidence import blocks
from pytest_torchcheck.render.timeline import timeline_svg

DATA = {
    "columns": 4,
    "phases": [["forward", 0, 2], ["backward", 2, 4]],
    "series": {"parameters": [10, 10, 10, 10], "activations": [0, 20, 30, 5]},
    "peak_bytes": 40,
    "peak_column": 2,
}


@pytest.fixture(scope="module")
def profile():
    torch.manual_seed(0)
    model = MLP(width=32, depth=3)
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.randn(16, 32)
    tracker = MemoryTracker(model=model, inputs=x)
    with tracker:
        model(x).sum().backward()
        optimizer.step()
    return build_profile(tracker)


def test_a_timeline_keeps_the_peak_and_the_order_of_phases(profile):
    totals = [sum(column) for column in zip(*profile.timeline.series.values(), strict=True)]
    assert max(totals) == profile.peak_bytes
    assert [name for name, _, _ in profile.timeline.phases] == [
        "forward",
        "loss",
        "backward",
        "optimizer",
    ]
    bounds = [edge for _, start, stop in profile.timeline.phases for edge in (start, stop)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == profile.timeline.columns


@pytest.mark.parametrize("columns", [5, 17, 40])
def test_thinning_keeps_the_peak(profile, columns):
    data = profile.timeline_data(columns)
    totals = [sum(column) for column in zip(*data["series"].values(), strict=True)]
    assert len(totals) == data["columns"] <= columns
    assert max(totals) == totals[data["peak_column"]] == profile.peak_bytes
    assert all(start < stop for _, start, stop in data["phases"])


def test_a_short_timeline_is_left_as_it_is():
    timeline = Timeline(columns=3, phases=(("forward", 0, 3),), series={"inputs": (1, 2, 3)})
    assert timeline.thinned(10) is timeline


def test_the_svg_is_well_formed_and_to_scale():
    text = timeline_svg(DATA, title="peak <40> & more")
    root = ET.fromstring(text)
    space = "{http://www.w3.org/2000/svg}"
    assert root.find(f"{space}title").text == "peak <40> & more"
    words = [node.text for node in root.iter(f"{space}text")]
    for word in ("forward", "backward", "parameters", "activations", "40 B", "20 B"):
        assert word in words
    areas = [node.attrib["d"] for node in root.iter(f"{space}path")]
    assert len(areas) == 2
    heights = [[float(y) for y in re.findall(r",([\d.]+)", area)] for area in areas]
    low, high = max(map(max, heights)), min(map(min, heights))
    assert max(heights[0]) - min(heights[0]) == pytest.approx((low - high) * 10 / 40, abs=0.2)


def test_the_svg_of_a_real_step_is_small(profile):
    text = timeline_svg(profile.timeline_data())
    assert len(text) < 20_000
    ET.fromstring(text)


def test_data_that_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="'activations' has 4 points where there are 5 columns"):
        timeline_svg({**DATA, "columns": 5, "series": {"activations": [1, 2, 3, 4]}})
    with pytest.raises(ValueError, match="at least one column"):
        timeline_svg({**DATA, "columns": 0, "series": {}})


def test_reports_show_the_timeline(profile):
    from pytest_torchcheck.findings import Report
    from pytest_torchcheck.render.html import render_html

    finding = Finding(
        check="peak-memory", code="memory-ceiling", status="violated", summary="peak is too high",
        evidence={"timeline": profile.timeline_data()},
    )  # fmt: skip
    (block,) = [b for b in blocks(finding) if b.title == "memory over the step"]
    drawn, phases = block.lines(90)
    assert "at most" in drawn
    assert "backward" in phases
    assert "<svg" in render_html([Report(contract="net", findings=(finding,))])
