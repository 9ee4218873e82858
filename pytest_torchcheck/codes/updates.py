"""Optimizers and steps that do not move what should move."""

from __future__ import annotations

from .explainer import Maybe, One

drifted = One("diagnosis.optimizers:drifted", "frozen-moved")
missing = One("diagnosis.optimizers:missing", "optimizer-missing")
no_match = One("diagnosis.optimizers:no_match", "no-match")
standstill = One("diagnosis.optimizers:standstill", "weight-static")
statistics = One("diagnosis.optimizers:statistics", "frozen-statistics")
twice = One("diagnosis.optimizers:twice", "optimizer-twice")

compared_whole = Maybe("diagnosis.whole_names:compared_whole", "names-compared-whole")
