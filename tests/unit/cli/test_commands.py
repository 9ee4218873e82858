"""The commands: what they print, what they refuse, and their exit status."""

from __future__ import annotations

import os
import pkgutil
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
from torch import nn

from pytest_torchcheck import Contract, codes
from pytest_torchcheck.catalogue import catalogue
from pytest_torchcheck.catalogue.check import Need
from pytest_torchcheck.cli import CommandError, doctor, explain, main
from pytest_torchcheck.cli.checks import LINES, described, short
from pytest_torchcheck.cli.explain import pages
from pytest_torchcheck.codes.explainer import Explainer

ROOT = Path(__file__).resolve().parents[3]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    try:
        status = main(arguments)
    except SystemExit as stopped:
        status = int(stopped.code or 0)
    out, err = capsys.readouterr()
    return status, out, err


def test_the_pages_are_those_of_gallery_and_checks() -> None:
    gallery = {path.parent.name for path in (ROOT / "tests" / "gallery").glob("*/expected.txt")}
    assert set(pages()["codes"]) > gallery
    assert set(pages()["checks"]) == set(catalogue())
    for code in gallery:
        text = pages()["codes"][code]
        expected = (ROOT / "tests" / "gallery" / code / "expected.txt").read_text(encoding="utf-8")
        assert expected.strip() in text
        assert "](" not in text, f"{code} has a link that leads nowhere from a terminal"


def test_a_code_a_check_and_a_code_without_example(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "explain", "[grad-none]")
    assert (status, out.splitlines()[0]) == (0, "grad-none")
    assert "drop .detach()" in out
    assert "-        h = self.backbone(x).detach()" in out
    status, out, _ = run(capsys, "explain", "causality")
    assert status == 0
    assert catalogue()["causality"].summary in out
    for other in ("device-sync", "worker-died", "no-cache"):  # no program of the gallery shows them
        assert explain.page(other).startswith(f"{other}\n\n")
        assert "It has no example here" in explain.page(other)


def test_every_code_has_a_page() -> None:
    """Whatever stands in brackets behind a failure can be explained."""
    named = {
        code
        for module in pkgutil.iter_modules(codes.__path__)
        for value in vars(import_module(f"{codes.__name__}.{module.name}")).values()
        if isinstance(value, Explainer)
        for code in value.codes.split()
    }
    assert named - set(pages()["codes"]) == set()


