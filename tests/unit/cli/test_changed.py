"""``changed``: which contracts run for which changed files, and what it says where none does."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from pytest_torchcheck.cli import changed, main
from pytest_torchcheck.cli.changed import Project

FILES = {
    "src/mill/__init__.py": "",
    "src/mill/grind.py": "from .stones import wheel\n",
    "src/mill/stones.py": "import torch\nwheel = 1\n",
    "src/mill/flour.py": "sacks = 2\n",
    "src/mill/unused.py": "",
    "tests/conftest.py": "from helpers import seed\n",
    "tests/helpers.py": "seed = 3\n",
    "tests/test_grind.py": "from pytest_torchcheck import contract\nfrom mill.grind import wheel\n",
    "tests/test_flour.py": "def test():\n    from pytest_torchcheck import check\n    import mill.flour\n",
    "tests/test_plain.py": "import mill.flour\n",
    "tests/declared.py": "from pytest_torchcheck import contract\nfrom mill import stones\n",
    "tests/test_passed_on.py": "from declared import *\n",
    "benchmark.py": "import pytest_torchcheck\nimport mill.stones\n",
    "broken.py": "def (\n",
    ".venv/lib/test_mill.py": "import pytest_torchcheck, mill.stones\n",
}


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _found(root: Path, *names: str) -> list[str]:
    found = Project(root).contract_files({(root / name).resolve() for name in names})
    return [file.relative_to(root.resolve()).as_posix() for file in found]


@pytest.mark.parametrize(
    ("changed_file", "expected"),
    [
        ("src/mill/stones.py", ["tests/test_grind.py", "tests/test_passed_on.py"]),
        ("src/mill/grind.py", ["tests/test_grind.py"]),
        ("src/mill/flour.py", ["tests/test_flour.py"]),
        (
            "src/mill/__init__.py",
            ["tests/test_flour.py", "tests/test_grind.py", "tests/test_passed_on.py"],
        ),
        (
            "tests/helpers.py",
            ["tests/test_flour.py", "tests/test_grind.py", "tests/test_passed_on.py"],
        ),
        ("src/mill/unused.py", []),
        ("broken.py", []),
    ],
)
def test_the_test_files_that_rest_on_a_file(
    mill: Path, changed_file: str, expected: list[str]
) -> None:
    assert _found(mill, changed_file) == expected


def test_a_file_that_is_gone_still_has_its_name(mill: Path) -> None:
    (mill / "src/mill/stones.py").unlink()
    assert _found(mill, "src/mill/stones.py") == ["tests/test_grind.py", "tests/test_passed_on.py"]


def test_test_files_are_those_that_the_project_says(mill: Path) -> None:
    (mill / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npython_files = [\n    "bench*.py",\n]\n', encoding="utf-8"
    )
    assert _found(mill, "src/mill/stones.py") == ["benchmark.py"]


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    commands: list[list[str]] = []
    run = subprocess.run

    def note(command: list[str], **keywords: Any) -> Any:
        if command[0] == "git":
            return run(command, **keywords)
        commands.append(command)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(changed.subprocess, "run", note)
    return commands


def test_the_contracts_of_a_changed_model_run(mill: Path, called: list[list[str]]) -> None:
    assert main(["changed", "--torchcheck-checks=backward", "src/mill/grind.py"]) == 0
    assert [command[-2:] for command in called] == [
        ["--torchcheck-checks=backward", str(Path("tests/test_grind.py"))]
    ]


def test_a_changed_file_that_names_the_package_runs_once(
    mill: Path, called: list[list[str]]
) -> None:
    assert main(["changed", "benchmark.py", "tests/test_grind.py", "src/mill/grind.py"]) == 0
    assert called[0][-2:] == ["benchmark.py", "tests/test_grind.py"]


def test_where_none_imports_them_it_says_so(
    mill: Path, called: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["changed", "src/mill/unused.py", "README.md"]) == 0
    assert capsys.readouterr().out == (
        "no contract file imports the changed files (src/mill/unused.py, README.md)\n"
    )
    assert not called


def test_without_files_git_says_which(
    mill: Path, called: list[list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["changed"]) == 1
    assert "name them: changed FILE ..." in capsys.readouterr().err

    def git(*arguments: str) -> None:
        given = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *given, *arguments], check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "mill")
    assert main(["changed"]) == 0
    assert capsys.readouterr().out == "no file has changed since the last commit\n"
    (mill / "src/mill/grind.py").write_text("wheel = 4\n", encoding="utf-8")
    (mill / "src/mill/new.py").write_text("", encoding="utf-8")
    assert main(["changed"]) == 0
    assert called[-1][-1] == str(Path("tests/test_grind.py"))
