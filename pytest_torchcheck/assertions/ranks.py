"""Assertions about a model on several ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import promises as declared
from ..declared.limits import DeclarationError
from .base import Loss, Model, hold_to

if TYPE_CHECKING:
    from collections.abc import Callable


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
