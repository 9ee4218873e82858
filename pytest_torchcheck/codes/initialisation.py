"""What a model starts from."""

from __future__ import annotations

from ..findings import Culprit, Finding, Location
from .explainer import Each, Explainer, One
from .rule import STUCK, rule

affine = One("diagnosis.training.initialisation:affine", "model-affine", doubtful=True)
broken = Explainer[list[Finding]](
    "diagnosis.training.initialisation:broken", "parameter-huge parameter-non-finite"
)
collapsed = One("diagnosis.training.initialisation:collapsed", "layers-collapse", doubtful=True)
copied_branch = Explainer[Culprit]("diagnosis.training.initialisation:copied_branch")
dead = One("diagnosis.training.initialisation:dead", "units-dead", doubtful=True)
factory_repeats = One(
    "diagnosis.training.initialisation:factory_repeats", "factory-repeats", doubtful=True
)
instances_share = One("diagnosis.training.initialisation:instances_share", "factory-repeats")
reads_last_instance = One(
    "diagnosis.training.initialisation:reads_last_instance", "factory-repeats"
)
growing = One("diagnosis.gradient.growing:growing", "signal-explodes")
fading = One("diagnosis.training.initialisation:fading")
saturated = One("diagnosis.training.initialisation:saturated", "units-saturated", doubtful=True)
unwritten = Each(
    "diagnosis.training.initialisation:unwritten", "never-written", doubtful=True, seen=True
)

initialisation_line = Explainer[Location | None]("diagnosis.loss.bounds:initialisation_line")

rows_stay_equal = One("diagnosis.training.initialisation:rows_stay_equal", "units-equal")

ENTAILS = (
    rule(
        "signal-propagation/*",
        "gradients-exist/grad-zero",
        "overlap",
        "a vanished signal leaves no gradient",
    ),
    rule(
        "signal-propagation/* initialisation/* dead-units/*",
        f"{STUCK} overfit/optimizer-crawls",
        "model",
        "training does not recover from this initialisation",
    ),
    rule(
        "signal-propagation/signal-explodes",
        "loss-at-start/*",
        "model",
        "logits computed from an exploding signal are huge",
    ),
)
"""What follows from findings of this family."""
