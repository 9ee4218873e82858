"""What a whole run of checks costs on a GPU, in plain training steps there, beside the same on the CPU.

``python benchmarks/bench_device.py encoder conv narrow:200`` prints one row for each word; the models are those of
``bench_cost.py``. Times are of the wall clock, since the host waits for the device; a plain step is measured in the same
process, and the first run of each device, which starts kernels and libraries, is not counted.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from bench_cost import adamw, made

from pytest_torchcheck import Contract


def settled(device: str) -> float:
    """Return the time once the device has nothing left to do, in seconds."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def step_seconds(word: str, device: str) -> float:
    """Return the median time of a plain training step."""
    model, x, y = made(word)
    model, x, y = model.to(device).train(), x.to(device), y.to(device)
    optimizer = adamw(model)

    def step() -> float:
        start = settled(device)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        return settled(device) - start

    for _ in range(3):
        step()
    return statistics.median([step() for _ in range(10)])


def check_seconds(word: str, device: str) -> tuple[float, str]:
    """Return the time of all checks, and what they came to."""
    model, x, y = made(word)
    declared = Contract(
        model=model, batch=((x,), y), loss=F.cross_entropy, optimizer=adamw, devices=(device,)
    )
    declared.check(["backward"])
    start = settled(device)
    report = declared.check()
    seconds = settled(device) - start
    passed = sum(finding.status == "passed" for finding in report.findings)
    wrong = sum(finding.status in ("violated", "error") for finding in report.findings)
    return seconds, f"{passed} passed, {wrong} not"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", default=["encoder", "conv", "narrow:200"])
    words = parser.parse_args().words
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    if devices[1:]:
        print(torch.cuda.get_device_name(), "torch", torch.__version__)
    print(f"{'model':12} {'device':6} {'step':>10} {'checks':>9} {'in steps':>9}")
    for word in words:
        for device in devices:
            step = step_seconds(word, device)
            seconds, outcome = check_seconds(word, device)
            print(
                f"{word:12} {device:6} {step * 1e3:7.2f} ms {seconds:7.2f} s {seconds / step:9.1f}  {outcome}"
            )


if __name__ == "__main__":
    main()
