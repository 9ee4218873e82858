"""Rows 26 to 29, 31 and 32: memory that stays or runs out, data that workers cannot serve, modes and autocast."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, get_worker_info

from pytest_torchcheck import Contract, ContractViolation, Floats, measure_memory, promises
from pytest_torchcheck.data import delivery
from pytest_torchcheck.measure import assert_saves, largest_batch
from pytest_torchcheck.render.terminal import render_report
from tests.guides.rows import Net, Symptom, contract, holds, named, sgd, told


def trains(keep):
    """A training step that keeps something of each step; the mended one keeps numbers."""

    def make(broken):
        kept: list[Any] = []
        total = torch.zeros(())

        def step(model, optimizer, inputs, targets):
            nonlocal total
            optimizer.zero_grad()
            output = model(*inputs)
            loss = F.cross_entropy(output, targets)
            loss.backward()
            optimizer.step()
            if keep == "losses":
                kept.append(loss if broken else loss.item())  # BUG
            elif keep == "outputs":
                kept.append(output if broken else output.tolist())  # BUG
            elif keep == "total":
                total = total + (loss if broken else loss.detach())  # BUG
            return loss.detach()

        return contract(Net, train_step=step, optimizer=sgd)

    return make


class Collects(Net):
    """A forward hook for debugging, of which a list keeps what it saw."""

    def __init__(self, broken):
        super().__init__(broken)
        self.seen: list[torch.Tensor] = []
        self.body.register_forward_hook(self.keep)

    def keep(self, module, args, output):
        if self.broken:
            self.seen.append(output)  # BUG
        else:
            self.seen = [output.detach()]


class CollectsGradients(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.seen: list[torch.Tensor] = []
        self.head.register_full_backward_hook(self.keep)

    def keep(self, module, given, output):
        if self.broken:
            self.seen.append(given[0].detach())  # BUG
        else:
            self.seen = [given[0].norm()]


class HooksAgain(Net):
    """One hook that is meant, in ``__init__``, and one more in each forward."""

    def __init__(self, broken):
        super().__init__(broken)
        self.norm = 0.0
        self.head.weight.register_hook(self.note)

    def note(self, grad):
        self.norm = float(grad.norm())

    def middle(self, h):
        if self.broken:
            self.head.weight.register_hook(self.note)  # BUG
        return h


CACHE: dict[int, torch.Tensor] = {}


class Caches(Net):
    """Large tensors that are never freed: a cache without an end."""

    def middle(self, h):
        if self.broken:
            CACHE[len(CACHE)] = h.detach()  # BUG
        return h


LARGE = {"sizes": {"B": 64}}
ROW_26 = (
    Symptom(name="stored losses", make=trains("losses"), checks=("step-leak",), code="leak-graph",
            says=("variable kept", "tensors are kept with their graph", ".item()")),
    Symptom(name="stored outputs", make=trains("outputs"), checks=("step-leak",), code="leak-graph",
            says=("variable kept", "float32 tensor [4, 3]", ".detach()")),
    Symptom(name="a running total", make=trains("total"), checks=("step-leak",), code="leak-graph",
            says=("a loss is accumulated with its graph", "loss.item()")),
    Symptom(name="a hook that stores", make=lambda b: contract(lambda: Collects(b)), checks=("step-leak",),
            code="leak-graph", says=("Collects.seen keeps", "keep .detach()")),
    Symptom(name="a gradient hook that stores", make=lambda b: contract(lambda: CollectsGradients(b), **LARGE),
            checks=("step-leak",), code="leak-tensors", says=("CollectsGradients.seen keeps 4.0 KiB", "clear it")),
    Symptom(name="hooks that pile up", make=lambda b: contract(lambda: HooksAgain(b)), checks=("step-leak",),
            code="leak-hooks", says=("head.weight gets 1 more hook", "register it once in __init__")),
    Symptom(name="large tensors not freed", make=lambda b: contract(lambda: Caches(b), **LARGE),
            checks=("step-leak",), code="leak-tensors", status="suspicious", says=("global CACHE", "bound it")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_26))
def test_row_26(symptom: Symptom) -> None:
    """What is kept from step to step: its holder by name, the line that keeps it, and what to keep instead."""
    holds(symptom)
    CACHE.clear()


HUGE = 10**9  # squared, more bytes than any machine has


class Table(Net):
    def middle(self, h):
        return h + torch.zeros(HUGE, HUGE)[0, 0] if self.broken else h  # BUG


def of_pairs(output, targets):
    return F.cross_entropy(output, targets) + output.new_zeros(HUGE, HUGE)[0, 0]  # BUG


class Jacobian(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, broken):
        ctx.broken = broken
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return (grad @ grad.new_zeros(HUGE, HUGE) if ctx.broken else grad * 2), None  # BUG


class ByJacobian(Net):
    def middle(self, h):
        return Jacobian.apply(h, self.broken)


class Curvature(torch.optim.SGD):
    def step(self, closure=None):
        torch.zeros(HUGE, HUGE)  # BUG
        return super().step(closure)


class Wide(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.table = nn.Parameter(torch.empty(HUGE, HUGE) if broken else torch.zeros(1))  # BUG

    def middle(self, h):
        return h + self.table[0, 0] if self.broken else h + self.table


RUNS_OUT = {
    "build": (lambda b: contract(lambda: Wide(b)), "a smaller model"),
    "forward": (lambda b: contract(lambda: Table(b)), "gradient accumulation, activation checkpointing or autocast"),
    "loss": (lambda b: contract(Net, loss=of_pairs if b else F.cross_entropy), "the loss in chunks of the batch"),
    "backward": (lambda b: contract(lambda: ByJacobian(b)), "gradient accumulation or activation checkpointing"),
    "step": (
        lambda b: contract(Net, optimizer=lambda m: (Curvature if b else torch.optim.SGD)(m.parameters(), lr=0.1)),
        "an optimizer with less state",
    ),
}  # fmt: skip


@pytest.mark.parametrize("phase", RUNS_OUT)
def test_row_27_by_phase(phase: str) -> None:
    """Out of memory: the phase, the line, how much was asked for, and what helps in that phase."""
    make, advice = RUNS_OUT[phase]
    found = holds(
        Symptom(name=phase, make=make, checks=("backward",), code="out-of-memory",
                says=(f"in the {phase} phase", "3552.7 PiB", advice))
    )  # fmt: skip
    assert found.evidence["phase"] == phase
    assert found.location is not None
    assert found.location.text.endswith("# BUG")


class Scores(nn.Module):
    """Attention of every pair of positions, all at once or by torch's function."""

    def __init__(self, broken=False, checkpointed=False):
        super().__init__()
        self.broken, self.checkpointed = broken, checkpointed
        self.body = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8)) for _ in range(3)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, h):
        for block in self.body:
            h = checkpoint(block, h, use_reentrant=False) if self.checkpointed else block(h)
        if self.broken:
            h = (h @ h.mT).softmax(-1) @ h  # BUG
        return self.head(h.mean(1))


