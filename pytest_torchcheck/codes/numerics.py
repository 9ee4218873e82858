"""Numbers at the edge of the domain and in low precision."""

from __future__ import annotations

from .explainer import One

edge = One("diagnosis.outputs.numerics:edge", "edge-non-finite", doubtful=True)
moved = One("diagnosis.outputs.numerics:moved", "layout-crash", doubtful=True)

digits_lost = One(
    "diagnosis.outputs.numerics:digits_lost", "precision-lost precision-overflow", doubtful=True
)
overflow = One("diagnosis.outputs.numerics:overflow", "precision-overflow")
integers_merged = One("diagnosis.outputs.numerics:integers_merged", "integers-merged")
