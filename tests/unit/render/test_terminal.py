from __future__ import annotations

import os

import pytest

from pytest_torchcheck.findings import ContractViolation, Culprit, Finding, Location, Report
from pytest_torchcheck.render.terminal import followers, render_finding, render_report
from pytest_torchcheck.render.text import shorten_path, sparkline

CUT = Finding(
    check="gradients-exist",
    code="grad-none",
    status="violated",
    summary="encoder.proj.weight got no gradient (1 of 14 parameters)",
    culprits=(Culprit(kind="parameter", name="encoder.proj.weight"),),
    location=Location(
        file=os.path.abspath("models/net.py"),
        line=41,
        text="h = self.encoder(x).detach()",
        function="build.<locals>.Net.forward",
    ),
    observed="backward ran, loss 2.303; 13 parameters have a gradient, 1 has None",
    cause="the graph is cut between encoder and head",
    because="encoder output has grad_fn=AddmmBackward0; head input has grad_fn=None",
    fix="drop .detach() on line 41",
    reproduce='pytest "tests/test_net.py::test_net" --torchcheck --torchcheck-seed=7',
    device="cpu",
    dtype="float32",
)


def test_the_anatomy_of_a_failure():
    assert str(CUT).splitlines() == [
        "encoder.proj.weight got no gradient (1 of 14 parameters) [grad-none]",
        "where     Net.forward, models/net.py:41: h = self.encoder(x).detach()",
        "observed  backward ran, loss 2.303; 13 parameters have a gradient, 1 has None",
        "cause     the graph is cut between encoder and head",
        "because   encoder output has grad_fn=AddmmBackward0; head input has grad_fn=None",
        "fix       drop .detach() on line 41",
        'again     pytest "tests/test_net.py::test_net" --torchcheck --torchcheck-seed=7',
    ]


def test_the_exception_starts_with_its_summary():
    error = ContractViolation([CUT, CUT])
    assert str(error).startswith("encoder.proj.weight got no gradient")
    assert str(error).count("[grad-none]") == 2


def test_empty_fields_take_no_line():
    finding = Finding(status="violated", code="x", summary="a  b\nc", fix="do it")
    assert str(finding) == "a b c [x]\nfix       do it"


@pytest.mark.parametrize(
    ("status", "line"),
    [
        ("suspicious", "suspicious: it may be [x]"),
        ("inconclusive", "inconclusive: it may be [x]"),
        ("passed", "passed: it may be"),
        ("not-applicable", "not applicable: it may be"),
    ],
)
def test_other_statuses_say_so(status, line):
    assert str(Finding(status=status, code="x", summary="it may be")) == line


def test_twelve_lines_at_most_and_the_fix_is_cut_last():
    words = "word " * 150
    finding = CUT.replace(observed=words, cause=words, because=words, fix="one edit " * 20)
    lines = str(finding).splitlines()
    assert len(lines) == 12
    assert sum(line.endswith(" …") for line in lines) == 3
    assert "one edit one edit" in str(finding)
    fix = [line for line in lines if line.startswith("fix")]
    assert not fix[0].endswith("…")
    labels = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert labels == ["where", "observed", "cause", "because", "fix", "again"]


def test_continuation_lines_are_indented_and_paths_are_never_broken():
    finding = CUT.replace(cause="long " * 40, reproduce="x " * 90)
    lines = str(finding).splitlines()
    assert all(line.startswith(" " * 10) for line in lines if not line[0].isalpha())
    assert max(len(line) for line in lines if not line.startswith("again")) <= 100
    assert [line for line in lines if line.startswith("again")] == [
        "again     " + ("x " * 90).strip()
    ]


def test_where_also_names_the_place_of_the_culprit():
    made = Location(file=os.path.abspath("models/net.py"), line=9, text="self.table = ...")
    finding = CUT.replace(culprits=(Culprit(kind="buffer", name="table", location=made),))
    assert "detach(); table: models/net.py:9" in str(finding)
    only = finding.replace(location=None)
    assert "where     models/net.py:9: self.table = ..." in str(only)
    same = finding.replace(location=made)
    assert str(same).count("models/net.py") == 1


def test_paths_outside_the_current_folder_stay_whole(tmp_path, monkeypatch):
    inside = tmp_path / "a" / "b.py"
    monkeypatch.chdir(tmp_path)
    assert shorten_path(str(inside)) == os.path.join("a", "b.py")
    assert shorten_path("/elsewhere/b.py") == "/elsewhere/b.py"
    assert shorten_path(str(tmp_path.parent / "c.py")) == str(tmp_path.parent / "c.py")


