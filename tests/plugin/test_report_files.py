"""The files of a run: JSON by its published schema, SARIF 2.1.0, one line of Markdown, a page with the source."""

from __future__ import annotations

import json
import linecache
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from pytest_torchcheck.findings import Culprit, Edit, Finding, Location, Report
from pytest_torchcheck.render.html import render_html
from pytest_torchcheck.render.sarif import sarif
from pytest_torchcheck.render.source import excerpt
from pytest_torchcheck.render.terminal import summary_line
from pytest_torchcheck.verdicts import inconclusive, passed, suspicious, violated

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "schema" / "report-1.json").read_text(encoding="utf-8"))
MODULE = """
import torch
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Labels, contract


class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        with torch.no_grad():
            h = self.stem(x).tanh()
        return self.head(h)


@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def cut():
    return Frozen()


@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def sound():
    return nn.Linear(6, 3)
"""
CHECKS = "--torchcheck-checks=gradients-exist,weights-update,dead-units"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of one real run that wrote all reports."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "test_nets.py").write_text(MODULE, encoding="utf-8")
    files = [f"--torchcheck-{kind}=report.{kind}" for kind in ("json", "sarif", "markdown", "html")]
    files.append("--junitxml=report.xml")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--torchcheck",
        CHECKS,
        *files,
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "GITHUB_ACTIONS": "true",
        "GITHUB_WORKSPACE": str(folder),
        "GITHUB_STEP_SUMMARY": str(folder / "step.md"),
    }
    (folder / "step.md").write_text("# before\n", encoding="utf-8")
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return folder


def known_keys(schema: dict[str, Any], value: Any, path: str = "report") -> None:
    """Walk a report beside the schema: every field that is written is described."""
    if "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        schema = next(
            one for one in schema["anyOf"] if (value is None) == (one.get("type") == "null")
        )
        return known_keys(schema, value, path)
    if isinstance(value, dict) and "properties" in schema:
        assert set(schema["required"]) <= set(value), path
        for key, item in value.items():
            assert key in schema["properties"], f"{path}.{key} is not in the schema"
            known_keys(schema["properties"][key], item, f"{path}.{key}")
    elif isinstance(value, list) and "items" in schema:
        for item in value:
            known_keys(schema["items"], item, f"{path}[]")
    elif "enum" in schema:
        assert value in schema["enum"], path
    return None


def test_a_real_report_has_the_fields_of_the_schema_and_no_others(written: Path) -> None:
    report = json.loads((written / "report.json").read_text(encoding="utf-8"))
    known_keys(SCHEMA, report)
    assert report["format"] == SCHEMA["properties"]["format"]["const"]
    assert [contract["verdict"] for contract in report["contracts"]] == ["violated", "ok"]


