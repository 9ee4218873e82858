"""Hold one model of the zoo to the default checks and print what came out as one line of JSON."""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import time
import warnings
from collections import Counter
from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from tests.models.zoo import ZOO

if TYPE_CHECKING:
    from collections.abc import Callable

FAMILIES = (
    "text", "vision", "images", "graphs", "densities", "sequences", "mixed", "odd", "odd_training",
    "language", "perception", "science", "recognition", "structures",
)  # fmt: skip


def load() -> None:
    """Import every family, which fills the table."""
    for family in FAMILIES:
        import_module(f"tests.models.zoo.{family}")


def plain_step(fields: dict[str, Any]) -> float:
    """Run forward, loss and backward without the plugin; return the loss."""
    inputs, targets = fields["batch"]
    torch.manual_seed(0)
    model = fields["model"]()
    output = model(**inputs) if isinstance(inputs, dict) else model(*inputs)
    loss = fields["loss"]
    if loss == "output":
        value = output if isinstance(output, torch.Tensor) else getattr(output, "loss", None)
        value = output[0] if value is None else value
    else:
        value = loss(output, targets)
    value.backward()
    return float(value)


def cost_of(call: Callable[[], Any]) -> float:
    """Return the processor seconds of a call: the clock is coarse, so calls fill 0.2 s."""
    start, calls = time.process_time(), 0
    while time.process_time() - start < 0.2:
        call()
        calls += 1
    return (time.process_time() - start) / calls


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.models.zoo", description=__doc__)
    parser.add_argument("name", nargs="*")
    parser.add_argument("--plain", action="store_true", help="run one plain training step only")
    parser.add_argument("--checks", help="names of checks, with commas between them")
    parser.add_argument("--device", help="where the model is held to them")
    parser.add_argument("--show", default="violated,error", help="statuses to print in full")
    parser.add_argument("--seconds", type=int, help="of processor time, after which it is killed")
    options = parser.parse_args()
    if options.seconds:
        resource.setrlimit(resource.RLIMIT_CPU, (options.seconds, options.seconds))
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    os.environ["HF_HUB_OFFLINE"] = "1"
    torch.set_num_threads(1)
    load()
    if not options.name:
        print("\n".join(sorted(ZOO)))
        return
    for name in options.name:
        hold(name, options)


def hold(name: str, options: argparse.Namespace) -> None:
    """Check one model and print the outcome."""
    torch.manual_seed(0)
    fields = ZOO[name]()
    loss = plain_step(fields)
    step = cost_of(lambda: plain_step(fields))
    if options.plain:
        print(f"{name}: loss {loss:.4g}, {step * 1e3:.1f} ms")
        return
    from pytest_torchcheck import Contract

    start = time.process_time()
    contract = Contract(**fields, **({"devices": (options.device,)} if options.device else {}))
    report = contract.check(options.checks.split(",")) if options.checks else contract.check()
    cost = time.process_time() - start
    outcome = {
        "name": name,
        "seconds": round(cost, 1),
        "step_ms": round(step * 1e3, 2),
        "steps": round(cost / step),
        "counts": dict(Counter(f.status for f in report.findings)),
        "red": [[f.status, f.check, f.code] for f in report.findings
                if f.status in ("violated", "error") and f.root is None],
    }  # fmt: skip
    print(json.dumps(outcome))
    for finding in report.findings:
        if finding.status in options.show.split(","):
            print(f"---- {finding.status} {finding.check} [{finding.code}]\n{finding}")


if __name__ == "__main__":
    main()
