"""What each check costs in plain training steps, how that grows, and how much memory a whole run takes.

``python benchmarks/bench_cost.py encoder conv narrow:1000 growth memory`` prints one table for each word. Times are
processor times of one thread; a plain step is measured in the same process, right before; imports are not counted:
the checks of a small model come first. Memory is the peak of the
resident set of a process of its own, beside that of one which takes plain steps alone.
"""

from __future__ import annotations

import argparse
import gc
import math
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from bench_catalogue import Encoder, lean
from timing import median
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from pytest_torchcheck import Contract
from pytest_torchcheck.runner import Runner, cases

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Made = tuple[nn.Module, torch.Tensor, torch.Tensor]


class Inverted(nn.Module):
    """An inverted residual: expand, one kernel for each channel, squeeze and excite, project."""

    def __init__(self, width: int, out: int, stride: int, expand: int = 4) -> None:
        super().__init__()
        hidden = width * expand
        self.expand = nn.Sequential(
            nn.Conv2d(width, hidden, 1, bias=False), nn.BatchNorm2d(hidden), nn.SiLU()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.SiLU(),
        )
        self.squeeze = nn.Conv2d(hidden, width // 4, 1)
        self.excite = nn.Conv2d(width // 4, hidden, 1)
        self.project = nn.Sequential(nn.Conv2d(hidden, out, 1, bias=False), nn.BatchNorm2d(out))
        self.skips = stride == 1 and width == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return features, shape (batch, out, height / stride, width / stride)."""
        y = self.depthwise(self.expand(x))
        gate = self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True))))
        y = self.project(y * torch.sigmoid(gate))
        return x + y if self.skips else y


def encoder(layers: int = 11) -> Made:
    """A text encoder, 38.8 million parameters with 11 layers."""
    model = Encoder(8000, 512, layers, 8, 2048, classes=100)
    return model, torch.randint(0, 8000, (8, 32)), torch.randint(0, 100, (8,))


def conv() -> Made:
    """An efficient convolutional net of 0.8 million parameters."""
    blocks: list[nn.Module] = []
    width = 24
    for out, count in ((24, 2), (48, 3), (80, 3), (112, 2)):
        for place in range(count):
            blocks.append(Inverted(width, out, 2 if place == 0 and out > 24 else 1))
            width = out
    model = ConvNet(
        nn.Conv2d(3, 24, 3, 2, 1, bias=False), nn.BatchNorm2d(24), nn.SiLU(), *blocks,
        nn.Conv2d(width, 256, 1), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip
    return model, torch.randn(8, 3, 48, 48), torch.randint(0, 10, (8,))


class ConvNet(nn.Sequential):
    """A class of its own, so that its runs can be counted."""


class Narrow(nn.Module):
    """Many small residual layers: more modules than work."""

    def __init__(self, modules: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(modules)])
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, 10)."""
        for layer in self.layers:
            x = x + 0.1 * torch.tanh(layer(x))
        return self.head(x)


class Vanishing(Narrow):
    """The same layers behind one that gives zeros: no gradient reaches them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits, shape (batch, 10)."""
        for layer in self.layers:
            x = torch.relu(layer(x) - 10.0)
        return self.head(x)


def narrow(modules: int = 1000) -> Made:
    """A deep narrow net of many modules."""
    return Narrow(modules), torch.randn(8, 16), torch.randint(0, 10, (8,))


def vanishing(modules: int = 1000) -> Made:
    """A deep narrow net to which no gradient comes."""
    return Vanishing(modules), torch.randn(8, 16), torch.randint(0, 10, (8,))


def large(millions: int = 200) -> Made:
    """A text encoder of about so many million parameters."""
    layers = max(1, round(millions * 1e6 / 12.6e6))
    model = Encoder(8000, 1024, layers, 8, 4096, classes=100)
    return model, torch.randint(0, 8000, (2, 16)), torch.randint(0, 100, (2,))


MODELS: dict[str, Callable[..., Made]] = {
    "encoder": encoder, "conv": conv, "narrow": narrow, "vanishing": vanishing, "large": large,
}  # fmt: skip


def made(word: str) -> Made:
    """Make the model of a word such as ``narrow:1000``."""
    torch.manual_seed(0)
    name, _, size = word.partition(":")
    return MODELS[name](*([int(size)] if size else []))


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all runs."""
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def plain_step(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Return one plain training step."""
    optimizer = adamw(model)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step


class Counts:
    """Counts runs of the model, backward passes, steps of an optimizer."""

    def __init__(self, kind: type[nn.Module]) -> None:
        self.kind = kind
        self.found = {"F": 0, "B": 0, "S": 0}

    def take(self) -> str:
        """Return the counts so far, as text, and begin again."""
        text = " ".join(f"{n}{kind}" for kind, n in self.found.items() if n)
        self.found = dict.fromkeys(self.found, 0)
        return text

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count inside."""
        engine, forward = torch.autograd.graph._engine_run_backward, self.kind.forward
        found = self

        def run_backward(*args: Any, **kwargs: Any) -> Any:
            found.found["B"] += 1
            return engine(*args, **kwargs)

        def run_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            found.found["F"] += 1
            return forward(module, *args, **kwargs)

        def stepped(*_: Any) -> None:
            found.found["S"] += 1

        handle = register_optimizer_step_post_hook(stepped)
        homes = (torch.autograd, torch.autograd.graph, sys.modules["torch._tensor"])
        with_it = [m for m in homes if hasattr(m, "_engine_run_backward")]
        for home in with_it:
            home._engine_run_backward = run_backward  # type: ignore[attr-defined]
        self.kind.forward = run_forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            handle.remove()
            for home in with_it:
                home._engine_run_backward = engine  # type: ignore[attr-defined]
            self.kind.forward = forward  # type: ignore[method-assign]


class Sampler:
    """Samples the stack by processor time: a tracing profiler distorts, and recorders of calls switch it off."""

    def __init__(self) -> None:
        self.cumulative: Counter[str] = Counter()
        self.samples = 0

    def _take(self, _: int, frame: Any) -> None:
        self.samples += 1
        seen: set[str] = set()
        while frame is not None:
            code = frame.f_code
            place = f"{code.co_filename}:{code.co_firstlineno} {code.co_qualname}"
            if place not in seen:
                seen.add(place)
                self.cumulative[place] += 1
            frame = frame.f_back

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Sample inside, every 2 ms."""
        before = signal.signal(signal.SIGPROF, self._take)
        signal.setitimer(signal.ITIMER_PROF, 0.002, 0.002)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            signal.signal(signal.SIGPROF, before)

    def show(self, most: int = 60) -> None:
        """Print the functions in which most time passed, callees included."""
        for place, count in self.cumulative.most_common(most):
            print(f"  {100 * count / max(self.samples, 1):5.1f} %  {place}")


def by_check(word: str, only: str = "", profile: str = "") -> dict[str, float]:
    """Print and return what each check costs in plain steps, in one run of all of them."""
    _whole(*made("narrow:3"))  # imports what the checks need
    model, x, y = made(word)
    plain = median(plain_step(model, x, y))
    model, x, y = made(word)
    contract = Contract(model=model, batch=((x,), y), loss=F.cross_entropy, optimizer=adamw)
    names = lean(contract)
    found: dict[str, float] = {}
    counts = Counts(type(model))
    sampler = Sampler()
    runner = Runner(contract)
    notes = {}
    with counts.counting():
        for case in cases(contract):
            if case.check.name not in names or (only and case.check.name not in only.split(",")):
                continue
            profiled = profile and re.fullmatch(profile, case.check.name)
            start = time.process_time()
            with sampler.sampling() if profiled else nullcontext():
                status = runner.run(case)[0].status
            found[case.check.name] = (time.process_time() - start) / plain
            notes[case.check.name] = f"{counts.take():12} {status if status != 'passed' else ''}"
        start = time.process_time()
        report = runner.report()
        found["(report)"] = (time.process_time() - start) / plain
    runner.close()
    total = sum(p.numel() for p in model.parameters()) / 1e6
    print(f"\n{word}: {total:.1f} M parameters, a plain step takes {plain * 1000:.0f} ms")
    for name, cost in sorted(found.items(), key=lambda item: -item[1]):
        if cost >= 0.05 or len(found) < 9:
            print(f"  {cost:7.2f}  {name:28} {notes.get(name, '')}")
    print(f"  {sum(found.values()):7.2f}  all ({len(found)}; {len(report.findings)} findings)")
    if profile:
        sampler.show()
    return found


def power(sizes: list[int], seconds: list[float]) -> float:
    """Return the power with which some seconds grow, fitted to their logarithms."""
    xs, ys = [math.log(s) for s in sizes], [math.log(s) for s in seconds]
    mx, my = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((x - mx) * (y - my) for x, y in zip(xs, ys, strict=True)) / sum(
        (x - mx) ** 2 for x in xs
    )


def seconds_of(word: str) -> float:
    """Return the processor time of all checks but overfit."""
    model, x, y = made(word)
    contract = Contract(model=model, batch=((x,), y), loss=F.cross_entropy, optimizer=adamw)
    gc.collect()
    start = time.process_time()
    contract.check(lean(contract))
    return time.process_time() - start


def growth() -> None:
    """Print the fitted powers of growth in modules, modules without a gradient, and parameters."""
    for name, sizes in (
        ("narrow", [250, 500, 1000, 2000]),
        ("vanishing", [250, 500, 1000]),
        ("encoder", [3, 6, 12, 24]),
    ):
        seconds = [seconds_of(f"{name}:{size}") for size in sizes]
        told = ", ".join(f"{n}: {s:.1f} s" for n, s in zip(sizes, seconds, strict=True))
        print(f"{name}: {told}; power {power(sizes, seconds):.2f}")


def peak(word: str, what: str) -> None:
    """Print the peak of this process above what stood before, in bytes; run in a process of its own."""
    for small in (made("narrow:3"),):  # what is loaded once is no matter of the model's size
        _whole(*small) if what == "checks" else plain_step(*small)()
    gc.collect()
    before = _resident("VmRSS")
    model, x, y = made(word)
    Path("/proc/self/clear_refs").write_text("5")
    if what == "checks":
        _whole(model, x, y)
    else:
        step = plain_step(model, x, y)
        step(), step()
    size = sum(p.numel() * p.element_size() for p in model.parameters())
    print(f"PEAK {(_resident('VmHWM') - before) / size}")


def _whole(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    contract = Contract(model=model, batch=((x,), y), loss=F.cross_entropy, optimizer=adamw)
    contract.check(lean(contract))


def _resident(which: str) -> int:
    text = Path("/proc/self/status").read_text()
    return int(re.findall(rf"{which}:\s+(\d+)", text)[0]) * 1024


def memory(word: str) -> None:
    """Print the peak of plain steps and of all checks, as multiples of the model's bytes."""
    found = {}
    for what in ("steps", "checks"):
        command = [sys.executable, __file__, f"peak={what}", word]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found[what] = float(re.findall(r"PEAK (\S+)", done.stdout)[0])
    print(
        f"{word}: two plain steps {found['steps']:.2f} times the model, all checks {found['checks']:.2f}, "
        f"that is {found['checks'] - found['steps']:.2f} more"
    )


def main() -> None:
    """Print what the words ask for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "words", nargs="*", default=["encoder", "conv", "narrow:1000", "growth", "memory=large:100"]
    )
    parser.add_argument("--only", default="", help="names of checks, by commas")
    parser.add_argument("--profile", default="", help="checks to profile, as a regular expression")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.words[0].startswith("peak="):
        peak(options.words[1], options.words[0].removeprefix("peak="))
        return
    for word in options.words:
        if word == "growth":
            growth()
        elif word.startswith("memory="):
            memory(word.removeprefix("memory="))
        else:
            by_check(word, options.only, options.profile)


if __name__ == "__main__":
    main()
