"""Hold PyTorch models to contracts.

The public names are resolved lazily (PEP 562): importing this package imports no torch, so that
loading the pytest plugin costs nothing to the tests that do not use it. Its asserts are its own, so that
pytest need not rewrite them (PYTEST_DONT_REWRITE) nor warn where the package was imported before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import promises, strategies
    from .assertions import (
        assert_backward,
        assert_batch_independent,
        assert_causal,
        assert_contract,
        assert_ddp_equivalent,
        assert_eval_deterministic,
        assert_fsdp_equivalent,
        assert_gradcheck,
        assert_gradients,
        assert_inputs_unchanged,
        assert_loss,
        assert_overfits,
        assert_peak_memory,
        assert_portable,
        assert_registered,
        assert_restores,
        assert_seeded,
        assert_updates,
    )
    from .batches import Batch
    from .contracts import Contract, contract
    from .declared.limits import DeclarationError, Faster, Overfit, SlowerBy
    from .findings import ContractViolation, Culprit, Finding, Location, Report
    from .measure import (
        Growth,
        LargestBatch,
        Leak,
        MemoryProfile,
        Unmeasurable,
        assert_fits,
        assert_saves,
        find_leak,
        largest_batch,
        measure_growth,
        measure_memory,
    )
    from .specs import Floats, Ints, Labels, Mask, Same, TensorSpec, Tokens

__version__ = "0.2.0"

_HOME = {
    "Contract": "contracts",
    "DeclarationError": "declared.limits",
    "Overfit": "declared.limits",
    "contract": "contracts",
    "Faster": "declared.limits",
    "SlowerBy": "declared.limits",
    "TensorSpec": "specs",
    "Floats": "specs",
    "Ints": "specs",
    "Labels": "specs",
    "Tokens": "specs",
    "Mask": "specs",
    "Same": "specs",
    "Batch": "batches",
    "Report": "findings",
    "Finding": "findings",
    "Culprit": "findings",
    "Location": "findings",
    "ContractViolation": "findings",
    **dict.fromkeys(
        (
            "assert_backward",
            "assert_batch_independent",
            "assert_causal",
            "assert_contract",
            "assert_ddp_equivalent",
            "assert_fsdp_equivalent",
            "assert_eval_deterministic",
            "assert_gradcheck",
            "assert_gradients",
            "assert_inputs_unchanged",
            "assert_loss",
            "assert_overfits",
            "assert_peak_memory",
            "assert_portable",
            "assert_registered",
            "assert_restores",
            "assert_seeded",
            "assert_updates",
        ),
        "assertions",
    ),
    **dict.fromkeys(
        (
            "Growth",
            "LargestBatch",
            "Leak",
            "MemoryProfile",
            "Unmeasurable",
            "assert_fits",
            "assert_saves",
            "find_leak",
            "largest_batch",
            "measure_growth",
            "measure_memory",
        ),
        "measure",
    ),
}
_MODULES = ("promises", "strategies")

__all__ = [
    "Batch",
    "Contract",
    "ContractViolation",
    "Culprit",
    "DeclarationError",
    "Faster",
    "Finding",
    "Floats",
    "Growth",
    "Ints",
    "Labels",
    "LargestBatch",
    "Leak",
    "Location",
    "Mask",
    "MemoryProfile",
    "Overfit",
    "Report",
    "Same",
    "SlowerBy",
    "TensorSpec",
    "Tokens",
    "Unmeasurable",
    "assert_backward",
    "assert_batch_independent",
    "assert_causal",
    "assert_contract",
    "assert_ddp_equivalent",
    "assert_eval_deterministic",
    "assert_fits",
    "assert_fsdp_equivalent",
    "assert_gradcheck",
    "assert_gradients",
    "assert_inputs_unchanged",
    "assert_loss",
    "assert_overfits",
    "assert_peak_memory",
    "assert_portable",
    "assert_registered",
    "assert_restores",
    "assert_saves",
    "assert_seeded",
    "assert_updates",
    "contract",
    "find_leak",
    "largest_batch",
    "measure_growth",
    "measure_memory",
    "promises",
    "strategies",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name in _HOME:
        value = getattr(import_module(f".{_HOME[name]}", __name__), name)
        globals()[name] = value
        return value
    if name.startswith("_"):  # Python itself looks for what need not be there
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .text.wording import unknown  # needed for a misspelt name alone

    raise AttributeError(unknown(__name__, name, __all__))


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
