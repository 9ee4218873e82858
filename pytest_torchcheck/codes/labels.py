"""Labels that do not fit the loss or the classes."""

from __future__ import annotations

from .explainer import One
from .rule import STUCK, rule

beyond_the_classes = One("diagnosis.loss.labels:beyond_the_classes")
blank_labels = One("diagnosis.loss.labels:blank_labels", "label-blank")
counted = One("diagnosis.loss.labels:counted", "ignored-counted", doubtful=True)
frames_unread = One("diagnosis.loss.labels:frames_unread", "frames-unread")
beyond_the_range = One("diagnosis.loss.ranges:beyond_the_range", doubtful=True)
blank_declared = One("diagnosis.loss.labels:blank_declared", doubtful=True)
own_answer = One("diagnosis.loss.labels:own_answer", "label-shift", doubtful=True)
padding = One("diagnosis.loss.labels:padding", "padding-counted")
pads_trained = One("diagnosis.padding.padded:trained", "padding-counted", doubtful=True)
shifted = One("diagnosis.loss.labels:shifted")
visible = One("diagnosis.loss.masked:visible", "visible-labels")
too_few_outputs = One("diagnosis.loss.labels:too_few_outputs", "label-classes")

ENTAILS = (
    rule(
        "*/label-range */label-one-based */label-dtype */label-classes */label-negative */label-shape */label-shifted",
        f"label-range/* loss-at-start/* {STUCK}",
        "model",
        "wrong labels cannot be learnt",
    ),
    rule(
        "*/visible-labels",
        "padding-loss/padding-counted",
        "model",
        "labels that are kept where they should be ignored are those of padding too",
    ),
    rule(
        "*/label-classes",
        "output-spec/output-shape",
        "model",
        "a head with another number of outputs than classes has another shape than declared",
    ),
)
"""What follows from findings of this family."""
