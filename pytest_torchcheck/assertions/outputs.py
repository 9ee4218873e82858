"""Assertions about what a model returns."""

from __future__ import annotations

from typing import Any

from .. import promises as declared
from .base import Model, assertion_of, hold_to

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
