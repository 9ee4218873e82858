"""``--torchcheck-against``: the code of a git reference runs elsewhere, and the checkout stays as it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest

from tests import forked

if TYPE_CHECKING:
    from pathlib import Path

MODELS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, eps=1e-5):
        super().__init__()
        self.inner = nn.Linear(5, 8)
        self.norm = nn.LayerNorm(8, eps=eps)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.inner(x))))
"""
CONTRACTS = """
import torch.nn.functional as F
from shop.models import Net
from pytest_torchcheck import Contract, Labels

net = Contract(model=Net, inputs="B 5", targets=Labels("B", classes=3), loss=F.cross_entropy)
"""
SECOND = (
    CONTRACTS
    + """
small = Contract(model=lambda: Net(eps=1e-5), inputs="B 5")
"""
)

SLOW = """
    def state_dict(self, *args, **kwargs):
        import os, pathlib, time
        pathlib.Path(os.environ["MARK"]).write_text(str(os.getpid()))
        time.sleep(100)

"""


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout


def everything(folder: Path) -> dict[str, object]:
    """Return what a run must leave alone: refs, stash, worktrees, status, index and the files."""
    listed = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not {"__pycache__", ".git"} & set(path.relative_to(folder).parts)
    }
    return {
        "refs": git(folder, "for-each-ref"), "stash": git(folder, "stash", "list"),
        "worktrees": git(folder, "worktree", "list"), "files": listed,
        "index": (folder / ".git" / "index").read_bytes(), "head": (folder / ".git" / "HEAD").read_text(),
    }  # fmt: skip


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository of a package in a ``src`` folder, with a stash and a staged file."""
    folder = tmp_path / "shop"
    (folder / "src" / "shop").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "pyproject.toml").write_text(
        '[tool.pytest]\npythonpath = ["src"]\n', encoding="utf-8"
    )
    (folder / ".gitattributes").write_text("tests/ export-ignore\n", encoding="utf-8")
    (folder / ".gitignore").write_text("__pycache__\n", encoding="utf-8")
    (folder / "src" / "shop" / "__init__.py").touch()
    (folder / "src" / "shop" / "models.py").write_text(MODELS, encoding="utf-8")
    (folder / "tests" / "test_contracts.py").write_text(SECOND, encoding="utf-8")
    (folder / "tests" / "test_other.py").write_text(
        "import nowhere_to_be_found\n" + CONTRACTS, encoding="utf-8"
    )
    git(folder, "init", "-q", "-b", "main")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "notes.txt").write_text("put aside\n", encoding="utf-8")
    git(folder, "add", "notes.txt")
    git(folder, "stash", "-q")
    (folder / "staged.txt").write_text("staged\n", encoding="utf-8")
    git(folder, "add", "staged.txt")
    return folder


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert old in text
    file.write_text(text.replace(old, new), encoding="utf-8")


def run(folder: Path, *arguments: str) -> tuple[int, str]:
    """Run pytest there with no plugin of this project's tests."""
    temporary = folder.parent / "tmp"
    temporary.mkdir(exist_ok=True)
    environment = {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "160"}
    given = ("-p", "no:cacheprovider", "-p", "no:benchmark", "--torchcheck", "--torchcheck-checks=against", "-rs")  # fmt: skip
    done = forked.run(
        forked.pytest_main, (*given, *arguments), folder=folder, environment=environment
    )
    assert list(temporary.glob("torchcheck-*")) == []
    return done.status, done.out + done.err


