"""Assertions about whole contracts, about a model on several ranks, and about the package's own instruments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from .. import promises as declared
from ..contracts import Contract
from ..declared.limits import DeclarationError
from ..findings import ContractViolation, Report
from .base import Loss, Model, hold_to, not_vacuous

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


def assert_contract(
    contract: Contract, *checks: str, seed: int = 0, strict: bool = False
) -> Report:
    """Hold a contract, or some of its checks.

    Args:
        contract: The contract.
        checks: Names of the checks; all that apply by default.
        seed: Decides every random choice.
        strict: Let ``suspicious`` and ``inconclusive`` fail too.

    Returns:
        The report, when nothing is violated.

    Raises:
        ContractViolation: Something is violated.
        DeclarationError: A named check does not exist.
    """
    __tracebackhide__ = True
    report = contract.check(checks or None, seed=seed, strict=strict)
    if not report.ok:
        raise ContractViolation(report.failing) from None
    return report


def assert_gradcheck(
    function: Callable[..., Any],
    inputs: Any,
    *,
    name: str | None = None,
    twice: bool = False,
    seed: int = 0,
) -> None:
    """Assert that the derivatives of a function, such as ``Square.apply``, are right.

    Args:
        function: ``MyFunction.apply``, any differentiable callable, or a module (its parameters are
            checked too).
        inputs: A tuple of its arguments; float64 is used whatever their dtype.
        name: Name in the message.
        twice: Check second derivatives too.
        seed: Decides every random choice.

    Raises:
        ContractViolation: A derivative is wrong; which, where, and how it relates to the right one.
    """
    __tracebackhide__ = True
    given = inputs if isinstance(inputs, tuple | Mapping) else (inputs,)
    label = name or getattr(function, "__qualname__", type(function).__name__)
    made = Contract(
        functions={label: (function, given)},  # type: ignore[dict-item]
        promises=(declared.TwiceDifferentiable(),) if twice else (),
    )
    report = made.check(seed=seed)
    if not report.ok:
        raise ContractViolation(report.failing) from None
    not_vacuous(report.findings, ("gradcheck",))


def assert_peak_memory(
    model: Model,
    batch: Any,
    ceiling: int | str | Mapping[str, int | str],
    *,
    loss: Loss = None,
    optimizer: Callable[[nn.Module], Any] | None = None,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> None:
    """Assert that one training step's peak stays under a ceiling.

    Args:
        model, batch, loss, seed, device, fields: As for :func:`assert_backward`.
        ceiling: Bytes, ``"64 MiB"``, or a mapping from phase or category to one.
        optimizer: ``(model) -> Optimizer``.

    Raises:
        ContractViolation: The peak is higher; what holds it, by line.
    """
    __tracebackhide__ = True
    hold_to(
        ("peak-memory",), model, batch, loss=loss, optimizer=optimizer, memory=ceiling, seed=seed, device=device, **fields
    )  # fmt: skip


def assert_ddp_equivalent(
    model: Model,
    batch: Any,
    *,
    loss: Loss = None,
    ranks: int = 2,
    train_step: Callable[..., Any] | None = None,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> None:
    """Assert that data-parallel ranks compute what one process computes, start alike and stay alike.

    Model, loss, optimizer and train step are sent to spawned processes: write them as functions or
    classes at the top level of a file.

    Args:
        model, batch, loss, seed, device, fields: As for :func:`assert_backward`; the batch needs
            ``ranks`` samples at least.
        ranks: How many processes.
        train_step: ``(model, optimizer, inputs, targets) -> loss``, also run with the wrapped model
            on every rank.

    Raises:
        ContractViolation: They do not, or it cannot be told; a hang is one too, with each rank's stack.
        DeclarationError: ``ranks`` is not from 2 to 16.
    """
    __tracebackhide__ = True
    if isinstance(ranks, int) and ranks < 2:
        raise DeclarationError(f"ranks: must be an int from 2 to 16; got {ranks!r}")
    checks: tuple[str, ...] = ("ddp-equivalence", "rank-consistency")
    if train_step is not None:
        checks = (*checks, "distributed-steps")
    hold_to(
        checks,
        model,
        batch,
        seed=seed,
        device=device,
        loss=loss,
        ranks=ranks,
        train_step=train_step,
        **fields,
    )


def assert_fsdp_equivalent(
    model: Model,
    batch: Any,
    *,
    loss: Loss = None,
    ranks: int = 2,
    wrap: Callable[..., Any] | None = None,
    meta: bool | Callable[..., Any] = False,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> None:
    """Assert that the model, sharded by FSDP2, computes, steps, saves and loads what it does in one process.

    Args:
        model, batch, loss, ranks, seed, device, fields: As for :func:`assert_ddp_equivalent`.
        wrap: ``(model)``: shards the model in place by ``fully_shard``; every module of a
            ``ModuleList`` and the model itself by default.
        meta: Whether the model can be built on meta and given memory afterwards, or how: ``(model)``.

    Raises:
        ContractViolation: It does not, or it cannot be told.
        DeclarationError: ``ranks`` is not from 2 to 16.
    """
    __tracebackhide__ = True
    if isinstance(ranks, int) and ranks < 2:
        raise DeclarationError(f"ranks: must be an int from 2 to 16; got {ranks!r}")
    promise = declared.FullyShards(wrap, meta=meta)
    fields["promises"] = (*fields.get("promises", ()), promise)
    hold_to(
        ("fsdp-equivalence",), model, batch, seed=seed, device=device, loss=loss, ranks=ranks, **fields
    )  # fmt: skip
