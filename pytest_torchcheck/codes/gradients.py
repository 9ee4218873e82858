"""Gradients that are missing, zero or not finite, and inputs that a forward changes."""

from __future__ import annotations

from .explainer import Each, One
from .rule import COMPARED, STUCK, rule

by_place = One("diagnosis.gradient.cuts:by_place", "gradient-by-place")
nothing_trainable = One(
    "diagnosis.gradient.freezing:nothing_trainable", "nothing-trainable", doubtful=True
)
off = Each("diagnosis.gradient.freezing:off", "grad-off", doubtful=True, seen=True)

overwritten_input = One(
    "diagnosis.gradient.changed_inputs:overwritten_input", "block-input-overwritten"
)
changed_inputs = Each(
    "diagnosis.gradient.changed_inputs:changed_inputs", "input-mutated", seen=True
)
missing = Each("diagnosis.gradient.missing:missing", "grad-none", seen=True)
not_given = Each("diagnosis.gradient.missing:not_given", "grad-none", doubtful=True, seen=True)
non_finite_at = One("diagnosis.gradient.non_finite:at_size", "non-finite-forward")
merged = One("diagnosis.gradient.non_finite:merged", "positions-merge")
wrapped = One("diagnosis.gradient.non_finite:wrapped", "integer-wraps")
non_finite = Each(
    "diagnosis.gradient.non_finite:non_finite", "non-finite-forward non-finite-gradient", seen=True
)
not_reparameterised = One(
    "diagnosis.gradient.missing:not_reparameterised", "sample-not-reparameterised"
)
spread_mistaken = One("diagnosis.loss.suiting:spread_mistaken", "spread-mistaken")
blind_choice = One("diagnosis.gradient.choosing:blind", "choice-untrained")
zero = Each("diagnosis.gradient.zero:zero", "grad-zero", doubtful=True, seen=True)
unlike_the_loss = One(
    "diagnosis.training.descent:differs",
    "gradient-partial gradient-wrong estimator-swapped",
    doubtful=True,
)

ENTAILS = (
    rule(
        "*/non-finite-forward initialisation/parameter-non-finite initialisation/never-written",
        (
            "gradients-finite/* output-spec/output-range loss-sound/* loss-at-start/* "
            f"degenerate-inputs/* signal-propagation/* {STUCK}"
        ),
        "model",
        "NaN and inf propagate",
    ),
    rule(
        "*/non-finite-forward initialisation/parameter-non-finite initialisation/never-written",
        f"gradients-exist/grad-zero input-influence/* dead-modules/* weights-update/* {COMPARED}",
        "model",
        "gradients through NaN are zero or NaN, and outputs that are NaN compare to nothing",
    ),
    rule(
        "gradients-finite/non-finite-gradient",
        "weights-update/weight-untaught",
        "overlap",
        "what a hook puts in the place of NaN says nothing of the data",
    ),
    rule("gradients-finite/*", STUCK, "model", "a step with NaN gradients destroys the weights"),
    rule(
        "inputs-unchanged/*",
        "*/inplace-leaf */inplace-saved",
        "overlap",
        "an input that is modified in place cannot receive a gradient",
    ),
    rule(
        "gradients-exist/* sampling-paths/*",
        "gradients-exist/* weights-update/* dead-modules/* checkpointing/*",
        "within",
        "a parameter without a gradient does not change",
    ),
    rule(
        "gradients-exist/* sampling-paths/*",
        "gradients-exist/* input-influence/*",
        "line",
        "nothing before a cut in the graph receives a gradient, neither parameters nor inputs",
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
        "a unit whose output is zero passes no gradient on",
    ),
    rule(
        "gradients-exist/*",
        "device-portability/numpy-on-device device-portability/cpu-tensor device-portability/cpu-factory "
        "device-portability/host-sync",
        "line",
        "a value converted to NumPy or Python loses both its graph and its device",
    ),
    rule(
        "gradients-exist/nothing-trainable",
        "*/no-graph */optimizer-parameters",
        "raises",
        "a loss that depends on no trainable parameter has no graph",
    ),
    rule(
        "gradients-exist/* sampling-paths/*",
        STUCK,
        "model",
        "a part of the model receives no gradient",
    ),
    rule(
        "gradients-exist/* sampling-paths/* checkpointing/* gradcheck/* gradcheck-module/* loss-sound/* loss-input/* "
        "loss-arguments/* label-range/* gradients-finite/* rng-hygiene/* seeding/* inputs-unchanged/*",
        "descent/*",
        "model",
        "a gradient that is lost or wrong in one place is wrong in the whole model",
    ),
    rule(
        "descent/gradient-wrong",
        STUCK,
        "model",
        "a step along a wrong gradient does not lower the loss",
    ),
    rule(
        "backward/second-backward",
        "graph-kept/graph-carried repeatable-steps/*",
        "model",
        "a graph that is carried over makes every second step fail",
    ),
    rule(
        "*/second-backward graph-kept/*",
        "weights-update/*",
        "model",
        "no step after the failed one was observed",
    ),
    rule(
        "*/second-backward",
        "graph-kept/graph-carried repeatable-steps/*",
        "line",
        "backward fails in the graph that is carried over",
    ),
)
"""What follows from findings of this family."""
