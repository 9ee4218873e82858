"""Gradients that are missing, zero or not finite, and inputs that a forward changes."""

from __future__ import annotations

from .explainer import Each, One

nothing_trainable = One("diagnosis.freezing:nothing_trainable", "nothing-trainable", doubtful=True)
off = Each("diagnosis.freezing:off", "grad-off")

changed_inputs = Each("diagnosis.gradients:changed_inputs", "input-mutated")
missing = Each("diagnosis.gradients:missing", "grad-none")
non_finite = Each("diagnosis.gradients:non_finite", "non-finite-forward non-finite-gradient")
not_reparameterised = One("diagnosis.gradients:not_reparameterised", "sample-not-reparameterised")
zero = Each("diagnosis.gradients:zero", "grad-zero")
