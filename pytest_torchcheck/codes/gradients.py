"""Gradients that are missing, zero or not finite, and inputs that a forward changes."""

from __future__ import annotations

from .explainer import Each, One
from .rule import STUCK, rule

nothing_trainable = One(
    "diagnosis.gradient.freezing:nothing_trainable", "nothing-trainable", doubtful=True
)
off = Each("diagnosis.gradient.freezing:off", "grad-off", doubtful=True, seen=True)

changed_inputs = Each(
    "diagnosis.gradient.changed_inputs:changed_inputs", "input-mutated", seen=True
)
missing = Each("diagnosis.gradient.missing:missing", "grad-none", seen=True)
non_finite = Each(
    "diagnosis.gradient.non_finite:non_finite", "non-finite-forward non-finite-gradient", seen=True
)
not_reparameterised = One(
    "diagnosis.gradient.missing:not_reparameterised", "sample-not-reparameterised"
)
zero = Each("diagnosis.gradient.zero:zero", "grad-zero", doubtful=True, seen=True)
unlike_the_loss = One(
    "diagnosis.training.descent:differs", "gradient-partial gradient-wrong", doubtful=True
)

ENTAILS = (
    rule(
        "*/non-finite-forward initialisation/parameter-non-finite initialisation/never-written",
        (
            "gradients-finite/* output-spec/output-range loss-sound/* loss-at-start/* "
            f"degenerate-inputs/* signal-propagation/* {STUCK}"
        ),
        "model",
        "NaN and infinities spread",
    ),
    rule(
        "*/non-finite-forward initialisation/parameter-non-finite initialisation/never-written",
        "gradients-exist/grad-zero input-influence/* dead-modules/* weights-update/* state-dict-roundtrip/state-lost",
        "model",
        "gradients behind NaN are zero or NaN, and outputs that are NaN compare as equal",
    ),
    rule("gradients-finite/*", STUCK, "model", "a step along NaN destroys the weights"),
    rule(
        "inputs-unchanged/*",
        "*/inplace-leaf */inplace-saved",
        "overlap",
        "an input that is changed in place cannot get a gradient",
    ),
    rule(
        "gradients-exist/* sampling-paths/*",
        "gradients-exist/* weights-update/* dead-modules/* checkpointing/*",
        "within",
        "without a gradient a parameter does not move",
    ),
    rule(
        "gradients-exist/* sampling-paths/*",
        "gradients-exist/* input-influence/*",
        "line",
        "what stands before a cut gets no gradient: parameters and inputs alike",
    ),
    rule(
        "gradients-exist/*",
        "dead-modules/result-unread",
        "line",
        "parameters that only an unread result is computed from get no gradient",
    ),
    rule(
        "gradients-exist/grad-zero",
        "dead-units/*",
        "line",
        "a unit that gives zero hands no gradient on",
    ),
    rule(
        "gradients-exist/*",
        "device-portability/numpy-on-device device-portability/cpu-tensor device-portability/host-sync",
        "line",
        "what leaves torch for NumPy or Python loses both its graph and its device",
    ),
    rule(
        "gradients-exist/nothing-trainable",
        "*/no-graph */optimizer-parameters",
        "raises",
        "a loss that nothing trainable leads to has no graph",
    ),
    rule(
        "gradients-exist/* sampling-paths/*", STUCK, "model", "a part of the model gets no gradient"
    ),
    rule(
        "gradients-exist/* sampling-paths/* checkpointing/* gradcheck/* gradcheck-module/* loss-sound/* loss-input/* "
        "loss-arguments/* label-range/* gradients-finite/* rng-hygiene/* seeding/* inputs-unchanged/*",
        "descent/*",
        "model",
        "a gradient that is lost or wrong at its source is wrong in the whole",
    ),
    rule(
        "descent/gradient-wrong",
        STUCK,
        "model",
        "a step along another gradient does not lower the loss",
    ),
    rule(
        "backward/second-backward",
        "graph-kept/graph-carried repeatable-steps/*",
        "model",
        "one carried graph fails every second step",
    ),
    rule(
        "*/second-backward graph-kept/*",
        "weights-update/*",
        "model",
        "a step that fails is the last one that was looked at",
    ),
    rule(
        "*/second-backward",
        "graph-kept/graph-carried repeatable-steps/*",
        "line",
        "the graph that is carried over is what backward runs into",
    ),
)
"""What follows from findings of this family."""
