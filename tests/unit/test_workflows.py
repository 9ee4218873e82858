"""The example workflows: they parse, their commands exist, and what can run here runs."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_torchcheck.cli import changed, main
from pytest_torchcheck.plugin.options import SETTINGS
from tests import forked

yaml: Any = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
GITHUB = ROOT / "docs" / "ci" / "github.yml"
GITLAB = ROOT / "docs" / "ci" / "gitlab.yml"
HOOKS = ROOT / ".pre-commit-hooks.yaml"
NET = """
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Labels, contract


@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return {model}


def test_that_fails():
    raise AssertionError("an ordinary test")
"""


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps() -> list[dict[str, Any]]:
    (job,) = read(GITHUB)["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def commands(path: Path) -> list[list[str]]:
    lines = (
        [step["run"] for step in steps() if "run" in step]
        if path == GITHUB
        else read(GITLAB)["contracts"]["script"]
    )
    return [shlex.split(line) for line in lines]


def the_pytest(path: Path) -> list[str]:
    (found,) = [command for command in commands(path) if command[0] == "pytest"]
    return found


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=["github", "gitlab"])
def test_every_option_of_the_commands_exists(path: Path) -> None:
    known = {setting.flag for setting in SETTINGS}
    given = {one.partition("=")[0] for one in the_pytest(path) if one.startswith("--torchcheck-")}
    assert given
    assert given <= known
    assert {command[0] for command in commands(path)} <= {"pip", "pytest"}


def test_what_github_uploads_is_what_the_run_writes() -> None:
    assert read(GITHUB)[True]["push"]  # YAML reads the key "on" as true
    written = {one.partition("=")[2] for one in the_pytest(GITHUB) if "=" in one}
    scanned = [step["with"]["sarif_file"] for step in steps() if "sarif" in step.get("uses", "")]
    kept = next(
        s["with"]["path"].split() for s in steps() if "upload-artifact" in str(s.get("uses"))
    )
    assert {*scanned, *kept} <= written
    for step in steps():
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"[\w-]+/[\w/-]+@v\d+", step.get("uses", "a/b@v1"))


def test_what_gitlab_keeps_is_what_the_run_writes() -> None:
    job = read(GITLAB)["contracts"]
    written = {one.partition("=")[2] for one in the_pytest(GITLAB) if "=" in one}
    assert {*job["artifacts"]["paths"], job["artifacts"]["reports"]["junit"]} <= written


@pytest.mark.parametrize("path", [GITHUB, GITLAB], ids=["github", "gitlab"])
def test_the_run_itself(path: Path, tmp_path: Path) -> None:
    pytest.importorskip("xdist")
    text = NET.format(model="nn.Linear(6, 3)").replace("raise AssertionError", "str")
    (tmp_path / "test_net.py").write_text(text, encoding="utf-8")
    arguments = [*the_pytest(path)[1:], "--torchcheck-checks=backward", "-p", "no:cacheprovider"]
    done = forked.run(forked.pytest_main, tuple(arguments), folder=tmp_path)
    assert done.status == 0, done.out + done.err
    files = {one.partition("=")[2] for one in arguments if "=" in one and "." in one}
    assert [file for file in files if not (tmp_path / file).exists()] == []


def test_the_hook_of_the_docs_is_that_of_the_repository() -> None:
    (hook,) = read(HOOKS)
    page = (ROOT / "docs" / "ci" / "index.md").read_text(encoding="utf-8")
    block = page.partition('```yaml title=".pre-commit-config.yaml"\n')[2].partition("```")[0]
    (shown,) = yaml.safe_load(block)["repos"][0]["hooks"]
    same = ("id", "name", "entry", "language", "types", "require_serial")
    assert {name: shown[name] for name in same} == {name: hook[name] for name in same}


def in_a_fork(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
    """Run ``python -m pytest`` as a process of its own that need not import torch again."""
    assert command[:3] == [sys.executable, "-m", "pytest"]
    done = forked.run(forked.pytest_main, tuple(command[3:]), folder=Path.cwd())
    return subprocess.CompletedProcess(command, done.status, done.out, done.err)


def test_the_hook_runs_contracts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (hook,) = read(HOOKS)
    program, *arguments = shlex.split(hook["entry"])
    assert [program, *arguments[:3]] == ["python", "-m", "pytest_torchcheck", "changed"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    files = {
        "test_sound.py": NET.format(model="nn.Linear(6, 3)"),
        "test_broken.py": NET.format(model="nn.Linear(5, 3)"),
        "test_plain.py": "import pytest_torchcheck\ndef test_it(): assert False\n",
        "tool.py": "raise RuntimeError\n",
    }
    for name, text in files.items():
        Path(name).write_text(text, encoding="utf-8")
    few = [*arguments[2:], "--torchcheck-checks=backward"]
    monkeypatch.setattr(changed.subprocess, "run", in_a_fork)
    assert main([*few, "tool.py", "gone.py", "notes.md"]) == 0
    assert main([*few, "test_plain.py"]) == 0  # nothing is collected
    assert main([*few, "test_sound.py", "tool.py"]) == 0
    assert main([*few, "test_broken.py"]) == 1
