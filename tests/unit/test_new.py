"""The command that starts a new check makes one that runs, in a copy of the project."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import new

FAMILIES = ("influence", "numerics", "losses.bounds")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy what the command reads and writes."""
    root = tmp_path_factory.mktemp("project")
    skip = shutil.ignore_patterns("__pycache__", "compat", "gpu", "models", "soundness", "guides")
    shutil.copytree(ROOT / "pytest_torchcheck", root / "pytest_torchcheck", ignore=skip)
    (root / "tests").mkdir()
    for name in ("__init__.py", "new.py"):
        shutil.copy(ROOT / "tests" / name, root / "tests" / name)
    return root


def run(project: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(project)}
    return subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_new_checks_run_and_fail_only_for_what_is_left_to_write(project: Path) -> None:
    tests = []
    for family in FAMILIES:
        words = family.replace("_", "-").replace(".", "-")
        name, code = f"positive-{words}", f"negative-{words}"
        made = run(project, "-m", "tests.new", "check", name, "--family", family, "--code", code)
        assert made.returncode == 0, made.stderr
        tests.append(project / "tests" / "unit" / "checks" / f"test_{name.replace('-', '_')}.py")
    found = run(project, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, tests), "-rfE")
    assert "3 failed, 6 passed" in found.stdout, found.stdout
    for test in tests:
        assert f"{test.name}::test_nothing_is_left_to_write" in found.stdout


def test_nothing_is_overwritten(project: Path) -> None:
    command = ("-m", "tests.new", "check", "twice", "--family", "influence", "--code", "twice-told")
    assert run(project, *command).returncode == 0
    again = run(project, *command)
    assert again.returncode != 0
    assert "exists; nothing of it is overwritten" in again.stderr


@pytest.mark.parametrize("name", ["Not_A_Name", "two words", "-x"])
def test_a_name_that_is_none_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        new.main(["check", "--family", "loss", "--code", "a-code", "--", name])
    assert "lower-case words" in capsys.readouterr().err


def test_a_family_without_room_is_refused_and_others_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        new.main(["check", "a-check", "--family", "losses.nothing", "--code", "a-code"])
    assert "these have: agreement," in capsys.readouterr().err
