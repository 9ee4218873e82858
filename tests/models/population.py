"""Hold a population of public models to the default catalogue, and print what came out.

A finding counts as a false alarm unless plain torch code shows that it is true: a parameter of which no
gradient ever comes is a truth, verified here without the plugin.
"""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from pytest_torchcheck.catalogue import catalogue

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_torchcheck import Contract, Finding

LEAN = tuple(catalogue())


@dataclass
class Population:
    """Counts over some models."""

    name: str
    models: int = 0
    cases: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    alarms: list[tuple[str, Finding]] = field(default_factory=list)
    truths: list[tuple[str, Finding]] = field(default_factory=list)

    def hold(
        self, name: str, contract: Contract, *, truth: Callable[[Finding], bool] = lambda _: False
    ) -> list[Finding]:
        """Check one model; return its false alarms."""
        report = contract.check(LEAN_FOR(contract), devices=["cpu"])
        self.models += 1
        self.cases += len(report.findings)
        self.statuses.update(report.counts())
        alarms = []
        for finding in report.findings:
            if finding.code == "internal-error":
                alarms.append(finding)
            elif finding.status == "violated" and finding.root is None:
                if truth(finding):
                    self.truths.append((name, finding))
                else:
                    alarms.append(finding)
        self.alarms += [(name, finding) for finding in alarms]
        return alarms

    def __str__(self) -> str:
        lines = [
            f"{self.name}: {self.models} models, {self.cases} findings: "
            + ", ".join(
                f"{count} {status}" for status, count in sorted(self.statuses.items()) if count
            ),
            f"{self.name}: {len(self.alarms)} false alarms, {len(self.truths)} verified truths",
        ]
        lines += [f"  alarm {name}: {f.check}/{f.code}: {f.summary}" for name, f in self.alarms]
        lines += [f"  truth {name}: {f.check}/{f.code}: {f.summary}" for name, f in self.truths]
        return "\n".join(lines)


def LEAN_FOR(contract: Contract) -> tuple[str, ...]:
    """Every check that applies to a declaration."""
    return tuple(name for name in LEAN if catalogue()[name].missing(contract) is None)


def dead_by_plain_torch(contract: Contract, names: Iterator[str] | list[str]) -> bool:
    """Say by plain torch code whether these parameters get no gradient from the loss, over five seeds."""
    names = list(names)
    for seed in range(5):
        torch.manual_seed(seed)
        model = contract.model() if contract.is_factory else contract.model
        assert contract.source is not None
        batch = contract.source.base(seed)
        model.train()
        model.zero_grad(set_to_none=True)
        output = model(*batch.args, **batch.kwargs)
        floats = [t for t in _tensors(output) if t.is_floating_point() and t.requires_grad]
        loss = (
            output["loss"]
            if contract.loss == "output"
            else sum((t * torch.randn_like(t)).sum() for t in floats)
        )
        loss.backward()
        parameters = dict(model.named_parameters())
        for name in names:
            grad = parameters[name].grad
            if grad is not None and bool((grad != 0).any()):
                return False
    return True


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def unused_is_true(contract: Contract) -> Callable[[Finding], bool]:
    """Return a judge of findings: missing or dead gradients are held against plain torch code."""

    def truth(finding: Finding) -> bool:
        if finding.code in ("crash", "non-finite-forward"):
            return _breaks_in_plain_torch(contract, finding.code)
        if finding.code not in ("grad-none", "grad-zero", "weight-static"):
            return False
        return dead_by_plain_torch(
            contract, [c.name for c in finding.culprits if c.kind == "parameter"]
        )

    return truth


def _breaks_in_plain_torch(contract: Contract, code: str) -> bool:
    """Say by plain torch code whether the model raises, or gives NaN or infinity, on its own batch."""
    assert contract.source is not None
    torch.manual_seed(0)
    model = contract.model() if contract.is_factory else contract.model
    batch = contract.source.base(0)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            output = model(*batch.args, **batch.kwargs)
    except RuntimeError:
        return code == "crash"
    return code != "crash" and any(
        not bool(t.isfinite().all()) for t in _tensors(output) if t.is_floating_point()
    )