def test_an_unknown_code_gets_the_nearest_names(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = run(capsys, "explain", "gradnone")
    assert (status, out) == (1, "")
    assert "did you mean grad-none," in err
    with pytest.raises(CommandError, match="no code or check is named 'zzz'"):
        explain.page("zzz")


def test_what_is_not_understood_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ((), ("wat",), ("explain",), ("init", "a:b", "--runs", "x")):
        status, _, err = run(capsys, *arguments)
        assert status == 2
        assert err.startswith("usage: python -m pytest_torchcheck")
    status, out, _ = run(capsys, "--help")
    assert status == 0
    assert "0 done; 1 it cannot be done" in " ".join(out.split())


def test_every_need_has_a_line_that_meets_it() -> None:
    assert set(LINES) == set(get_args(Need))


def test_what_one_more_line_would_add_is_so() -> None:
    plain = Contract(model=lambda: nn.Linear(3, 2), inputs="B 3")
    text = described("net", plain)
    before, _, after = text.partition("one more line would add:")
    assert re.match(rf"net: \d+ of {len(catalogue())} checks apply", before)
    assert "skipped: the reason" in described(
        "net",
        Contract(model=lambda: nn.Linear(3, 2), inputs="B 3", skip={"backward": "the reason"}),
    )
    lines = {
        line.strip(): names.replace("\n", " ").split()
        for line, names in re.findall(r"^    (\S.*)\n((?:      .*\n?)+)", after, re.M)
    }
    more = Contract(model=plain.model, inputs="B 3", memory="1 MiB")
    for name in (word.strip(",") for word in lines['memory="64 MiB"']):
        assert catalogue()[name].missing(plain) is not None
        assert catalogue()[name].missing(more) is None
    assert "backward" in before.partition("do not apply:")[0]


def test_the_short_table_leaves_no_check_out() -> None:
    """Every check applies, or is counted in a row with what is missing for it."""
    contract = Contract(
        model=lambda: nn.Linear(3, 2), inputs="B 3", skip={"backward": "too slow here"}
    )
    head, _, *rows = short("net", contract).splitlines()
    applies, total = map(int, re.findall(r"\d+", head)[:2])
    told = 0
    for row in rows:
        named = row.rpartition("  ")[2]
        more = re.search(r" and (\d+) more$", named)
        told += len(named.partition(" and ")[0].split(", ")) + (int(more[1]) if more else 0)
    assert applies + told == total == len(catalogue())
    assert len(rows) < 15
    assert max(map(len, rows)) <= 100
    assert any("skipped: too slow here" in row and "backward" in row for row in rows)


def test_a_file_is_listed_with_the_contracts_in_its_lists(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "listed_contracts_of_test.py"
    file.write_text(
        "from torch import nn\nfrom pytest_torchcheck import Contract\n"
        "one = Contract(model=nn.Linear(2, 2), inputs='B 2')\n"
        "more = {'a': one, 'b': Contract(model=nn.Linear(3, 2), inputs='B 3')}\n"
    )
    for verbose in ((), ("-v",)):
        status, out, _ = run(capsys, "checks", str(file), *verbose)
        assert status == 0
        assert re.findall(r"^(\S+): \d+ of", out, re.M) == ["one", "more.b"]
    for name, text, told in (
        ("empty", "x = 1\n", "declares no contract"),
        ("broken", "1 / 0\n", "ZeroDivisionError"),
    ):
        other = tmp_path / f"{name}_contracts_of_test.py"  # of one name, bytecode could be reused
        other.write_text(text)
        status, _, err = run(capsys, "checks", str(other))
        assert status == 1
        assert told in err
    status, _, err = run(capsys, "checks", str(tmp_path / "none.py"))
    assert status == 1
    assert "no such file" in err


def test_the_doctor_says_what_a_bug_report_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHCHECK_REQUIRE", "cuda")
    monkeypatch.setenv("SECRET_TOKEN", "never shown")
    Path("pytest.ini").write_text("[pytest]\ntorchcheck_strict = true\nother = 1\n")
    text = "\n".join(doctor.lines())
    for part in (
        "pytest-torchcheck ", "python 3.", "torch ", "devices: cpu", "torchcheck (", "lightning",
        "TORCHCHECK_REQUIRE=cuda", "  pytest.ini: torchcheck_strict = true",
    ):  # fmt: skip
        assert part in text
    assert "never shown" not in text
    assert "other = 1" not in text


def test_the_doctor_says_whether_pytest_loads_the_plugin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> str:
        (line,) = [one for one in doctor.lines() if one.startswith("pytest-torchcheck in pytest: ")]
        return line.partition(": ")[2]

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.delenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", raising=False)
    assert told() == "loaded by itself"
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    assert told() == (
        "not loaded by itself: PYTEST_DISABLE_PLUGIN_AUTOLOAD is set; unset it, "
        "or give pytest -p pytest_torchcheck.plugin"
    )
    monkeypatch.setattr(doctor.metadata, "entry_points", lambda group: ())
    assert told().startswith("not loaded by itself: no installed package names it to pytest")
    Path("pytest.ini").write_text("[pytest]\naddopts = -p no:torchcheck\n")
    assert told() == "switched off by -p no:torchcheck"


def test_checks_that_need_an_accelerator_are_counted_apart() -> None:
    declared = Contract(model=nn.Linear(2, 2), inputs="B 2", name="net")
    elsewhere = [
        check
        for check in catalogue().values()
        if check.devices and "cpu" not in check.devices and check.missing(declared) is None
    ]
    assert elsewhere
    told = rf"net: \d+ of \d+ checks apply, {len(elsewhere)} of them on an accelerator only$"
    assert re.match(told, short("net", declared).splitlines()[0])
    assert re.match(told, described("net", declared).splitlines()[0])


def test_it_runs_as_a_module_outside_of_the_project(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest_torchcheck", "explain", "graph-carried"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout.startswith("graph-carried")