def test_evidence_grows_with_verbosity():
    finding = CUT.replace(
        evidence={
            "losses": [2.0, 1.0, float("nan"), 0.5],
            "layers": [{"name": "a", "rms": 1.25}, {"name": "b", "rms": 1e-9}],
            "holders": ["Tensor [3]", "list cache", "Net"],
            "lines": [
                {"file": os.path.abspath("a.py"), "line": 3, "text": "x = y", "bytes": 2**20},
                {"where": "b.py:1", "bytes": 2**30},
            ],
            "seed": 7,
        }
    )
    assert "loss by step" not in render_finding(finding)
    text = render_finding(finding, verbosity=1)
    assert "2 █▃×▁ 0.5  (4 steps, lowest 0.5)" in text
    assert "  b     1e-09" in text
    assert "    held by list cache" in text
    assert text.index("1.0 GiB  b.py:1") < text.index("1.0 MiB  a.py:3: x = y")
    assert "seed  7" not in text
    more = render_finding(finding, verbosity=2)
    assert "seed  7" in more
    assert "parameter  encoder.proj.weight" in more


def test_long_tables_are_cut_below_verbosity_2():
    rows = [{"name": f"layer{i}", "rms": float(i)} for i in range(50)]
    finding = CUT.replace(evidence={"layers": rows})
    assert "… 30 more" in render_finding(finding, verbosity=1)
    assert "layer49" in render_finding(finding, verbosity=2)


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([1.0, 2.0], "▁█"),
        ([3.0, 3.0], "▁▁"),
        ([float("nan"), float("inf")], "××"),
        ([], ""),
    ],
    ids=["rise", "flat", "not finite", "none"],
)
def test_sparkline(values, drawn):
    assert sparkline(values) == drawn


def test_a_long_sparkline_is_thinned_but_keeps_its_ends():
    drawn = sparkline([10.0, *[0.0] * 500, 5.0], width=20)
    assert len(drawn) == 20
    assert drawn[0] == "█"
    assert drawn[-1] != "▁"


STATIC = Finding(
    check="weights-update", code="weight-static", status="violated", device="cpu", dtype="float32",
    summary="encoder.proj.weight did not move", root=CUT.key,
)  # fmt: skip
MAYBE = Finding(
    check="seeding", code="could-not-fail", status="inconclusive", summary="no dropout here"
)
FINE = Finding(check="backward", code="held", status="passed", summary="two steps ran")
REPORT = Report(
    contract="net", findings=(FINE, CUT, STATIC, MAYBE), seconds=1.25, environment={"torch": "2"}
)


def test_a_report_lists_causes_once():
    text = str(REPORT)
    assert text.startswith(
        "net: violated; 1 cause, 1 more failure of the same cause, 1 inconclusive, 1 passed in 1.2 s"
    )
    assert "  gradients-exist  1 violated\n" in text
    assert text.count("[grad-none]") == 1
    assert (
        "also failing, same cause: weights-update[cpu-float32]: encoder.proj.weight did not move [weight-static]"
        in text
    )
    assert "  seeding: no dropout here" in text
    assert "two steps ran" not in text
    assert (
        text.index("[grad-none]") < text.index("also failing") < text.index("could not have failed")
    )


def test_verbosity_of_a_report():
    assert "gradients-exist  1 violated" not in render_report(REPORT, verbosity=-1)
    text = render_report(REPORT, verbosity=2)
    assert "  backward: two steps ran" in text
    assert "  torch  2" in text
    assert str(Report(contract="net", findings=())) == "net: nothing checked; no check ran"


def test_a_follower_whose_cause_is_elsewhere_is_told_in_full():
    text = str(Report(contract="net", findings=(STATIC,)))
    assert "encoder.proj.weight did not move [weight-static]" in text
    assert f"follows from {CUT.key}" in text


def test_followers_stand_under_the_cause_that_they_share_most_with():
    other = CUT.replace(culprits=(Culprit(kind="parameter", name="head.bias"),))
    follower = STATIC.replace(culprits=(Culprit(kind="parameter", name="head.bias"),))
    grouped = followers((CUT, other, follower))
    assert [len(group) for _, group in grouped] == [0, 1]
    cuda = CUT.replace(device="cuda")
    grouped = followers((CUT, cuda, STATIC.replace(device="cuda")))
    assert [len(group) for _, group in grouped] == [0, 1]


def test_a_suspicious_follower_is_told_once():
    idle = STATIC.replace(status="suspicious", summary="encoder is idle", code="module-idle")
    text = str(Report(contract="net", findings=(CUT, idle)))
    assert text.count("encoder is idle") == 1
    assert "suspicious: encoder is idle" in text