def sequences(model, **fields):
    return contract(model, inputs="B T 8", sizes={"B": (2, 64), "T": (4, 128)}, **fields)


ROW_27 = (
    Symptom(name="a ceiling", make=lambda b: sequences(lambda: Scores(b), memory="9 MiB"), checks=("peak-memory",),
            code="memory-ceiling", says=("above the ceiling of 9.0 MiB at B=64, T=128", "quadratic in T",
                                         "would fit", "scaled_dot_product_attention")),
    Symptom(name="growth", make=lambda b: sequences(lambda: Scores(b), growth={"T": 1}), checks=("memory-growth",),
            code="memory-growth", says=("memory grows with T^2, where T^1 is promised", "in chunks")),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_27))
def test_row_27(symptom: Symptom) -> None:
    """Before it runs out: ceilings at the largest declared sizes, with what would fit."""
    holds(symptom)


def test_row_27_savings() -> None:
    """A smaller batch, checkpointing, autocast: what would fit is measured, and a saving that is none is refused."""
    plain, thrifty = sequences(Scores), sequences(lambda: Scores(checkpointed=True))
    at = {"B": 8, "T": 64}
    saving = assert_saves(plain, thrifty, at_least="30%", what="activations", at=at)
    assert saving.difference == 0.0
    with pytest.raises(ContractViolation, match="savings-missing"):
        assert_saves(plain, plain, at_least="30%", what="activations", at=at)
    fits = largest_batch(plain, "2 MiB", at={"T": 128}).size
    assert measure_memory(plain, at={"B": fits, "T": 128}).peak_bytes <= 2 * 2**20
    assert measure_memory(plain, at={"B": fits + 1, "T": 128}).peak_bytes > 2 * 2**20


