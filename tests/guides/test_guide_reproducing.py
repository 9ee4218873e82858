"""Rows 1 to 3 and 13 to 16: a failure that repeats, its batch, the smallest one, its cause by experiment, and the cure."""

from __future__ import annotations

import random
import re
import shlex
import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

from pytest_torchcheck import Contract, Floats, Tokens, promises
from pytest_torchcheck.state import flags_settable
from tests.guides.rows import Net, Symptom, contract, holds, named, sgd

if TYPE_CHECKING:
    from pathlib import Path

PROGRAM = """
    import torch
    import torch.nn.functional as F
    from torch import nn
    from pytest_torchcheck import Labels, Tokens, contract

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(50, 8)
            self.head = nn.Linear(8, 3)

        def forward(self, ids):
            h = self.words(ids).mean(1)
            {mistake}
            return self.head(h)

    FIELDS = dict(targets=Labels("B", classes=3), loss=F.cross_entropy)

    {contract}
"""


@pytest.fixture
def project(pytester: pytest.Pytester, loaded: None) -> Any:
    """Write a user's test module, and run pytest on it; gives what was printed and how many failed."""

    class Project:
        path = pytester.path

        def write(self, mistake: str, contract: str) -> None:
            text = textwrap.dedent(PROGRAM).format(
                mistake=textwrap.dedent(mistake).strip().replace("\n", "\n        "),
                contract=textwrap.dedent(contract).strip(),
            )
            pytester.makepyfile(test_program=text)

        def run(self, *arguments: str) -> tuple[str, int]:
            result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *arguments)
            return result.stdout.str(), result.parseoutcomes().get("failed", 0)

        def again(self, printed: str) -> tuple[str, int]:
            """Run the one command that a failure prints."""
            (command,) = set(re.findall(r"^(?:E +)?again +pytest (.*(?:\n +-.*)*)$", printed, re.M))
            return self.run(*shlex.split(command))

    return Project()


def explained(printed: str) -> str:
    """Return the lines of the failures without the command and the times."""
    kept = re.findall(r"^(?:where|observed|cause|because|fix) .*(?:\n {10}\S.*)*$", printed, re.M)
    assert kept, printed
    return "\n".join(kept)


TOKENS = """
    @contract(inputs=Tokens("B T", vocab={vocab}), sizes={{"B": (2, 6), "T": (3, 9)}}, **FIELDS)
    def net():
        return Net()
"""


def test_row_01_a_failure_repeats(project: Any) -> None:
    """The seed is printed; the printed command, and a second run, give the same failure on the same numbers."""
    project.write(
        """
        if h[0, 0] > 0:
            raise ValueError(f"positive: {float(h[0, 0])!r}")  # BUG
        """,
        TOKENS.format(vocab=50),
    )
    checks = ("--torchcheck", "--torchcheck-checks=backward")
    runs = [project.run(*checks, f"--torchcheck-seed={seed}") for seed in range(4)]
    failed = [seed for seed, (_, count) in enumerate(runs) if count]
    assert 0 < len(failed) < len(runs)  # flaky, as long as seeds are left to chance
    seed = failed[-1]
    first, _ = runs[seed]
    assert f"--torchcheck-seed={seed}" in first
    assert f"seed {seed} (--torchcheck-seed)" in first
    for printed, count in (project.again(first), project.run(*checks, f"--torchcheck-seed={seed}")):
        assert count == 1
        assert "positive: " in printed
        assert explained(printed) == explained(first)


class PythonRandom(Net):
    def middle(self, h):
        return h * (random.uniform(0.5, 1) if self.broken else 1)  # BUG


class NumpyRandom(Net):
    def middle(self, h):
        return h * (float(np.random.uniform(0.5, 1)) if self.broken else 1)  # BUG


