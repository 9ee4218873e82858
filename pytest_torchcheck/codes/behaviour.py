"""Outputs: between samples and positions, in evaluation, from one call to the next, and beside a reference."""

from __future__ import annotations

from typing import Any

from .explainer import Each, Explainer, Maybe, One
from .rule import COMPARED, STUCK, rule

anomaly_left_on = One("diagnosis.behaviour:anomaly_left_on", "anomaly-left-on", doubtful=True)
other_dim = One("diagnosis.behaviour:other_dim", "batch-axis", doubtful=True)
global_state = One("diagnosis.behaviour:global_state", "global-state")
impure = One("diagnosis.behaviour:impure", "eval-writes")
mixed = One("diagnosis.behaviour:mixed", "batch-statistics samples-mixed", doubtful=True)
not_repeatable = One("diagnosis.behaviour:not_repeatable", "eval-not-repeatable")
remembers = One("diagnosis.remembering:remembers", "eval-remembers")
output_mismatch = Maybe("diagnosis.behaviour:output_mismatch", "output-range output-shape")
placed = One("diagnosis.behaviour:placed", "batch-statistics sample-order samples-mixed")
reseeded = Maybe("diagnosis.behaviour:reseeded")
single_shape = One("diagnosis.behaviour:single_shape", "batch-of-one")
size_crash = One("diagnosis.behaviour:size_crash", "crash size-crash")
fixed_size = One("diagnosis.behaviour:fixed_size", "size-crash")
size_dependent = One("diagnosis.behaviour:size_dependent", "batch-size-dependent")
train_overridden = One("diagnosis.behaviour:train_overridden", "train-overridden")
stuck_mode = One("diagnosis.behaviour:stuck_mode", "mode-stuck")
unseeded = One(
    "diagnosis.behaviour:unseeded", "numpy-random python-random seed-ignored", doubtful=True
)

flags = Each("diagnosis.flags:flags", "requires-grad-of-module")

ignored = One("diagnosis.influence:ignored", "input-ignored")
recomputed = One("diagnosis.influence:recomputed", "checkpoint-differs")

computes_narrow = Explainer[bool]("diagnosis.places:computes_narrow")

future = One("diagnosis.promised:future", "future-leak")
padding = One("diagnosis.promised:padding", "padding-leak")
permutation = One("diagnosis.promised:permutation", "order-dependent")

random_in_eval = One("diagnosis.random_eval:random_in_eval", "random-in-eval", doubtful=True)

differs = One("diagnosis.reference:differs", "reference-differs reference-unlike")
unlike = Maybe("diagnosis.reference:unlike", "reference-unlike")

replay = Explainer[Any]("diagnosis.replay:replay")

unrepeated_batch = One("diagnosis.unrepeated:unrepeated_batch", "seed-ignored")
unrepeated_build = One("diagnosis.unrepeated:unrepeated_build", "seed-ignored")

ENTAILS = (
    rule(
        "eval-determinism/* mode-flags/mode-stuck",
        f"{COMPARED} seeding/*",
        "model",
        "two evaluations differ for their random numbers alone",
    ),
    rule(
        "mode-flags/mode-stuck",
        "eval-determinism/*",
        "model",
        "a module that stays in training mode is random in evaluation",
    ),
    rule(
        "rng-hygiene/*",
        "eval-determinism/* seeding/*",
        "model",
        "a reseeding forward decides all later draws",
    ),
    rule(
        "seeding/reseeds",
        "evaluation-leaves-trace/step-reseeds",
        "model",
        "a forward that seeds a generator is a step that does",
    ),
    rule(
        "eval-purity/eval-writes",
        "eval-determinism/*",
        "model",
        "a forward that changes the model changes the next one",
    ),
    rule("input-influence/*", STUCK, "model", "what the model does not see it cannot learn from"),
    rule(
        "mode-flags/requires-grad-of-module",
        "frozen-stays/frozen-moved gradients-exist/grad-off",
        "within",
        "a flag on a module leaves its parameters as they were",
    ),
    rule(
        "batch-independence/*",
        "batch-sizes/batch-size-dependent accumulation/* ddp-equivalence/*",
        "model",
        "a sample that depends on its neighbours changes with the batch",
    ),
    rule(
        "padding-invariance/*",
        "padding-loss/* ignored-targets/*",
        "line",
        "the same mask is missing",
    ),
)
"""What follows from findings of this family."""
