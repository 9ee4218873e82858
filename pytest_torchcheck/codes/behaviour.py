"""Outputs: between samples and positions, in evaluation, from one call to the next, and beside a reference."""

from __future__ import annotations

from typing import Any

from .explainer import Each, Explainer, Maybe, One
from .rule import COMPARED, STUCK, rule

astray = One(
    "diagnosis.mixing.in_training:astray", "input-ignored sample-order samples-mixed", doubtful=True
)
anomaly_left_on = One(
    "diagnosis.outputs.settings:anomaly_left_on", "anomaly-left-on", doubtful=True
)
other_dim = One("diagnosis.outputs.samples:other_dim", "batch-axis", doubtful=True)
global_state = One("diagnosis.outputs.settings:global_state", "global-state")
impure = One("diagnosis.outputs.behaviour:impure", "eval-writes")
mixed = One("diagnosis.outputs.samples:mixed", "batch-statistics samples-mixed", doubtful=True)
groups_mixed = One("diagnosis.mixing.groups:mixed", "samples-mixed", doubtful=True)
not_repeatable = One(
    "diagnosis.outputs.behaviour:not_repeatable", "eval-not-repeatable", doubtful=True
)
remembers = One("diagnosis.outputs.kept:remembers", "eval-remembers")
overwrites = One("diagnosis.outputs.kept:overwrites", "output-overwritten")
trains_otherwise = One("diagnosis.outputs.kept:trains_otherwise", "eval-remembers")
out_of_range = One("diagnosis.outputs.behaviour:out_of_range", "output-range")
output_mismatch = One("diagnosis.outputs.behaviour:output_mismatch", "output-shape")
placed = One("diagnosis.outputs.samples:placed", "batch-statistics sample-order samples-mixed")
reseeded_by_evaluation = One(
    "diagnosis.outputs.settings:reseeded_by_evaluation", "reseeds", doubtful=True
)
reseeded_by_building = One(
    "diagnosis.outputs.settings:reseeded_by_building", "reseeds", doubtful=True
)
reseeded = Maybe("diagnosis.outputs.behaviour:reseeded", "reseeds", doubtful=True, seen=True)
single_shape = One("diagnosis.outputs.sizes:single_shape", "batch-of-one")
size_crash = One("diagnosis.outputs.sizes:size_crash", "crash size-crash")
step_size_crash = One("diagnosis.outputs.sizes:step_size_crash", "crash size-crash")
step_swallows = One("diagnosis.outputs.sizes:step_swallows", "error-swallowed")
fixed_size = One("diagnosis.outputs.sizes:fixed_size", "size-crash")
fixed_count = One("diagnosis.outputs.sizes:fixed_count", "batch-size-dependent")
size_dependent = One(
    "diagnosis.outputs.sizes:size_dependent", "batch-size-dependent", doubtful=True
)
train_overridden = One("diagnosis.outputs.behaviour:train_overridden", "train-overridden")
turned = One("diagnosis.outputs.switches:turned", "eval-writes")
stuck_mode = One("diagnosis.outputs.switches:stuck_mode", "mode-stuck")
unseeded = One(
    "diagnosis.outputs.behaviour:unseeded", "numpy-random python-random seed-ignored", doubtful=True
)

unseeded_generators = One(
    "diagnosis.outputs.unrepeated:unseeded_generators", "seed-ignored", doubtful=True
)

flags = Each("diagnosis.gradient.module_flags:flags", "requires-grad-of-module")

ignored = One("diagnosis.outputs.influence:ignored", "input-ignored")
recomputed = One("diagnosis.outputs.influence:recomputed", "checkpoint-differs")

computes_narrow = Explainer[bool]("diagnosis.outputs.places:computes_narrow")

future = One("diagnosis.outputs.promised:future", "future-leak")
state_not_carried = One("diagnosis.outputs.causal:state_not_carried", "past-unread")
past_unread = One("diagnosis.outputs.causal:past_unread", "past-unread")
padding = One("diagnosis.outputs.promised:padding", "padding-leak")
permutation = One("diagnosis.outputs.promised:permutation", "order-dependent", doubtful=True)
zeros_filled = One(
    "diagnosis.stored.refilled:zeros_filled", "future-leak padding-leak order-dependent"
)

random_in_eval = One("diagnosis.outputs.modes:random_in_eval", "random-in-eval", doubtful=True)

differs = One("diagnosis.outputs.reference:differs", "reference-differs reference-unlike")
unlike = Maybe("diagnosis.outputs.reference:unlike", "reference-unlike")

