"""What a model starts from."""

from __future__ import annotations

from ..findings import Culprit, Finding, Location
from .explainer import Each, Explainer, One

affine = One("diagnosis.initialisation:affine", "model-affine", doubtful=True)
broken = Explainer[list[Finding]](
    "diagnosis.initialisation:broken", "parameter-huge parameter-non-finite"
)
collapsed = One("diagnosis.initialisation:collapsed", "layers-collapse", doubtful=True)
copied_branch = Explainer[Culprit]("diagnosis.initialisation:copied_branch")
dead = One("diagnosis.initialisation:dead", "units-dead", doubtful=True)
fading = One("diagnosis.initialisation:fading")
saturated = One("diagnosis.initialisation:saturated", "units-saturated", doubtful=True)
unwritten = Each("diagnosis.initialisation:unwritten", "never-written")

initialisation_line = Explainer[Location | None]("diagnosis.losses:initialisation_line")

rows_stay_equal = One("diagnosis.symmetry:rows_stay_equal", "units-equal")
