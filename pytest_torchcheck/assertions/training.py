"""Assertions about gradients and training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import promises as declared
from ..declared.limits import Overfit
from .base import Loss, Model, hold_to

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn


def assert_backward(
    model: Model,
    batch: Any,
    *,
    loss: Loss = None,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> None:
    """Assert that backward of the loss succeeds, and again after a step.

    Args:
        model: A module or a factory.
        batch: ``(inputs, targets)``, or inputs alone without a loss.
        loss: ``loss(output, targets)`` or ``"output"``; a random projection of the outputs by default.
        seed: Decides every random choice.
        device: Where to run; the CPU, and CUDA where present, by default.
        fields: Further fields of :class:`~pytest_torchcheck.contracts.Contract`.

    Raises:
        ContractViolation: It does not; the error is explained.
    """
    __tracebackhide__ = True
    hold_to(("backward",), model, batch, loss=loss, seed=seed, device=device, **fields)


def assert_gradients(
    model: Model,
    batch: Any,
    *,
    loss: Loss = None,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> None:
    """Assert that every trainable parameter gets a finite gradient that is not always zero.

    Arguments and errors as for :func:`assert_backward`.
    """
    __tracebackhide__ = True
    hold_to(
        ("gradients-exist", "gradients-finite"),
        model,
        batch,
        loss=loss,
        seed=seed,
        device=device,
        **fields,
    )


def assert_updates(
    model: Model,
    batch: Any,
    *,
    loss: Loss = None,
    optimizer: Callable[[nn.Module], Any] | None = None,
    train_step: Callable[..., Any] | None = None,
    frozen: Sequence[str] = (),
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> None:
    """Assert that a training step moves every trainable parameter, and nothing that is frozen.

    Args:
        model, batch, loss, seed, device, fields: As for :func:`assert_backward`.
        optimizer: ``(model) -> Optimizer``, the user's own.
        train_step: ``(model, optimizer, inputs, targets) -> loss``, the user's own.
        frozen: Globs of parameters and buffers that must stay.

    Raises:
        ContractViolation: Something stands still or drifts.
    """
    __tracebackhide__ = True
    if frozen:
        fields["promises"] = (
            *fields.get("promises", ()),
            declared.Frozen(*frozen, reason="asserted"),
        )
    checks = (
        ["weights-update"]
        + (["optimizer-coverage"] if optimizer else [])
        + (["frozen-stays"] if frozen else [])
    )
    hold_to(
        checks, model, batch, loss=loss, optimizer=optimizer, train_step=train_step, seed=seed, device=device, **fields
    )  # fmt: skip


def assert_overfits(
    model: Model,
    batch: Any,
    *,
    loss: Loss,
    optimizer: Callable[[nn.Module], Any] | None = None,
    steps: int = 300,
    ratio: float = 0.1,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> None:
    """Assert that one batch can be memorised.

    Args:
        model, batch, seed, device, fields: As for :func:`assert_backward`.
        loss: ``loss(output, targets)`` or ``"output"``.
        optimizer: ``(model) -> Optimizer``, tried first; then Adam at a rate that adapts.
        steps: Most plain training steps that may be spent.
        ratio: What part of the distance to the loss's floor may remain.

    Raises:
        ContractViolation: The loss stays above.
    """
    __tracebackhide__ = True
    hold_to(
        ("overfit",), model, batch, loss=loss, optimizer=optimizer, overfit=Overfit(steps=steps, ratio=ratio),
        seed=seed, device=device, **fields,
    )  # fmt: skip