class OwnGenerator(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.rng = np.random.default_rng(None if broken else torch.initial_seed())  # BUG

    def middle(self, h):
        return h * float(self.rng.uniform(0.5, 1))


class SeedsItself(Net):
    def middle(self, h):
        if self.broken:
            torch.manual_seed(0)  # BUG
        return h + torch.randn_like(h) if self.training else h


class DrawnWeights(Net):
    def __init__(self, broken):
        super().__init__(broken)
        seed = None if broken else torch.initial_seed()
        rng = np.random.default_rng(seed)  # BUG
        with torch.no_grad():
            self.head.weight.copy_(torch.from_numpy(rng.normal(size=(3, 16))))


def drawn(broken):
    def batch(seed):
        generator = torch.Generator().manual_seed(seed)
        if broken:
            generator.seed()  # BUG
        return (torch.randn(4, 8, generator=generator),), torch.tensor([0, 1, 2, 0])

    return Contract(model=Net, batch=batch, loss=F.cross_entropy)


class Scatters(Net):
    def middle(self, h):
        places = torch.arange(h.numel())
        return torch.zeros_like(h).put_(places, h) if self.broken else h  # BUG


class Benchmarks(Net):
    def middle(self, h):
        torch.backends.cudnn.benchmark = self.broken  # BUG
        return h


class Jitter(Dataset):
    def __init__(self, broken):
        self.broken, self.data = broken, torch.randn(12, 8)

    def __len__(self):
        return 12

    def __getitem__(self, i):
        rng = np.random.default_rng(None if self.broken else int(torch.randint(2**31, ())))  # BUG
        return self.data[i] + float(rng.normal()), i % 3


def makes(model):
    return lambda b: contract(lambda: model(b))


ROW_01 = (
    Symptom(name="random", make=makes(PythonRandom), checks=("seeding",), code="python-random",
            says=("torch.manual_seed does not seed", "draw with torch")),
    Symptom(name="NumPy", make=makes(NumpyRandom), checks=("seeding",), code="numpy-random",
            says=("torch.manual_seed does not seed", "draw with torch")),
    Symptom(name="a seed in the forward", make=makes(SeedsItself), checks=("seeding",), code="reseeds",
            says=("every step draws the same random numbers", "drop the seeding")),
    Symptom(name="a generator of its own", make=makes(OwnGenerator), checks=("seeding",), code="seed-ignored",
            says=("does not repeat with the same seed: rng is not seeded", "seed every generator")),
    Symptom(name="weights that no seed repeats", make=makes(DrawnWeights), checks=("seeding",), code="seed-ignored",
            status="suspicious", says=("different values of head.weight each time", "rng is the first value")),
    Symptom(name="a batch that no seed repeats", make=drawn, checks=("seeding",), code="seed-ignored",
            status="suspicious", says=("the batch function gives a different x each time", "generator is the first")),
    Symptom(name="an operation without an order",
            make=lambda b: contract(lambda: Scatters(b), promises=(promises.Deterministic(),)),
            checks=("deterministic-algorithms",), code="nondeterministic-op",
            says=("put_ has no deterministic implementation", "use an operation with a fixed order")),
    Symptom(name="cudnn.benchmark", make=makes(Benchmarks), checks=("rng-hygiene",), code="global-state",
            says=("torch.backends.cudnn.benchmark from False to True",)),
    Symptom(name="an augmentation",
            make=lambda b: Contract(dataset=Jitter(b), promises=(promises.RandomAugmentation(),)),
            checks=("random-augmentation",), code="augmentation-unseeded", says=("rng draws random numbers that no seed repeats",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_01))
def test_row_01(symptom: Symptom) -> None:
    """What a seed does not reach: random, NumPy, own generators, in model, batch and data; orders of kernels."""
    with (
        flags_settable()
    ):  # torch's own test tools, which other tests import, forbid it to a process
        holds(symptom)


LOADER = """
    class Sentences(torch.utils.data.Dataset):
        def __init__(self):
            self.ids = torch.randint(0, 50, (24, 5), generator=torch.Generator().manual_seed(0))
            self.ids[14, 3] = {word}

        def __len__(self):
            return 24

        def __getitem__(self, i):
            return self.ids[i], i % 3

    @contract(batch=torch.utils.data.DataLoader(Sentences(), batch_size=4), **FIELDS)
    def net():
        return Net()
"""


def test_row_02(project: Any) -> None:
    """The batch that fails: its shapes and ranges are printed, it is saved, loads as plain tensors, and runs again."""
    arguments = ("--torchcheck", "--torchcheck-checks=backward", "--torchcheck-artifacts=kept")
    project.write("", LOADER.format(word=77))
    found = [project.run(*arguments, f"--torchcheck-seed={seed}") for seed in range(4)]
    assert [count for _, count in found] == [0, 0, 0, 1]
    printed, _ = found[3]
    assert "words has 50 rows, and ids holds index 77 [embedding-range]" in printed
    assert re.search(r"observed +indices int64 \[4, 5\], \d+\.\.77; words has 50 rows", printed)
    saved = project.path / "kept" / "net-backward-cpu-float32.pt"
    assert f"--torchcheck-replay=kept/{saved.name}" in printed
    (ids,) = torch.load(saved, weights_only=True)["args"]
    assert ids.shape == (4, 5)
    assert int(ids[2, 3]) == 77  # the third sample of the fourth batch is sample 14
    replayed, count = project.run(f"--torchcheck-replay=kept/{saved.name}")
    assert count == 1
    assert "ids holds index 77" in replayed
    project.write("", LOADER.format(word=7))
    assert project.run(*arguments, "--torchcheck-seed=3")[1] == 0


class Positions(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.positions = nn.Parameter(torch.randn(6 if broken else 16, 8))  # BUG
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head((self.words(ids) + self.positions[: ids.shape[1]]).mean(1))


class Halves(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.broken = broken
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = x[:, ::2] + x[:, 1::2] if self.broken else x  # BUG
        return self.head(h.mean(1))


class Chunks(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.broken = broken
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        if self.broken and x.shape[0] > 4 and x.shape[1] > 9:
            raise ValueError("too much at once")  # BUG
        return self.head(x.mean(1))


def sized(model, inputs="B T 8", **sizes):
    return lambda b: contract(lambda: model(b), inputs=inputs, sizes=sizes)


ROW_03 = (
    Symptom(name="the first length that is too long", checks=("batch-sizes",), code="table-too-short",
            make=sized(Positions, Tokens("B T", vocab=12), B=(2, 6), T=(4, 14)),
            says=("does not run at B=2, T=7:", "x: int64[2, 7], all 0", "y: int64[2], all 0")),
    Symptom(name="the first odd length", checks=("batch-sizes",), code="broadcast-shapes",
            make=sized(Halves, B=(2, 6), T=(4, 14)),
            says=("does not run at B=2, T=5:", "x: float32[2, 5, 8], all zero")),
    Symptom(name="two sizes together", checks=("batch-sizes",), code="size-crash",
            make=sized(Chunks, B=(2, 9), T=(4, 24)), says=("does not run at B=5, T=10:", "all zero")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_03))
def test_row_03(symptom: Symptom) -> None:
    """The smallest sizes and the plainest values at which it fails, with no data of the user's."""
    found = holds(symptom)
    assert found.location is not None
    assert found.location.text.endswith("# BUG")


def test_row_03_in_a_test(pytester: pytest.Pytester, loaded: None) -> None:
    """A test over many batches of one's own: the failing one is cut to one row and one value that matters."""
    pytester.makepyfile(
        """
        import pytest, torch
        from pytest_torchcheck import Floats

        @pytest.mark.batches(x=Floats("B T 4"), sizes={"B": (1, 8), "T": (1, 9)})
        def test_any(batch):
            print("failing", tuple(batch.x.shape), int((batch.x != 0).sum()))
            assert batch.x.shape[1] < 3

        @pytest.mark.batches(x=Floats("16 4"))
        def test_values(batch):
            print("failing", tuple(batch.x.shape), int((batch.x != 0).sum()))
            assert not (batch.x.sum(1) > 1).any()
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider")
    result.assert_outcomes(failed=2)
    smallest = [
        re.findall(r"^failing (.*)$", part, re.M)[-1]
        for part in result.stdout.str().split("the last batch:")[:2]
    ]
    assert smallest == ["(1, 3, 4) 0", "(16, 4) 1"]


class Deaf(Net):
    """Cannot tell its samples apart."""

    def middle(self, h):
        return h.mean(0).expand_as(h) if self.broken else h  # BUG


def slowly(model):
    return torch.optim.SGD(model.parameters(), lr=1e-7)  # BUG


def normed(broken):
    def loss(output, targets):
        probabilities = output.softmax(1)
        return F.cross_entropy(probabilities if broken else output, targets)  # BUG

    return contract(Net, loss=loss)


ROW_13 = (
    Symptom(name="another optimizer was tried", make=lambda b: contract(Net, optimizer=slowly if b else sgd),
            checks=("overfit",), code="optimizer-crawls", status="suspicious",
            says=("the learning rate is too low", "learns the same batch", "raise the learning rate")),
    Symptom(name="neighbours were changed", make=makes(Deaf), checks=("batch-independence",), code="samples-mixed",
            says=("only the other samples of 4 changed", "an operation mixes the batch",
                  "elements that change with 4 different samples")),
    Symptom(name="the loss was asked what it computes", make=normed, checks=("loss-input",), code="double-softmax",
            says=("because",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_13))
def test_row_13(symptom: Symptom) -> None:
    """Observation, hypothesis, and the experiment that decided for it, each in its own line and all different."""
    found = holds(symptom)
    assert len({found.summary, found.observed, found.cause, found.because, found.fix}) == 5
    if symptom.code == "optimizer-crawls":  # the experiment: only the optimizer was exchanged
        start, end = (float(x) for x in re.findall(r"([\d.]+) -> ([\d.]+)", found.because)[0])
        assert end < 0.15 * start


class Block(nn.Module):
    def __init__(self, broken=False):
        super().__init__()
        self.broken = broken
        self.norm = nn.LayerNorm(8)
        self.mix = nn.Linear(8, 8)

    def forward(self, x):
        h = self.mix(self.norm(x))
        return x + (h if self.broken else torch.relu(h))  # BUG


def stack(broken=False):
    return nn.Sequential(
        nn.Linear(8, 8), Block(), nn.Sequential(Block(), Block(broken)), nn.Linear(8, 3)
    )


class Strided(Net):
    def forward(self, x):
        if self.broken:
            x = x.as_strided(x.shape, (x.shape[1], 1))  # BUG
        return super().forward(x)


class LooksAhead(nn.Module):
    def __init__(self, broken):
        super().__init__()
        self.padding = (1, 1) if broken else (2, 0)
        self.conv = nn.Conv1d(4, 8, 3)
        self.head = nn.Conv1d(8, 4, 1)

    def forward(self, x):
        x = F.pad(x, self.padding)  # BUG
        return self.head(torch.relu(self.conv(x)))


class Recomputes(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.drop = nn.Dropout(0.5)

    def middle(self, h):
        keep = not self.broken
        return checkpoint(self.drop, h, use_reentrant=False, preserve_rng_state=keep)  # BUG


ROW_14 = (
    Symptom(name="a working and a broken version",
            make=lambda b: contract(lambda: stack(b), promises=(promises.Matches(stack),)),
            checks=("reference-match",), code="reference-differs",
            says=("in 2.1 (Block)", "so does every submodule before it")),
    Symptom(name="samples", make=makes(Deaf), checks=("batch-independence",), code="samples-mixed",
            says=("Tensor.mean",)),
    Symptom(name="memory formats", make=makes(Strided), checks=("layout-invariance",), code="layout-differs",
            says=("equal values in contiguous memory give different outputs",)),
    Symptom(name="the future", checks=("causality",), code="future-leak", says=("F.conv1d", "it read the result of F.pad"),
            make=lambda b: Contract(model=lambda: LooksAhead(b), inputs="B 4 T", sizes={"B": (2, 4), "T": (6, 12)},
                                    promises=(promises.Causal(dim=2, output_dim=2),))),
    Symptom(name="with and without checkpointing", make=makes(Recomputes), checks=("checkpointing",),
            code="checkpoint-differs", says=("F.dropout gave", "with preserve_rng_state=True", "it gives the same values")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_14))
def test_row_14(symptom: Symptom) -> None:
    """Two runs of which one thing differs, laid side by side: the first operation at which they part."""
    found = holds(symptom)
    assert found.location is not None
    assert found.location.text.endswith("# BUG")


class Unit(Net):
    def forward(self, x):
        size = x.norm(dim=1, keepdim=True)
        return super().forward(x / (size if self.broken else size + 1e-6))  # BUG


class Standardised(Net):
    def forward(self, x):
        spread = x.std(1, keepdim=True)
        x = (x - x.mean(1, keepdim=True)) / (spread if self.broken else spread + 1e-6)  # BUG
        return super().forward(x)


class Apart(Net):
    def forward(self, a, b):
        gap = (self.body(a) - self.body(b)).pow(2).sum(1)
        return (gap if self.broken else gap + 1e-6).sqrt()  # BUG


class Exponents(Net):
    def forward(self, x):
        e = torch.exp(x if self.broken else x - x.amax(1, keepdim=True))  # BUG
        return super().forward(e / e.sum(1, keepdim=True))


class Gate(Net):
    """Its overflow has either sign behind the next product: rows of -inf, which are no mask."""

    def forward(self, x):
        mean = x.mean(1, keepdim=True)
        gate = torch.exp(mean if self.broken else mean.clamp(-5, 5))  # BUG
        return super().forward(x.clamp(-3, 3)) * gate


LARGE = Floats("B 8", low=-1e6, high=1e6)
ROW_15 = (
    Symptom(name="zeros", make=makes(Unit), checks=("degenerate-inputs",), code="edge-non-finite",
            status="suspicious", says=("for a sample that is all zero", "a division by zero", "add eps")),
    Symptom(name="ones", make=makes(Standardised), checks=("degenerate-inputs",), code="edge-non-finite",
            status="suspicious", says=("a division by zero",)),
    Symptom(name="equal pairs", checks=("degenerate-inputs",), code="edge-non-finite", status="suspicious",
            make=lambda b: Contract(model=lambda: Apart(b), inputs=("B 8", "B 8"), targets=Floats("B"), loss=F.mse_loss),
            says=("x1 equal to x0", "add eps inside the square root")),
    Symptom(name="1e6", make=lambda b: contract(lambda: Exponents(b), inputs=LARGE), checks=("gradients-finite",),
            code="non-finite-forward", says=("exp overflows", "subtract the largest value first")),
    Symptom(name="1e6 behind a product", make=lambda b: contract(lambda: Gate(b), inputs=LARGE),
            checks=("gradients-finite",), code="non-finite-forward", says=("exp overflows",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_15))
def test_row_15(symptom: Symptom) -> None:
    """Zeros, constants, equal pairs, and values as large as the contract allows."""
    found = holds(symptom)
    assert found.location is not None
    assert found.location.text.endswith("# BUG")


CURES = {
    "the number that fits": (
        "h = h.view(-1, 5)",
        "view-size",
        lambda line, fix: line.replace("5", re.search(r"write (\d+) instead of 5", fix)[1]),
    ),
    "the cut that is dropped": (
        "h = h.detach()",
        "grad-none",
        lambda line, fix: line.replace(re.search(r"drop (\.detach\(\))", fix)[1], ""),
    ),
    "the operation out of place": (
        "h = torch.sigmoid(h); h += 1",
        "inplace-saved",
        lambda line, fix: line.replace("h += 1", re.search(r": (h = h \+ 1)", fix)[1]),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CURES)
def test_row_16(name: str, project: Any) -> None:
    """The edit that ``fix`` names, made at the line that ``where`` names, cures it; ``again`` shows both."""
    mistake, code, cure = CURES[name]
    project.write(mistake, TOKENS.format(vocab=50))
    printed, count = project.run("--torchcheck", "--torchcheck-checks=gradients-exist,backward")
    assert count == 1
    assert f"[{code}]" in printed
    number = int(re.search(r"^where .*test_program\.py:(\d+):", printed, re.M)[1])
    fix = re.search(r"^fix +(.*(?:\n {10}\S.*)*)$", printed, re.M)[1]
    file: Path = project.path / "test_program.py"
    lines = file.read_text().splitlines(keepends=True)
    assert mistake in lines[number - 1]
    assert project.again(printed)[1] == 1
    lines[number - 1] = cure(lines[number - 1], fix)
    file.write_text("".join(lines) + "# mended\n")
    again, count = project.again(printed)
    assert count == 0, again
    # it trains, is finite, has the right shape, and its loss falls
    whole, count = project.run("--torchcheck", "-v")
    assert count == 0, whole
    for check in ("backward", "gradients-exist", "gradients-finite", "weights-update", "descent"):
        assert re.search(rf"::{check}\S* PASSED", whole), check
