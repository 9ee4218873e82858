"""The checks one by one, as assertions for ordinary tests.

Each takes a model, a batch and what else the check needs, and raises
:class:`~pytest_torchcheck.findings.ContractViolation` with the same diagnosis that a contract gives. The
model, its gradients and all random states are put back.
"""

from __future__ import annotations

from .base import Loss as Loss
from .base import Model as Model
from .contracts import assert_contract as assert_contract
from .contracts import assert_ddp_equivalent as assert_ddp_equivalent
from .contracts import assert_fsdp_equivalent as assert_fsdp_equivalent
from .contracts import assert_gradcheck as assert_gradcheck
from .contracts import assert_peak_memory as assert_peak_memory
from .training import assert_backward as assert_backward
from .training import assert_batch_independent as assert_batch_independent
from .training import assert_causal as assert_causal
from .training import assert_eval_deterministic as assert_eval_deterministic
from .training import assert_gradients as assert_gradients
from .training import assert_inputs_unchanged as assert_inputs_unchanged
from .training import assert_loss as assert_loss
from .training import assert_overfits as assert_overfits
from .training import assert_portable as assert_portable
from .training import assert_registered as assert_registered
from .training import assert_restores as assert_restores
from .training import assert_seeded as assert_seeded
from .training import assert_updates as assert_updates

__all__ = [name for name in dir() if name.startswith("assert_")]
