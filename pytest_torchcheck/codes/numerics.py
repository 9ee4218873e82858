"""Numbers at the edge of the domain and in low precision."""

from __future__ import annotations

from .explainer import One

edge = One("diagnosis.numerics:edge", "edge-non-finite")
moved = One("diagnosis.numerics:moved", "layout-crash")

digits_lost = One("diagnosis.precision:digits_lost", "precision-lost precision-overflow")
overflow = One("diagnosis.precision:overflow", "precision-overflow")