def test_row_28() -> None:
    """Memory by phase, category, module, line and operation, and its course over the step, with no GPU."""
    profile = measure_memory(sequences(lambda: Scores(True)), at={"B": 16, "T": 256})
    place, held = next(iter(profile.by_line.items()))
    assert place.text.endswith("# BUG")
    assert held > profile.peak_bytes / 2
    assert profile.peak_op.startswith("aten.")
    assert sum(profile.by_category.values()) == profile.peak_bytes
    assert set(profile.by_phase) == {"forward", "loss", "backward", "optimizer"}
    assert profile.by_phase[profile.peak_phase] == profile.peak_bytes
    assert set(profile.by_module) >= {"body.0.0", "head"}
    assert profile.timeline is not None
    course = [sum(values) for values in zip(*profile.timeline.series.values(), strict=True)]
    assert max(course) == profile.peak_bytes
    assert [phase for phase, _, _ in profile.timeline.phases] == list(profile.by_phase)
    shown = str(profile)
    assert all(word in shown for word in ("phases", "at peak", place.text, profile.peak_op))
    report = sequences(lambda: Scores(True), memory="1 GiB").check(["peak-memory"])
    table = render_report(report, verbosity=2)
    assert all(
        word in table
        for word in (
            "memory by line:",
            place.function,
            "memory over the step:",
            "backward",
        )
    )


class Twice(Net):
    def forward(self, x):
        out = super().forward(x)
        return out + super().forward(x) if self.broken else out + out  # BUG


def test_row_28_work() -> None:
    """Work by operation: what is computed twice is over its ceiling, with its line."""
    holds(
        Symptom(name="work", make=lambda b: contract(lambda: Twice(b), flops="8 kFLOP"), checks=("flops",),
                code="flops-ceiling", says=("above the ceiling of 8.0 kFLOP",), marked=False)
    )  # fmt: skip