def test_a_change_is_found_what_is_new_and_gone_is_said_and_the_checkout_stays(shop: Path) -> None:
    edit(shop / "src" / "shop" / "models.py", "eps=1e-5", "eps=1e-2")
    edit(shop / "tests" / "test_other.py", "import nowhere_to_be_found", "")
    contracts = shop / "tests" / "test_contracts.py"
    contracts.write_text(
        CONTRACTS + "\nlater = Contract(model=Net, inputs='B 5')\n", encoding="utf-8"
    )
    before = everything(shop)
    code, text = run(shop, "--torchcheck-against=main")
    assert everything(shop) == before
    assert code == 1, text
    assert "outputs changed since main" in text
    assert "first in norm (LayerNorm) [outputs-changed]" in text
    assert "def __init__(self, eps=1e-5):" in text
    assert "def __init__(self, eps=1e-2):" in text
    assert "tests/test_other.py cannot be imported at main" in text
    assert "No module named 'nowhere_to_be_found'" in text
    assert "there is no such contract at main" in text
    assert "tests/test_contracts.py::small was declared at main" in text


def test_workers_compare_and_tell_what_is_gone(shop: Path) -> None:
    edit(shop / "src" / "shop" / "models.py", "eps=1e-5", "eps=1e-2")
    edit(shop / "tests" / "test_other.py", "import nowhere_to_be_found", "")
    contracts = shop / "tests" / "test_contracts.py"
    contracts.write_text(CONTRACTS, encoding="utf-8")
    before = everything(shop)
    code, text = run(shop, "--torchcheck-against=main", "-n2")
    assert everything(shop) == before
    assert code == 1, text
    assert "1 failed, 1 skipped" in text
    assert "first in norm (LayerNorm) [outputs-changed]" in text
    assert text.count("tests/test_contracts.py::small was declared at main") == 1


def test_a_selected_contract_or_a_new_file_makes_no_other_gone(shop: Path) -> None:
    (shop / "tests" / "test_new.py").write_text(CONTRACTS, encoding="utf-8")
    chosen = ("tests/test_contracts.py::net", "tests/test_new.py")
    code, text = run(shop, "--torchcheck-against=main", *chosen)
    assert code == 0, text
    assert "1 passed, 1 skipped" in text
    assert "was declared at main" not in text


def test_a_model_of_the_command_line_is_compared(shop: Path) -> None:
    edit(shop / "src" / "shop" / "models.py", "eps=1e-5", "eps=1e-2")
    given = ("--torchcheck-model=shop.models:Net", "--torchcheck-inputs=B 5")
    code, text = run(shop, "--torchcheck-against=main", *given)
    assert code == 1, text
    assert "first in norm (LayerNorm) [outputs-changed]" in text
    assert "def __init__(self, eps=1e-5):" in text
    assert "pytest --torchcheck-model shop.models:Net" in text
    assert "--torchcheck-against=main" in text
    edit(shop / "src" / "shop" / "models.py", "eps=1e-2", "eps=1e-5")
    code, text = run(shop, "--torchcheck-against=main", *given)
    assert code == 0, text
    assert "1 passed" in text


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_an_interrupt_leaves_nothing_behind(shop: Path, workers: str) -> None:
    models = shop / "src" / "shop" / "models.py"
    models.write_text(MODELS.replace("    def forward", SLOW + "    def forward"), encoding="utf-8")
    git(shop, "commit", "-q", "-m", "slow", "--", "src/shop/models.py")
    models.write_text(MODELS, encoding="utf-8")
    before = everything(shop)
    temporary, mark = shop.parent / "tmp", shop.parent / "mark"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:benchmark", "--torchcheck", "--torchcheck-checks=against",
         "--torchcheck-against=main", "tests/test_contracts.py", workers],
        cwd=shop, env={**os.environ, "TMPDIR": str(temporary), "MARK": str(mark)}, stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
    )  # fmt: skip
    try:
        for _ in range(600):
            if mark.exists() or process.poll() is not None:
                break
            time.sleep(0.2)
        assert mark.exists()
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == pytest.ExitCode.INTERRUPTED
    finally:
        process.kill()
        process.wait()
    assert everything(shop) == before
    for _ in range(100):  # workers end a little later
        left = [path.name for path in temporary.glob("torchcheck-*")]
        listed = ["ps", "-p", mark.read_text(), "-o", "pid="]
        alive = subprocess.run(listed, capture_output=True, text=True, check=False).stdout.strip()
        if not left and not alive:
            break
        time.sleep(0.2)
    assert (left, alive) == ([], "")
