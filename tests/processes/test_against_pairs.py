"""Refactorings and silent changes between a commit and the checkout, through git and pytest: some of the unit tests' pairs."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests import forked

HERE = Path(__file__).parent
HEAD = """
import math
import torch
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Contract, Labels, Tokens

"""


def load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAIRS = load(HERE.parent / "unit" / "change" / "change_pairs.py")
UNCHANGED = dict(list(PAIRS.UNCHANGED.items())[::4])
CHANGED = dict(list(PAIRS.CHANGED.items())[::3])


def module_of(name: str) -> str:
    return f"{name.replace(' ', '_')}.py"


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_pairs_of_versions_are_judged_as_it_should_be(tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    (repo / "nets").mkdir(parents=True)
    (repo / "tests").mkdir()
    (repo / "pyproject.toml").write_text(
        '[tool.pytest.ini_options]\npythonpath = ["."]\n', encoding="utf-8"
    )
    (repo / ".gitignore").write_text("__pycache__\n", encoding="utf-8")
    (repo / "nets" / "__init__.py").touch()
    for name in (*UNCHANGED, *CHANGED):
        (repo / "nets" / module_of(name)).write_text(HEAD + PAIRS.BLOCK, encoding="utf-8")
        imported = f"from nets.{module_of(name)[:-3]} import net\n"
        (repo / "tests" / f"test_{module_of(name)}").write_text(imported, encoding="utf-8")
    git(repo, "init", "-q", "-b", "main")
    git(repo, "add", ".")
    git(repo, "commit", "-q", "-m", "first")
    for name, replacements in UNCHANGED.items():
        text = HEAD + PAIRS.edited(replacements)
        (repo / "nets" / module_of(name)).write_text(text, encoding="utf-8")
    for name, (replacements, *_) in CHANGED.items():
        text = HEAD + PAIRS.edited(replacements)
        (repo / "nets" / module_of(name)).write_text(text, encoding="utf-8")
    git(
        repo, "add", f"nets/{module_of(next(iter(CHANGED)))}"
    )  # a staged change counts as one that is not
    before = git(repo, "status", "--porcelain"), (repo / ".git" / "index").read_bytes()
    report = tmp_path / "report.json"
    arguments = (
        "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", "-n2", "--torchcheck",
        "--torchcheck-checks=against", "--torchcheck-against=main", f"--torchcheck-json={report}",
    )  # fmt: skip
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    done = forked.run(
        forked.pytest_main, arguments, folder=repo, environment=environment, timeout=580
    )
    assert done.status == 1, done.out + done.err
    assert before == (git(repo, "status", "--porcelain"), (repo / ".git" / "index").read_bytes())
    found: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(report.read_text(encoding="utf-8"))["contracts"]:
        file = one["node"].partition("::")[0]
        found[Path(file).name.removeprefix("test_")] = one["findings"]
    for name in UNCHANGED:
        assert [f["code"] for f in found[module_of(name)]] == ["held"], name
    for name, (_, code, blamed, line) in CHANGED.items():
        (finding,) = [f for f in found[module_of(name)] if f["status"] == "violated"]
        assert finding["code"] == code, name
        assert finding["culprits"][0]["name"] == blamed, name
        assert finding["location"]["text"] == line, name
        assert finding["location"]["file"].endswith(module_of(name)), name
