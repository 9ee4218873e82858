"""What a run tells at its end: summary, annotations, JSON and HTML, all from findings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_torchcheck.findings import Finding, Location, Report
from pytest_torchcheck.plugin import reporting
from pytest_torchcheck.plugin.reporting import github_annotations, summary
from pytest_torchcheck.verdicts import inconclusive, passed, suspicious, violated

if TYPE_CHECKING:
    import pytest

HERE = Location(file=str(Path.cwd() / "net.py"), line=7, text="h = h.detach()")


def report(name: str, *findings: Finding) -> tuple[str, Report]:
    made = tuple(
        finding.replace(check=finding.check or "a-check", contract=name) for finding in findings
    )
    return f"test_models.py::{name}", Report(contract=name, findings=made, seconds=1.0)


def test_the_summary_tells_causes_once_and_first() -> None:
    cut = violated("grad-none", "w got no gradient", location=HERE).replace(check="gradients-exist")
    still = violated("weight-static", "w does not move").replace(
        check="weights-update", root="gradients-exist/grad-none"
    )
    lost = violated("weight-static", "v does not move").replace(root="elsewhere/gone")
    # one item each, as pytest counts them; what a failed one says beside its violation is none
    twice = [passed(told).replace(check="seeding") for told in ("equal", "and restored")]
    lines = summary(
        [
            report("good", passed("fine")),
            report("doubtful", suspicious("norm-high", "high"), inconclusive("open")),
            report("bad", cut, still, lost, passed("fine"), *twice),
        ]
    )
    assert [text for text, _ in lines] == [
        "test_models.py::bad: violated: 1 cause, 2 that follow, 1 passed",
        "  w got no gradient [grad-none] (net.py:7)",
        "    also failing for it: weights-update",
        "  v does not move [weight-static] (follows from elsewhere/gone)",
        "test_models.py::good: ok: 1 passed",
        "test_models.py::doubtful: ok: 1 suspicious, 1 inconclusive",
        "3 contracts: 1 violated, 2 ok; 6 checks in 3.0 s",
    ]
    assert [markup for _, markup in lines][-3:] == [
        {"green": True},
        {"yellow": True},
        {"bold": True},
    ]


def test_many_sound_contracts_take_one_line() -> None:
    many = [report(f"net{number}", passed("fine")) for number in range(30)]
    assert [text for text, _ in summary(many)] == [
        "30 contracts: 0 violated, 30 ok; 30 checks in 30.0 s"
    ]
    assert len(summary(many, verbosity=1)) == 31


def test_annotations_are_workflow_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_WORKSPACE", str(Path.cwd().parent))
    folder = Path.cwd().name
    bad = violated("grad-none", "100% of w, v: none", location=HERE, observed="a\nb")
    lines = github_annotations(
        [
            report("net", bad, bad.replace(root="a-check/grad-none"), passed("fine"))[1],
            report("other", suspicious("norm-high", "high"))[1],
        ]
    )
    assert lines == [
        (
            f"::error file={folder}/net.py,line=7,title=net%3A a-check::100%25 of w, v: none [grad-none]%0A"
            "where     net.py:7: h = h.detach()%0Aobserved  a%0A          b"
        ),
        "::warning title=other%3A a-check::suspicious: high [norm-high]",
    ]


def test_files_are_written_with_their_folders(pytester: pytest.Pytester, models: Any) -> None:
    models("@contract(**FIELDS)\ndef net():\n    return Net(cut=True)")
    result = pytester.runpytest_inprocess(
        "--torchcheck",
        "--torchcheck-checks=backward,gradients-exist",
        "--torchcheck-json=deep/found.json",
        "--torchcheck-html=deep/found.html",
    )
    result.stdout.fnmatch_lines(
        ["torchcheck: wrote deep/found.json", "torchcheck: wrote deep/found.html"]
    )
    document = json.loads((pytester.path / "deep/found.json").read_text())
    assert (document["format"], document["ok"]) == (1, False)
    assert document["settings"]["checks"] == ["backward", "gradients-exist"]
    [contract] = document["contracts"]
    assert (contract["node"], contract["contract"]) == ("test_models.py::net", "net")
    assert [(case["case"], case["outcome"]) for case in contract["cases"]] == [
        ("backward[cpu-float32]", "passed"),
        ("gradients-exist[cpu-float32]", "failed"),
    ]
    assert contract["environment"]["torch"]
    rebuilt = Report.from_json(json.dumps(contract))
    assert [finding.code for finding in rebuilt.findings] == ["held", "grad-none"]
    page = (pytester.path / "deep/found.html").read_text()
    assert "grad-none" in page
    assert page.lstrip().lower().startswith("<!doctype html>")


def test_annotations_only_on_github(
    pytester: pytest.Pytester, models: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    models("@contract(**FIELDS)\ndef net():\n    return Net(cut=True)")
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    arguments = ("--torchcheck", "--torchcheck-checks=gradients-exist")
    pytester.runpytest_inprocess(*arguments).stdout.no_fnmatch_line("::error*")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    pytester.runpytest_inprocess(*arguments).stdout.fnmatch_lines(
        ["::error file=test_models.py,line=*,title=net*"]
    )


def test_a_quiet_run_has_no_section(pytester: pytest.Pytester, models: Any) -> None:
    models("@contract(**FIELDS)\ndef net():\n    return Net()")
    result = pytester.runpytest_inprocess("--torchcheck", "--torchcheck-checks=backward", "-qq")
    result.stdout.no_fnmatch_line("*= torchcheck =*")


def test_escaping() -> None:
    assert reporting._escape("a%b\r\n:,") == "a%25b%0D%0A:,"
    assert reporting._escape("a:b,c", field=True) == "a%3Ab%2Cc"
