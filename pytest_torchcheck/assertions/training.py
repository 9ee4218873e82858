"""Assertions about a model: what it returns, its gradients and its training steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import promises as declared
from ..declared.limits import Overfit
from .base import Loss, Model, assertion_of, hold_to

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


assert_batch_independent = assertion_of(
    "assert_batch_independent",
    "a sample's output depends on that sample alone",
    "batch-independence",
)
assert_eval_deterministic = assertion_of(
    "assert_eval_deterministic",
    "eval mode is deterministic and changes nothing",
    "eval-determinism",
    "eval-purity",
)
assert_gradients = assertion_of(
    "assert_gradients",
    "every trainable parameter gets a finite gradient that is not always zero",
    "gradients-exist",
    "gradients-finite",
)
assert_inputs_unchanged = assertion_of(
    "assert_inputs_unchanged", "the forward does not write to its inputs", "inputs-unchanged"
)
assert_loss = assertion_of(
    "assert_loss", "the loss is connected, fits its targets and has the right sign",
    "loss-sound", "loss-shapes",
)  # fmt: skip
assert_portable = assertion_of(
    "assert_portable",
    "the model follows to another device, without needing one",
    "device-portability",
)
assert_registered = assertion_of(
    "assert_registered", "every module and tensor that the model uses is registered", "registration"
)
assert_restores = assertion_of(
    "assert_restores", "a state_dict restores the outputs in a fresh model", "state-dict-roundtrip"
)
assert_seeded = assertion_of(
    "assert_seeded", "torch's seed alone decides the training forward", "seeding"
)


def assert_causal(
    model: Model,
    batch: Any,
    *,
    dim: int = 1,
    output_dim: int = 1,
    seed: int = 0,
    device: str | None = None,
    **fields: Any,
) -> None:
    """Assert that the output at position t does not depend on the input after t.

    Args:
        model, batch, seed, device, fields: As for :func:`assert_backward`.
        dim: Dimension of the first input that is time.
        output_dim: Dimension of the output that is time.

    Raises:
        ContractViolation: It does; the operation through which it does.
    """
    __tracebackhide__ = True
    promise = declared.Causal(dim=dim, output_dim=output_dim)
    fields["promises"] = (*fields.get("promises", ()), promise)
    hold_to(("causality",), model, batch, seed=seed, device=device, **fields)
