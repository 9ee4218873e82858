"""Optimizers and steps that do not move what should move."""

from __future__ import annotations

from .explainer import Maybe, One
from .rule import STUCK, rule

drifted = One("diagnosis.training.drift:drifted", "frozen-moved")
missing = One("diagnosis.training.optimizers:missing", "optimizer-missing")
no_match = One("diagnosis.training.optimizers:no_match", "no-match")
frozen_by_train = One("diagnosis.training.drift:frozen_by_train", "frozen-by-train")
stops = One("diagnosis.training.drift:stops", "weight-stops")
standstill = One("diagnosis.training.standstill:standstill", "weight-static", doubtful=True)
statistics = One("diagnosis.training.drift:statistics", "frozen-statistics")
twice = One("diagnosis.training.optimizers:twice", "optimizer-twice")

compared_whole = Maybe("diagnosis.training.whole_names:compared_whole", "names-compared-whole")

ENTAILS = (
    rule(
        "optimizer-coverage/*",
        "weights-update/*",
        "within",
        "parameters that the optimizer does not hold do not change",
    ),
    rule(
        "weights-update/*",
        "descent/*",
        "line",
        "a weight that the optimizer loses is missing from the gradient too",
    ),
    rule(
        "optimizer-coverage/* weights-update/*",
        STUCK,
        "model",
        "a part of the model does not change",
    ),
    rule(
        "optimizer-coverage/* weights-update/* step-protocol/* scheduler-order/* gradients-exist/*",
        "overfit/optimizer-crawls",
        "model",
        "the loss does not change when the weights do not",
    ),
)
"""What follows from findings of this family."""