class Images(Dataset):
    """24 samples of 8 features with 3 classes; subclasses make one mistake."""

    def __init__(self, broken=False):
        self.broken = broken
        self.data = torch.randn(24, 8, generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return len(self.data)

    def __getitem__(self, i):
        return self.data[i], i % 3


class Lambda(Images):
    def __init__(self, broken):
        super().__init__(broken)
        self.transform = (lambda x: -x) if broken else torch.neg  # BUG


class Local(Images):
    def __init__(self, broken):
        super().__init__(broken)

        def negate(x):  # BUG
            return -x

        self.transform = negate if broken else torch.neg


class Opened(Images):
    def __init__(self, broken):
        super().__init__(broken)
        self.path = __file__
        if broken:
            self.file = Path(self.path).open()  # noqa: SIM115  # BUG

    def __del__(self):
        if hasattr(self, "file"):
            self.file.close()


class Imported(Images):
    def __init__(self, broken):
        super().__init__(broken)
        self.library = sys if broken else "sys"  # BUG


class Hooked(Images):
    """A model inside of the dataset, which holds what cannot be sent."""

    def __init__(self, broken):
        super().__init__(broken)
        self.encoder = nn.Linear(8, 4)
        if broken:
            self.encoder.register_forward_hook(lambda *_: None)  # BUG


class Encoded(Images):
    """A model inside of the dataset, whose outputs carry their graphs."""

    def __init__(self, broken):
        super().__init__(broken)
        self.encoder = nn.Linear(8, 4)

    def __getitem__(self, i):
        if self.broken:
            return self.encoder(self.data[i]), i % 3  # BUG
        with torch.no_grad():
            return self.encoder(self.data[i]), i % 3


class OnTheGPU(Images):
    """Moves samples as it reads them: where there is no GPU that fails, as in a forked worker, which cannot start CUDA."""

    def __getitem__(self, i):
        device = "cuda" if self.broken else "cpu"
        return self.data[i].to(device), i % 3  # BUG


class Elsewhere(Images):
    """Keeps its samples on another device: what ``data.cuda()`` in ``__init__`` is on a GPU."""

    def __init__(self, broken):
        super().__init__(broken)
        self.data = self.data.to("meta" if broken else "cpu")

    def __getitem__(self, i):
        return self.data[i], i % 3  # BUG


class Ragged(Images):
    def __getitem__(self, i):
        return self.data[i, : 4 + i % 4 if self.broken else 4], i % 3  # BUG


class Skips(Images):
    def __getitem__(self, i):
        if self.broken and i % 7 == 3:
            return None  # BUG
        return self.data[i], i % 3


def stacks_wrong(samples):
    inputs, labels = zip(*samples, strict=True)
    return torch.tensor(inputs), torch.tensor(labels)  # BUG


def stacks(samples):
    inputs, labels = zip(*samples, strict=True)
    return torch.stack(inputs), torch.tensor(labels)


class Hangs(Images):
    def __getitem__(self, i):
        while self.broken and get_worker_info() is not None and i == 5:
            time.sleep(0.02)  # BUG
        return self.data[i], i % 3


class Dies(Images):
    def __getitem__(self, i):
        if self.broken and get_worker_info() is not None and i == 5:
            os._exit(9)  # BUG
        return self.data[i], i % 3


def data(cls, **loader):
    return lambda b: Contract(dataset=cls(b), loader={"batch_size": 4, **loader})


def sent(name, cls, *says):
    return Symptom(
        name=name, make=data(cls, num_workers=2), checks=("dataset-pickling",), code="not-picklable", says=says
    )  # fmt: skip


GPU = torch.cuda.is_available()
WORKER = ("samples-valid", "dataset-pickling", "worker-delivery")
ROW_29 = (
    sent("a lambda", Lambda, "transform of Lambda", "it is a lambda", "a function at module level"),
    sent("a local function", Local, "transform of Local", "it is a local function"),
    sent("a file handle", Opened, "file of Opened", "an open file", "opened at the first read in each worker"),
    sent("a Python module", Imported, "library of Imported", "it is a module", "an import at the top"),
    sent("a model that cannot be sent", Hooked, "encoder._forward_hooks[", "it is a lambda"),
    Symptom(name="before there are workers", make=lambda b: Contract(dataset=Lambda(b)), checks=("dataset-pickling",),
            code="not-picklable", status="suspicious", says=("it is a lambda",)),
    Symptom(name="a collate function that cannot be sent",
            make=lambda b: Contract(
                dataset=Images(),
                loader={"num_workers": 2, "collate_fn": (lambda samples: stacks(samples)) if b else stacks},  # BUG
            ),
            checks=("dataset-pickling",), code="not-picklable", says=("collate_fn of Images",)),
    Symptom(name="a model that gives graphs", make=data(Encoded, num_workers=1), checks=WORKER, code="sample-graph",
            says=("cannot be sent by a worker", "torch.no_grad()")),
    Symptom(name="samples moved to a GPU", make=data(OnTheGPU, num_workers=1), checks=WORKER[: 1 if GPU else 3],
            code="sample-device" if GPU else "sample-raises",
            says=() if GPU else ("puts its samples on a GPU", "a forked worker cannot initialise CUDA", "return CPU tensors")),
    Symptom(name="samples on another device", make=data(Elsewhere, num_workers=1), checks=("samples-valid",),
            code="sample-device", says=("sample[0] is not on the CPU", "workers cannot share it",
                                        "move the batch to the device in the loop")),
    Symptom(name="samples of unlike shapes", make=data(Ragged, num_workers=1), checks=WORKER,
            code="samples-do-not-stack", says=("the batch cannot be stacked", "pad them in a collate_fn")),
    Symptom(name="None for a bad sample", make=data(Skips), checks=("samples-valid",),
            code="sample-structure-varies", says=("sample 3 is NoneType",)),
    Symptom(name="a collate function that fails",
            make=lambda b: Contract(
                dataset=Images(), loader={"batch_size": 4, "collate_fn": stacks_wrong if b else stacks}
            ),
            checks=("samples-valid",), code="batch-not-collatable", says=("stacks_wrong cannot make a batch",)),
    Symptom(name="a worker that dies", make=data(Dies, num_workers=1), checks=("worker-delivery",),
            code="worker-dies", says=("exit code 9 while it reads sample 5",)),
    Symptom(name="a worker that hangs", make=data(Hangs, num_workers=1), checks=("worker-delivery",),
            code="worker-hangs", says=("hangs while it reads a sample",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_29))
def test_row_29(symptom: Symptom, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker cannot be sent, read, collate or deliver: the attribute or sample by name, and its line."""
    monkeypatch.setitem(
        delivery.deliver.__kwdefaults__, "deadline_s", 2.0 if "hangs" in symptom.name else 60.0
    )
    holds(symptom)


def killed(signal):
    """A program whose loader loses a worker; what torch raises then, since a test must not fill the machine's memory."""

    def make(broken):
        def batch(seed):
            if broken:
                said = f"DataLoader worker (pid 4711) is killed by signal: {signal}. "
                raise RuntimeError(said)  # BUG
            return (torch.zeros(4, 8),), torch.tensor([0, 1, 2, 0])

        return Contract(model=Net, batch=batch, loss=F.cross_entropy)

    return make


@pytest.mark.parametrize(
    ("signal", "cause"),
    [
        ("Bus error", "shared memory (/dev/shm) is full"),
        ("Killed", "as when memory runs out"),
    ],
)
def test_row_29_killed(signal: str, cause: str) -> None:
    """A worker that the system ended: shared memory or memory that ran out, and what to lower."""
    holds(
        Symptom(name=signal, make=killed(signal), checks=("backward",), code="worker-died",
                says=(cause, "num_workers=0", "lower num_workers or the batch size"))
    )  # fmt: skip


class Stored(Images):
    def __init__(self, broken):
        super().__init__(broken)
        rows = torch.randn(24, 8)
        rows[5, 2] = float("nan") if broken else 0.0
        self.data = rows  # BUG


class Matched(Images):
    """A pattern that matches no file."""

    def __init__(self, broken):
        super().__init__(broken)
        self.files = sorted(Path(__file__).parent.glob("*.jpeg" if broken else "*.py"))  # BUG

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return torch.tensor([float(i), float(self.files[i].stat().st_size)]), i % 3


class Logs(Images):
    def __getitem__(self, i):
        x = self.data[i].abs() * (i % 4)
        return x.log() if self.broken else x.log1p(), i % 3  # BUG


class Pixels(Images):
    def __init__(self, broken):
        super().__init__(broken)
        self.data = torch.randint(0, 256, (24, 8), generator=torch.Generator().manual_seed(0))

    def __getitem__(self, i):
        return self.data[i] / (1 if self.broken else 255), i % 3  # BUG


class Shorter(Images):
    """Fewer labels than rows."""

    def __init__(self, broken):
        super().__init__(broken)
        self.labels = [i % 3 for i in range(20 if broken else 24)]

    def __getitem__(self, i):
        return self.data[i], self.labels[i]  # BUG


class Same(Images):
    def __getitem__(self, i):
        return self.data[0 if self.broken else i], i % 3  # BUG


class Sometimes(Images):
    def __getitem__(self, i):
        x = self.data[i]
        return x.double() if self.broken and i % 8 == 3 else x, i % 3  # BUG


class OneClass(Images):
    def __getitem__(self, i):
        return self.data[i], 0 if self.broken else i % 3  # BUG


class FromOne(Images):
    def __getitem__(self, i):
        return self.data[i], i % 3 + self.broken  # BUG


def bytes_declared(broken):
    return contract(Net, inputs=Floats("B 8", low=0.0, high=1.0), dataset=Pixels(broken))


SAMPLES = ("samples-valid", "dataset-labels")
ROW_31 = (
    Symptom(name="NaN in what is stored", make=data(Stored), checks=SAMPLES, code="sample-nan",
            says=("data[5] has NaN (1 of 24 samples read)", "the stored data contains them")),
    Symptom(name="no sample", make=data(Matched), checks=SAMPLES, code="dataset-empty", status="violated",
            says=("Matched holds no sample", "files is an empty list", "a wrong path, pattern or split")),
    Symptom(name="infinities made in the reading", make=data(Logs), checks=SAMPLES, code="sample-inf",
            says=("sample[0] has infinite values", "reading produces them")),
    Symptom(name="a range of 255", make=bytes_declared, checks=SAMPLES, code="sample-range",
            says=("255", "[0, 1]")),
    Symptom(name="fewer labels than samples", make=data(Shorter), checks=SAMPLES, code="sample-raises",
            says=("reading sample 20 of Shorter raises IndexError", "20 of 24 samples could be read")),
    Symptom(name="one sample for all", make=data(Same), checks=SAMPLES, code="samples-identical",
            says=("every sample of Same has the same input",)),
    Symptom(name="a type that varies", make=data(Sometimes), checks=SAMPLES, code="sample-dtype-varies",
            says=("sample 3 is Tensor float64", "where most are Tensor float32")),
    Symptom(name="one label for all", make=data(OneClass), checks=SAMPLES, code="label-constant",
            status="suspicious", says=("every label of OneClass is 0", "one value in 24 labels")),
    Symptom(name="labels from one", make=lambda b: contract(Net, dataset=FromOne(b)), checks=SAMPLES,
            code="label-range", says=("3",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_31))
def test_row_31(symptom: Symptom) -> None:
    """Size, types, NaN, range and labels of the samples, by the line that makes them so."""
    holds(symptom)


def test_row_31_to_look_at() -> None:
    """What one prints of a dataset stands in the evidence of the pass: types, range, mean, deviation, unique labels."""
    dataset = Images()
    report = Contract(dataset=dataset).check(SAMPLES)
    samples, labels = report.with_status("passed")
    assert samples.summary.startswith("24 of 24 samples were read")
    inputs, label = samples.evidence["samples"]
    assert (inputs["dtype"], inputs["shape"], inputs["nan or inf"]) == ("float32", [8], 0)
    for key, value in {"low": dataset.data.min(), "high": dataset.data.max(), "mean": dataset.data.mean(),
                       "std": dataset.data.std(correction=0)}.items():  # fmt: skip
        assert inputs[key] == pytest.approx(float(value), rel=1e-4), key
    assert label["type"] == "int"
    assert labels.evidence["labels"] == [{"label": k, "samples": 8} for k in range(3)]
    shown = render_report(report, verbosity=2)
    assert all(word in shown for word in ("mean", "std", "label", "float32"))


class Noisy(Net):
    """Its dropout is told its mode, or not."""

    def middle(self, h):
        return F.dropout(h, 0.5, True if self.broken else self.training)  # BUG


class Stuck(Net):
    def __init__(self, broken):
        super().__init__(broken)
        self.drop = nn.Dropout(0.5)

    def middle(self, h):
        return self.drop(h)

    def train(self, mode=True):
        if self.broken:
            self.training = mode  # BUG
            return self
        return super().train(mode)


class Normalised(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def middle(self, h):
        return self.norm(h)


HELD_OUT = torch.randn(6, 8, generator=torch.Generator().manual_seed(3))


def validates(mistake):
    """A step with a validation that forgets ``eval()``, or ``train()`` after it."""

    def make(broken):
        def validate(model):
            if not (broken and mistake == "eval"):
                model.eval()  # BUG
            with torch.no_grad():
                score = model(HELD_OUT).mean()  # BUG
            if not (broken and mistake == "train"):
                model.train()
            return score

        def step(model, optimizer, inputs, targets):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(*inputs), targets)
            loss.backward()
            optimizer.step()
            validate(model)
            return loss.detach()

        return contract(Normalised, train_step=step, optimizer=sgd)

    return make


class ByDtype(Net):
    """Right in full precision, wrong in the branch that only autocast takes."""

    def middle(self, h):
        if self.broken and h.dtype == torch.bfloat16:  # BUG
            return h
        return h / 4


class HalfWay(Net):
    def middle(self, h):
        return h.float() if self.broken else h  # BUG


class OverAt65504(Net):
    def middle(self, h):
        return (h * 1e5) / 1e5 if self.broken else h  # BUG


ROW_32 = (
    Symptom(name="dropout that eval() does not reach", make=lambda b: contract(lambda: Noisy(b)),
            checks=("eval-determinism",), code="random-in-eval", says=("training=self.training",)),
    Symptom(name="eval() that does not reach the parts", make=lambda b: contract(lambda: Stuck(b)),
            checks=("mode-flags",), code="mode-stuck", says=("eval() leaves drop in training mode", "super().train(mode)")),
    Symptom(name="a validation without eval()", make=validates("eval"), checks=("evaluation-leaves-trace",),
            code="evaluation-updates-statistics", says=("validate runs the model in training mode", "call model.eval()")),
    Symptom(name="a validation without train() after it", make=validates("train"), checks=("evaluation-leaves-trace",),
            code="eval-mode-left", says=("model.eval() is not undone", "call model.train()")),
    Symptom(name="a branch that only autocast takes",
            make=lambda b: contract(lambda: ByDtype(b), promises=(promises.Autocasts("bfloat16"),)),
            checks=("autocast",), code="autocast-differs",
            says=("under bfloat16 autocast output is different from full precision",)),
    Symptom(name="a cast that low precision does not survive",
            make=lambda b: contract(lambda: HalfWay(b), dtypes=("bfloat16",)),
            checks=("low-precision",), code="dtype-pair", says=("bfloat16 weights", "float32")),
    Symptom(name="a number beyond float16",
            make=lambda b: contract(lambda: OverAt65504(b), dtypes=("float16",)),
            checks=("low-precision",), code="precision-overflow", says=("not finite in float16",)),
)  # fmt: skip


@pytest.mark.parametrize("symptom", **named(*ROW_32))
def test_row_32(symptom: Symptom) -> None:
    """Each mode is run as itself: train and eval, and the declared precisions and autocast beside full precision."""
    holds(symptom)


def test_row_32_full_precision_hides_it() -> None:
    """The same model in full precision alone passes: what one sees with autocast off."""
    plain = contract(lambda: ByDtype(True)).check(
        ["backward", "gradients-finite", "output-stability"]
    )
    assert told(plain) == []