def test_a_real_report_is_valid_by_the_schema(written: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    report = json.loads((written / "report.json").read_text(encoding="utf-8"))
    jsonschema.validate(report, SCHEMA)
    report["contracts"][0]["findings"][0]["status"] = "fine"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(report, SCHEMA)


def test_the_log_of_code_scanning_names_the_line_of_the_cause_once(written: Path) -> None:
    log = json.loads((written / "report.sarif").read_text(encoding="utf-8"))
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    (result,) = run["results"]  # what follows from the cause is no result of its own
    assert result["ruleId"] == "gradients-exist/grad-none"
    rule = run["tool"]["driver"]["rules"][result["ruleIndex"]]
    assert rule["id"] == result["ruleId"]
    # code scanning on GitHub refuses a rule without these
    assert all(rule[text]["text"] for text in ("shortDescription", "fullDescription", "help"))
    assert re.search(r"[^.]\.$", rule["fullDescription"]["text"])
    (place,) = result["locations"]
    physical = place["physicalLocation"]
    assert physical["artifactLocation"] == {"uri": "test_nets.py", "uriBaseId": "SRCROOT"}
    line = MODULE.splitlines()[physical["region"]["startLine"] - 1]
    assert physical["region"]["snippet"]["text"] == line.strip()
    assert place["logicalLocations"][0]["fullyQualifiedName"] == "test_nets.py::cut"


def test_one_line_of_markdown_and_the_summary_of_the_step(written: Path) -> None:
    line = (written / "report.markdown").read_text(encoding="utf-8")
    assert line.count("\n") == 1
    assert line.startswith("**torchcheck**: 1 violated, 1 ok of 2 contracts — cut: stem.weight")
    assert r"\[grad-none\]" in line
    assert (written / "step.md").read_text(encoding="utf-8") == f"# before\n{line}"


def test_the_page_shows_the_source_around_the_line(written: Path) -> None:
    page = (written / "report.html").read_text(encoding="utf-8")
    shown = page.partition('aria-label="source">')[2].partition("</pre>")[0]
    assert "<mark>&gt;   15      with torch.no_grad():</mark>" in shown
    assert "\n    17      return self.head(h)" in shown


def test_a_file_that_has_changed_since_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text("a = 1\nb = 2\n", encoding="utf-8")
    assert [line.here for line in excerpt(Location(file=str(file), line=2, text="b = 2"))] == [
        False,
        True,
    ]
    assert excerpt(Location(file=str(file), line=2, text="b = 3")) == []
    assert excerpt(Location(file=str(file), line=9, text="b = 2")) == []


def test_a_suggested_edit_is_a_diff_on_the_page_and_a_fix_for_code_scanning(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    lines = ["def f(x):", "    y = g(x)", "    h = y.detach()  # <cut>", "    return h", ""]
    file.write_text("\n".join(lines), encoding="utf-8")
    edit = Edit(file=str(file), line=3, old=lines[2], new="    h = y  # <cut>", tried="passes")
    named = Location(file=str(file), line=3, text=lines[2].strip())
    broken = violated("grad-none", "cut", location=named, fix="drop it").replace(
        check="gradients-exist", edit=edit
    )
    page = render_html([Report(contract="net", findings=(broken,))])
    shown = page.partition('aria-label="suggested edit">')[2].partition("</pre>")[0]
    assert [line for line in shown.splitlines() if "h = y" in line or "g(x)" in line] == [
        "     2      y = g(x)",
        "<del>-    3      h = y.detach()  # &lt;cut&gt;</del>",
        "<ins>+    3      h = y  # &lt;cut&gt;</ins>",
    ]
    assert 'aria-label="source"' not in page  # the same lines once
    assert "with which this finding is gone" in page
    (result,) = log_of(broken, root=tmp_path)
    (change,) = result["fixes"][0]["artifactChanges"]
    (replaced,) = change["replacements"]
    region = replaced["deletedRegion"]
    start, end = region["startColumn"] - 1, region["endColumn"] - 1
    assert lines[region["startLine"] - 1][start:end] == edit.old
    assert replaced["insertedContent"]["text"] == edit.new
    elsewhere = broken.replace(location=Location(file=str(file), line=2, text="y = g(x)"))
    both = render_html([Report(contract="net", findings=(elsewhere,))])
    assert both.count('<pre class="source"') == 2
    file.write_text("changed\n" * 5, encoding="utf-8")
    linecache.checkcache(str(file))
    assert "suggested edit" not in render_html([Report(contract="net", findings=(broken,))])


INSIDE = {
    "testsuites": {"testsuite"},
    "testsuite": {"properties", "testcase", "system-out", "system-err"},
    "testcase": {"skipped", "error", "failure", "system-out", "system-err", "properties"},
    "properties": {"property"},
}
"""Which elements JUnit's XML allows inside which; properties of a test case are pytest's own addition."""


def test_the_junit_file_has_the_elements_that_ci_servers_read(written: Path) -> None:
    root = ET.parse(written / "report.xml").getroot()
    for element in root.iter():
        assert {inner.tag for inner in element} <= INSIDE.get(element.tag, set()), element.tag
    (suite,) = root
    cases = list(suite.iter("testcase"))
    assert int(suite.attrib["tests"]) == len(cases)
    assert int(suite.attrib["failures"]) == len(list(suite.iter("failure"))) > 0
    names = {(case.attrib["classname"], case.attrib["name"]) for case in cases}
    assert len(names) == len(cases)  # servers tell test cases apart by these two
    failure = next(suite.iter("failure"))
    assert "stem.weight" in failure.attrib["message"]
    for each in suite.iter("property"):
        assert each.attrib.keys() == {"name", "value"}


def log_of(*findings: Finding, root: Path) -> list[dict[str, Any]]:
    report = Report(contract="net", findings=findings)
    log = sarif([("tests/test_x.py::net", report)], root=root, version="1")
    results: list[dict[str, Any]] = log["runs"][0]["results"]
    return results


def test_levels_suppressions_and_places_that_are_not_known(tmp_path: Path) -> None:
    inside = Location(file=str(tmp_path / "a b" / "net.py"), line=3, text="x = 1")
    outside = Location(file="/elsewhere/lib.py", line=9)
    broken = violated("one", "one", location=inside).replace(check="backward")
    results = log_of(
        broken,
        broken.replace(code="two", root="backward/one"),
        suspicious("three", "three", location=outside).replace(check="backward"),
        violated("four", "four", culprits=(Culprit(kind="module", name="m"),)).replace(
            check="backward", status="known"
        ),
        passed("fine"),
        inconclusive("five", "open"),
        root=tmp_path,
    )
    assert [(one["ruleId"], one["level"]) for one in results] == [
        ("backward/one", "error"),
        ("backward/three", "warning"),
        ("backward/four", "warning"),
    ]
    places = [one["locations"][0]["physicalLocation"]["artifactLocation"] for one in results]
    assert places == [
        {"uri": "a%20b/net.py", "uriBaseId": "SRCROOT"},
        {"uri": "file:///elsewhere/lib.py"},
        {"uri": "tests/test_x.py", "uriBaseId": "SRCROOT"},
    ]
    assert ["suppressions" in one for one in results] == [False, False, True]


def test_many_causes_are_counted_and_markup_in_names_is_text() -> None:
    causes = tuple(violated("bad", f"a|b<{n}> *x*").replace(check=f"c{n}") for n in range(4))
    line = summary_line([Report(contract="n_1", findings=causes)])
    assert line.endswith("; and 2 more\n")
    assert r"n\_1: a\|b\<0\> \*x\* \[bad\]" in line
    assert (
        summary_line([Report(contract="n", findings=(passed("p"),))])
        == "**torchcheck**: 1 contract ok\n"
    )
    assert summary_line([]) == "**torchcheck**: no contract ran\n"
