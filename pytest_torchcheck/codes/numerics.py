"""Numbers at the edge of the domain and in low precision."""

from __future__ import annotations

from .explainer import One

edge = One("diagnosis.numerics:edge", "edge-non-finite", doubtful=True)
moved = One("diagnosis.numerics:moved", "layout-crash", doubtful=True)

digits_lost = One(
    "diagnosis.precision:digits_lost", "precision-lost precision-overflow", doubtful=True
)
overflow = One("diagnosis.precision:overflow", "precision-overflow")
