"""``init``: the file passes, says what was observed, and fails once the model breaks a promise of it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from pytest_torchcheck.cli import main
from pytest_torchcheck.cli.checks import contracts
from pytest_torchcheck.infer import observe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pytest_torchcheck import Contract

READER = """
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.table = nn.Embedding(29, width)
        self.mix = nn.Conv1d(width, width, 3)
        self.head = nn.Linear(width, 29, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        h = self.table(ids).transpose(1, 2)
        h = nn.functional.pad(h, (2, 0))
        h = torch.tanh(self.mix(h)).transpose(1, 2)
        return self.head(h)
"""
SET = """
import torch
from torch import nn

class Pool(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.rnn = nn.Linear(5, 8), nn.Linear(8, 3)
        self.norm = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        h = torch.relu(self.inner(x))
        return self.rnn(self.norm(h, h, h, need_weights=False)[0].mean(1))

DATA = ((torch.randn(6, 4, 5),), torch.tensor([0, 1, 2, 0, 1, 2]))
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name in [name for name in sys.modules if name.endswith("_of_test")]:
        del sys.modules[name]


@pytest.fixture
def no_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out how memory grows, which the first test measures: half a dozen training steps for each symbol."""
    monkeypatch.setattr(observe, "_powers", lambda _: {})


def write(project: Path, name: str, source: str) -> None:
    (project / f"{name}.py").write_text(source)
    sys.modules.pop(name, None)


def load(path: Path) -> Contract:
    sys.modules.pop(path.stem, None)
    ((_, contract),) = contracts(path)
    return contract


def test_promises_that_held_are_written_and_hold_the_model_to_them(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "reader_of_test", READER)
    output = project / "tests" / "test_contracts.py"
    assert main(["init", "reader_of_test:Reader(width=6)", "--runs", "2"]) == 0
    assert "wrote tests/test_contracts.py" in capsys.readouterr().out
    text = output.read_text()
    for line in (
        'inputs=Tokens("B T", vocab=29),', 'Tied("table.weight", "head.weight"),', "Causal(),",
        "# causality held in 2 runs:", 'output="B T 29",', "    return Reader(width=6)",
        "def reader():", "measured in 2 runs, with 25% headroom", 'growth={"B": 1, "T": 1},',
        "state-dict-roundtrip held in 2 runs",
    ):  # fmt: skip
        assert line in text
    assert "Permutation" not in text
    assert "skip=" not in text
    assert max(map(len, text.splitlines())) <= 100
    for seed in (7, 8):
        report = load(output).check(seed=seed)
        assert report.ok, str(report)
    for old, new, check in (
        ("(2, 0)", "(1, 1)", "causality"),
        ("self.head.weight = self.table.weight", "pass", "tied-weights"),
        ("return self.head(h)", "return self.head(h.repeat(1, 1, 1, 9)[0])", "output-spec"),
        ("torch.tanh(self.mix(h))", "torch.tanh(self.mix(h.repeat(9, 1, 1)))[:len(h)]", "memory"),
    ):
        write(project, "reader_of_test", READER.replace(old, new))
        broken = load(output).check(["causality", "tied-weights", "output-spec", "peak-memory"])
        found = {finding.check for finding in broken.with_status("violated")}
        assert any(check in name for name in found), f"{new}: {broken}"


@pytest.mark.usefixtures("no_growth")
def test_a_set_is_promised_its_order_and_a_file_is_never_overwritten(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(project, "set_of_test", SET)
    arguments = ["init", "set_of_test:Pool", "-o", "found.py", "--runs", "1"]
    assert main(arguments) == 0
    text = (project / "found.py").read_text()
    assert "PermutationInvariant(dim=1)," in text
    assert "Causal" not in text
    assert "Equivariant" not in text
    assert main(arguments) == 1
    assert "found.py exists; give another file with -o, or --force" in capsys.readouterr().err
    assert (project / "found.py").read_text() == text


@pytest.mark.usefixtures("no_growth")
def test_real_data_stand_for_the_specs(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "set_of_test", SET)
    arguments = ["init", "set_of_test:Pool", "--batch", "set_of_test:DATA", "-o", "-"]
    assert main([*arguments, "--runs", "1"]) == 0
    text = capsys.readouterr().out
    assert "from set_of_test import DATA, Pool" in text
    assert "    batch=DATA,\n" in text
    assert "    loss=F.cross_entropy,\n" in text


TAGGER = """
import torch
from torch import nn
class Tagger(nn.Module):
    def __init__(self, tags=6, named=False):
        super().__init__()
        self.table, self.out, self.named = nn.Embedding(11, 4), nn.Linear(4, tags), named
    def forward(self, words):
        found = self.out(self.table(words))
        return {"tags": found} if self.named else found
class Pixels(Tagger):
    def forward(self, words):
        return super().forward(words).movedim(-1, 1)
BATCH = torch.arange(15).view(3, 5) % 11, torch.arange(15).view(3, 5) % 6
"""


@pytest.mark.usefixtures("no_growth")
@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ("Tagger", "lambda output, targets: F.cross_entropy(output.movedim(-1, 1), targets)"),
        (
            "Tagger(named=True)",
            "lambda output, targets: F.cross_entropy(output['tags'].movedim(-1, 1), targets)",
        ),
        ("Pixels", "F.cross_entropy"),
    ],
)
def test_the_loss_fits_real_data(
    project: Path, capsys: pytest.CaptureFixture[str], model: str, loss: str
) -> None:
    write(project, "tagger_of_test", TAGGER)
    arguments = ["init", f"tagger_of_test:{model}", "--batch", "tagger_of_test:BATCH"]
    assert main([*arguments, "-o", "found.py", "--runs", "1"]) == 0
    assert f"    loss={loss},\n" in (project / "found.py").read_text()
    assert load(project / "found.py").check(["backward"]).ok
    capsys.readouterr()


OWN = """
import torch.nn.functional as F
def smooth(found, tags):
    return F.cross_entropy(found.flatten(0, 1), tags.flatten(), label_smoothing=0.1)
def refuses(found, tags):
    raise RuntimeError("no such pair")
"""


@pytest.mark.usefixtures("no_growth")
def test_a_loss_may_be_the_users_own(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(project, "tagger_of_test", TAGGER)
    write(project, "own_loss_of_test", OWN)
    arguments = ["init", "tagger_of_test:Tagger(tags=11)", "-o", "found.py", "--runs", "1"]
    for data in ((), ("--batch", "tagger_of_test:BATCH")):
        given = [*arguments, "--force", "--loss", "own_loss_of_test:smooth", *data]
        assert main(given) == 0
        text = (project / "found.py").read_text()
        assert "from own_loss_of_test import smooth\n" in text
        assert "    loss=smooth,\n" in text
        assert load(project / "found.py").check(["backward"]).ok
    for name, told in (
        ("refuses", "none of the targets that were tried gives a number"),
        ("F.nothing", "has no 'nothing'"),
        ("__name__", "is of type str; a loss is called as"),
        ("smooth(1, 2)", "names no loss; choose from cross_entropy,"),
    ):
        assert main([*arguments, "--force", "--loss", f"own_loss_of_test:{name}"]) == 1
        assert told in capsys.readouterr().err


@pytest.mark.usefixtures("no_growth")
def test_what_is_broken_already_is_set_aside_by_name(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cut = SET.replace("torch.relu(self.inner(x))", "torch.relu(self.inner(x)).detach()")
    write(project, "set_of_test", cut)
    assert main(["init", "set_of_test:Pool", "-o", "found.py", "--runs", "1"]) == 0
    text = (project / "found.py").read_text()
    assert '"gradients-exist": "found in 1 of 1 runs: inner.weight' in text
    assert load(project / "found.py").check(["gradients-exist", "backward"]).ok
    capsys.readouterr()


@pytest.mark.usefixtures("no_growth")
def test_a_long_call_is_written_in_lines(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ", ".join(f"option_{n}={n * 1000}" for n in range(8))
    write(
        project,
        "long_of_test",
        "from torch import nn\ndef make(width, **options): return nn.Linear(width, 2)\n",
    )
    assert main(["init", f"long_of_test:make(4, {options})", "-o", "found.py", "--runs", "1"]) == 0
    text = (project / "found.py").read_text()
    assert "    return make(\n        4,\n        option_0=0,\n" in text
    assert load(project / "found.py").check(["backward"]).ok
    capsys.readouterr()


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["no_such_package_of_test:Net"], "no module named 'no_such_package_of_test'"),
        (["torch.nn:Linear(4)"], "missing a required argument"),
        (["torch.nn:Linear(4, 2)", "--loss", "mse"], "choose from cross_entropy"),
        (["torch.nn:Linear(4, 2)", "--runs", "0"], "--runs must be at least 1; got 0"),
        (["torch.nn:Linear(4, 2)", "--inputs", "B &"], "character 3"),
        (["torch.nn:Linear(4, 2)", "--inputs", "B 5"], 'does not run on "B 5"'),
        (
            ["torch.nn:Linear(4, 2)", "--batch", "math:pi"],
            "its training step fails: Linear received a float",
        ),
    ],
)
@pytest.mark.usefixtures("project")
def test_what_cannot_be_done_is_status_1(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", *arguments, "-o", "-"]) == 1
    assert told in capsys.readouterr().err
