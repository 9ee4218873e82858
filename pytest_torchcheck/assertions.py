"""The checks one by one, as assertions for ordinary tests.

Each takes a model, a batch and what else the check needs, and raises
:class:`~pytest_torchcheck.findings.ContractViolation` with the same diagnosis that a contract gives. The
model, its gradients and all random states are put back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from . import promises as declared
from .contracts import Contract, DeclarationError, Overfit
from .findings import ContractViolation, Finding, Report

Loss = Callable[..., Any] | str | None
Model = nn.Module | Callable[[], nn.Module]


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


def _hold(
    checks: Sequence[str],
    model: Model | None,
    batch: Any,
    *,
    seed: int,
    device: str | None,
    **fields: Any,
) -> Report:
    __tracebackhide__ = True
    if device is not None:
        fields["devices"] = (device,)
    made = Contract(model=model, batch=batch, **{k: v for k, v in fields.items() if v is not None})
    report = made.check(checks, seed=seed)
    failed = [f for f in (*report.causes, *report.with_status("error")) if f.check in checks]
    if failed:
        raise ContractViolation(failed) from None
    _not_vacuous(report.findings, checks)
    return report


def _not_vacuous(findings: Sequence[Finding], checks: Sequence[str]) -> None:
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
    _hold(("backward",), model, batch, loss=loss, seed=seed, device=device, **fields)


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
    _hold(
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
    _hold(
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
    _hold(
        ("overfit",), model, batch, loss=loss, optimizer=optimizer, overfit=Overfit(steps=steps, ratio=ratio),
        seed=seed, device=device, **fields,
    )  # fmt: skip


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
        function: ``MyFunction.apply``, any differentiable callable, or a module (its parameters are checked too).
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
    _not_vacuous(report.findings, ("gradcheck",))


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
    _hold(
        ("peak-memory",), model, batch, loss=loss, optimizer=optimizer, memory=ceiling, seed=seed, device=device, **fields
    )  # fmt: skip


def _assertion(name: str, what: str, *checks: str) -> Callable[..., None]:
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
        _hold(checks, model, batch, loss=loss, seed=seed, device=device, **fields)

    hold.__name__ = hold.__qualname__ = name
    hold.__doc__ = (
        f"Assert that {what}.\n\n    Arguments and errors as for :func:`assert_backward`.\n    "
    )
    return hold


assert_batch_independent = _assertion(
    "assert_batch_independent",
    "a sample's output depends on that sample alone",
    "batch-independence",
)
assert_eval_deterministic = _assertion(
    "assert_eval_deterministic",
    "eval mode is deterministic and changes nothing",
    "eval-determinism",
    "eval-purity",
)
assert_inputs_unchanged = _assertion(
    "assert_inputs_unchanged", "the forward does not write to its inputs", "inputs-unchanged"
)
assert_loss = _assertion(
    "assert_loss", "the loss is connected, fits its targets and has the right sign",
    "loss-sound", "loss-shapes",
)  # fmt: skip
assert_portable = _assertion(
    "assert_portable",
    "the model follows to another device, without needing one",
    "device-portability",
)
assert_registered = _assertion(
    "assert_registered", "every module and tensor that the model uses is registered", "registration"
)
assert_restores = _assertion(
    "assert_restores", "a state_dict restores the outputs in a fresh model", "state-dict-roundtrip"
)
assert_seeded = _assertion(
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
    _hold(("causality",), model, batch, seed=seed, device=device, **fields)


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

    Model, loss, optimizer and train step are sent to spawned processes: write them as functions or classes at
    the top level of a file.

    Args:
        model, batch, loss, seed, device, fields: As for :func:`assert_backward`; the batch needs ``ranks``
            samples at least.
        ranks: How many processes.
        train_step: ``(model, optimizer, inputs, targets) -> loss``, also run with the wrapped model on every rank.

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
    _hold(
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
        wrap: ``(model)``: shards the model in place by ``fully_shard``; every module of a ``ModuleList`` and the
            model itself by default.
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
    _hold(
        ("fsdp-equivalence",), model, batch, seed=seed, device=device, loss=loss, ranks=ranks, **fields
    )  # fmt: skip


__all__ = [name for name in dir() if name.startswith("assert_")]