old_checkpoint_differs = One(
    "diagnosis.stored.checkpoints:old_checkpoint_differs", "old-checkpoint-differs"
)
old_checkpoint_not_loaded = One(
    "diagnosis.stored.checkpoints:old_checkpoint_not_loaded", "old-checkpoint-not-loaded"
)
old_checkpoint_unreadable = One(
    "diagnosis.stored.checkpoints:old_checkpoint_unreadable", "old-checkpoint-unreadable"
)

replay = Explainer[Any]("diagnosis.crashes.replay:replay")

unrepeated_batch = One("diagnosis.outputs.unrepeated:unrepeated_batch", "seed-ignored")
shared_noise = One("diagnosis.outputs.behaviour:shared_noise", "noise-shared")
unrepeated_build = One("diagnosis.outputs.unrepeated:unrepeated_build", "seed-ignored")

cache_differs = One("diagnosis.outputs.causal:differs", "cache-differs")
steps_differ = One("diagnosis.outputs.causal:steps_differ", "cache-differs")
forgotten = One("diagnosis.outputs.unrepeated:forgotten", "statistics-forgotten", doubtful=True)
stuck_statistics = One("diagnosis.outputs.unrepeated:stuck", "statistics-forgotten", doubtful=True)
growing_statistics = One("diagnosis.outputs.modes:growing", "statistics-grow")
needs_graph = One("diagnosis.outputs.switches:needs_graph", "needs-gradients", doubtful=True)
differs_by_graph = One(
    "diagnosis.outputs.switches:differs_by_graph", "graph-decides", doubtful=True
)
flips_mode = One("diagnosis.outputs.switches:flips_mode", "mode-flipped", doubtful=True)
modes_differ = One("diagnosis.outputs.modes:modes", "modes-differ", doubtful=True)
folded = One("diagnosis.outputs.switches:folded", "modes-differ")
part_with_statistics = One("diagnosis.outputs.modes:part_with_statistics", "modes-differ")
statistics_biased = One("diagnosis.outputs.modes:differ", "statistics-biased")
dropout_scale = One("diagnosis.noise.dropped:scaled", "dropout-scale")
noise_kept = One("diagnosis.noise.kept:kept", "noise-kept")

ENTAILS = (
    rule(
        "backward/dtype-pair",
        "batch-sizes/dtype-pair",
        "line",
        "the forward raises at every size",
    ),
    rule(
        "cached-steps/cache-differs",
        "mode-agreement/modes-differ",
        "model",
        "the modes differ by the steps that eval mode takes",
    ),
    rule(
        "eval-determinism/* mode-flags/mode-stuck",
        f"{COMPARED} seeding/*",
        "model",
        "two evaluations differ because of their random numbers alone",
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
        "a forward that reseeds determines all later random numbers",
    ),
    rule(
        "seeding/reseeds",
        "evaluation-leaves-trace/step-reseeds",
        "model",
        "a forward that seeds a generator makes the step seed it",
    ),
    rule(
        "eval-purity/eval-writes",
        "eval-determinism/*",
        "model",
        "a forward that changes the model changes the next forward",
    ),
    rule(
        "eval-purity/eval-not-repeatable eval-purity/eval-remembers",
        f"{COMPARED} seeding/*",
        "model",
        "two evaluations differ because each changes what the next one gives",
    ),
    rule(
        "eval-purity/eval-not-repeatable eval-purity/eval-remembers",
        "state-dict-roundtrip/state-unsaved",
        "line",
        "the state that a forward changes is no part of a checkpoint",
    ),
    rule(
        "input-influence/*",
        STUCK,
        "model",
        "the model cannot learn from an input that it does not use",
    ),
    rule(
        "mode-flags/requires-grad-of-module",
        "frozen-stays/frozen-moved gradients-exist/grad-off",
        "within",
        "a flag on a module does not change its parameters",
    ),
    rule(
        "batch-independence/*",
        "batch-sizes/batch-size-dependent accumulation/* ddp-equivalence/*",
        "model",
        "a sample that depends on other samples changes with the batch",
    ),
    rule(
        "batch-independence/*",
        STUCK,
        "model",
        "samples that share their output cannot be told apart",
    ),
    rule(
        "batch-sizes/*",
        "output-spec/output-shape",
        "line",
        "a size that is written into the forward does not follow the batch",
    ),
    rule(
        "batch-independence/* batch-sizes/batch-size-dependent",
        "causality/* padding-invariance/* permutation-invariance/* permutation-equivariance/*",
        "line",
        "an operation that mixes samples mixes their positions too",
    ),
    rule(
        "padding-invariance/*",
        "padding-loss/* ignored-targets/*",
        "line",
        "both lack the same mask",
    ),
)
"""What follows from findings of this family."""
