"""Run a whole contract at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .. import compiler, outcomes, verdicts
from ..catalogue import catalogue
from ..declared.limits import DEVICE_TYPES, DeclarationError
from ..findings import Finding, Report
from ..heard import say_again
from ..state import randomness_kept, repeatable, settings_kept
from ..text.wording import unknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..contracts import Contract

from .running import Runner
from .selection import Case, cases, no_device, ordered


def run_contract(
    contract: Contract,
    *,
    checks: Sequence[str] | None = None,
    seed: int = 0,
    examples: int | None = None,
    devices: Sequence[str] | None = None,
    strict: bool = False,
) -> Report:
    """Run all cases of a contract; see :meth:`Contract.check`."""
    known = tuple(catalogue())
    for name in checks or ():
        if name not in known:
            raise DeclarationError(unknown("checks", name, known))
    if examples is not None and (
        isinstance(examples, bool) or not isinstance(examples, int) or examples < 1
    ):
        raise DeclarationError(f"examples: must be a whole number of at least 1; got {examples!r}")
    for device in devices or ():
        if device.partition(":")[0] not in DEVICE_TYPES:
            raise DeclarationError(unknown("devices", device, DEVICE_TYPES))
    runner = Runner(contract, seed=seed, examples=examples, strict=strict)
    chosen = [
        case
        for case in ordered(contract, cases(contract, devices=devices))
        if checks is None or case.check.name in checks
    ]
    absent: list[Finding] = []
    for name in checks or ():
        if not any(case.check.name == name for case in chosen):
            reason = (
                catalogue()[name].missing(contract)
                or "it does not apply to these devices and dtypes"
            )
            absent.append(
                verdicts.not_applicable(reason).replace(check=name, contract=contract.name)
            )
    try:
        runner.expect(chosen)
        absent += _run(runner, chosen)
        report = runner.report()
    finally:
        runner.close()
    findings = (*report.findings, *absent)
    if strict:
        findings = outcomes.strictly(findings)
    made = Report(
        contract=report.contract,
        findings=findings,
        seconds=report.seconds,
        environment=report.environment,
    )
    refused = say_again(runner.heard())
    if refused is not None and made.ok:  # what was found is never replaced by a warning
        raise refused
    return made


def _run(runner: Runner, chosen: Sequence[Case]) -> Iterator[Finding]:
    """Run cases, and tell those whose device is not there."""
    with settings_kept(), randomness_kept(), compiler.unloaded():  # once, not for each case
        repeatable()
        for case in chosen:
            if case.device.startswith("cuda") and not torch.cuda.is_available():
                yield no_device(case, runner.contract)
                continue
            runner.run(case)
