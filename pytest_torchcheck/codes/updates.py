"""Optimizers and steps that do not move what should move, and what steps learn and do not keep."""

from __future__ import annotations

from .explainer import Maybe, One
from .rule import STUCK, rule

drifted = One("diagnosis.training.drift:drifted", "frozen-moved")
frozen_average = One("diagnosis.training.following:frozen_average", "frozen-moved", doubtful=True)
missing = One("diagnosis.training.optimizers:missing", "optimizer-missing")
weights_of_loss = One(
    "diagnosis.stored.foreign:weights_of_loss", "optimizer-missing", doubtful=True
)
no_match = One("diagnosis.training.optimizers:no_match", "no-match")
of_other_weights = One("diagnosis.training.untaught:of_other_weights")
forgets = One("diagnosis.training.untaught:forgets", "momentum-lost")
gradient_kept = One("diagnosis.training.untaught:gradient_kept", "gradient-in-state", doubtful=True)
frozen_by_train = One("diagnosis.training.drift:frozen_by_train", "frozen-by-train")
stops = One("diagnosis.training.drift:stops", "weight-stops")
standstill = One("diagnosis.training.standstill:standstill", "weight-static", doubtful=True)
taken_back = One("diagnosis.training.drift:taken_back", "update-taken-back")
statistics = One("diagnosis.training.drift:statistics", "frozen-statistics")
made_anew = One("diagnosis.training.optimizers:made_anew", "optimizer-remade", doubtful=True)
twice = One("diagnosis.training.optimizers:twice", "optimizer-twice")

blind_direction = One("diagnosis.training.lasting:blind_direction", "gradient-without-data")
crossed = One("diagnosis.training.untaught:crossed", "gradient-of-another")
decays_alone = One("diagnosis.training.lasting:decays_alone", "weight-only-decays")
fades = One("diagnosis.training.lasting:fades", "weight-stops")
overwritten = One("diagnosis.training.lasting:overwritten", "weight-put-back")
put_back = One("diagnosis.training.lasting:put_back", "weight-put-back")
remembered = One("diagnosis.training.lasting:remembered", "training-remembered", doubtful=True)
stale_copy = One("diagnosis.training.lasting:stale_copy", "copy-stale", doubtful=True)
stale_state = One("diagnosis.training.lasting:stale_state", "state-stale")
stops_training = One("diagnosis.training.lasting:stops_training", "weight-stops")
uncounted = One("diagnosis.training.untaught:uncounted", "steps-not-counted")
untaught = One("diagnosis.training.untaught:untaught", "weight-untaught")
late_inputs = One("diagnosis.training.lasting:late_inputs", "batch-unused")
undone_by_step = One("diagnosis.training.lasting:undone_by_step", "weight-put-back")
undone = One("diagnosis.training.lasting:undone", "weight-put-back")
unused_call = One("diagnosis.training.lasting:unused_call", "batch-unused")

compared_whole = Maybe("diagnosis.training.whole_names:compared_whole", "names-compared-whole")

ENTAILS = (
    rule(
        "repeatable-steps/weight-put-back",
        f"descent/* {STUCK}",
        "model",
        "a weight that each forward puts back is not learned",
    ),
    rule(
        "repeatable-steps/training-remembered",
        "eval-purity/* state-dict-roundtrip/state-lost",
        "model",
        "what training leaves in an attribute changes evaluations, and no checkpoint holds it",
    ),
    rule(
        "repeatable-steps/state-stale",
        "resume/* state-dict-roundtrip/*",
        "model",
        "a checkpoint of old weights resumes from them",
    ),
    rule(
        "repeatable-steps/weight-stops weights-update/weight-only-decays weights-update/weight-stops "
        "weights-update/weight-untaught weights-update/gradient-of-another",
        STUCK,
        "model",
        "a part of the model is not trained",
    ),
    rule(
        "optimizer-coverage/*",
        "weights-update/*",
        "within",
        "parameters that the optimizer does not hold do not change",
    ),
    rule(
        "weights-update/gradient-in-state",
        "resume/*",
        "model",
        "a loaded state is a copy, which the next backward pass does not write to",
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
