"""How an assertion holds a model to a check: an unexpected finding raises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from ..contracts import Contract
from ..findings import ContractViolation, Finding, Report

Loss = Callable[..., Any] | str | None
Model = nn.Module | Callable[[], nn.Module]


def hold_to(
    checks: Sequence[str],
    model: Model | None,
    batch: Any,
    *,
    seed: int,
    device: str | None,
    **fields: Any,
) -> Report:
    """Hold a model to checks, and raise what is violated."""
    __tracebackhide__ = True
    if device is not None:
        fields["devices"] = (device,)
    made = Contract(model=model, batch=batch, **{k: v for k, v in fields.items() if v is not None})
    report = made.check(checks, seed=seed)
    failed = [f for f in (*report.causes, *report.with_status("error")) if f.check in checks]
    if failed:
        raise ContractViolation(failed) from None
    not_vacuous(report.findings, checks)
    return report


def not_vacuous(findings: Sequence[Finding], checks: Sequence[str]) -> None:
    """Fail an assertion that could not have failed: asked for by name, it must have been checked."""
    __tracebackhide__ = True
    for name in checks:
        of_check = [f for f in findings if f.check == name]
        if not any(f.status in ("passed", "suspicious") for f in of_check):
            empty = [f for f in of_check if f.status in ("inconclusive", "not-applicable")]
            if empty:
                raise ContractViolation(
                    [
                        f.replace(
                            status="violated", summary=f"{name} could not be asserted: {f.summary}"
                        )
                        for f in empty
                    ]
                ) from None


def assertion_of(name: str, what: str, *checks: str) -> Callable[..., None]:
    """Make an assertion of checks that need nothing but a model and a batch."""

    def hold(
        model: Model,
        batch: Any,
        *,
        loss: Loss = None,
        seed: int = 0,
        device: str | None = None,
        **fields: Any,
    ) -> None:
        __tracebackhide__ = True
        hold_to(checks, model, batch, loss=loss, seed=seed, device=device, **fields)

    hold.__name__ = hold.__qualname__ = name
    hold.__doc__ = (
        f"Assert that {what}.\n\n    Arguments and errors as for :func:`assert_backward`.\n    "
    )
    return hold
