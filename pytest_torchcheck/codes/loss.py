"""Losses: their shape, arguments, sign, terms, and what they are compared with."""

from __future__ import annotations

from .explainer import Maybe, One
from .rule import STUCK, rule

against_itself = One("diagnosis.loss.wrong_input:against_itself", "compared-with-itself")
arguments_swapped = One("diagnosis.loss.wrong_input:arguments_swapped", "loss-arguments-swapped")
broadcast = One("diagnosis.loss.consumed:broadcast", "loss-broadcast")
changed_arguments = One(
    "diagnosis.loss.consumed:changed_arguments", "output-mutated target-mutated", doubtful=True
)
cosine_axis = One("diagnosis.loss.unit_vectors:cosine_axis", "cosine-axis")
crossed_axes = One("diagnosis.loss.wrong_input:crossed_axes", "distribution-axes", doubtful=True)
dead_term = One("diagnosis.loss.consumed:dead_term", "derivative-without-graph")
lost_loss = One("diagnosis.loss.idle_terms:lost_loss", "result-unread")
untaught_term = One("diagnosis.loss.idle_terms:untaught_term", "term-flat term-cancels")
idle_term = One("diagnosis.loss.idle_terms:idle_term", "term-idle")
across_end = One("diagnosis.mixing.episodes:across_end", "reward-across-end")
partial_norm = One("diagnosis.loss.consumed:partial_norm", "penalty-in-parts")
mixed_into = One("diagnosis.gradient.row_sums:mixed_into", "derivatives-mixed")
disconnected = One("diagnosis.loss.idle_terms:disconnected", "loss-disconnected")
focal_mean = One("diagnosis.loss.consumed:focal_mean", "focal-of-mean")
hot_start = One("diagnosis.loss.bounds:hot_start")
hidden_nan = One("diagnosis.loss.wrong_input:hidden_nan", "nan-hidden", doubtful=True)
noise_target = One("diagnosis.loss.wrong_input:noise_target", "noise-unseen", doubtful=True)
labels_as_numbers = One(
    "diagnosis.loss.wrong_input:labels_as_numbers", "labels-as-numbers", doubtful=True
)
no_class_probabilities = One(
    "diagnosis.loss.wrong_input:no_class_probabilities", "targets-no-distribution", doubtful=True
)
not_scalar = One("diagnosis.loss.consumed:not_scalar", "loss-not-scalar")
recreated = One("diagnosis.loss.idle_terms:recreated", "loss-recreated")
stretched = One("diagnosis.loss.consumed:stretched", "loss-stretched", doubtful=True)
unstable_log = One("diagnosis.loss.wrong_input:unstable_log", "log-of-probabilities", doubtful=True)
wrong_input = One(
    "diagnosis.loss.wrong_input:wrong_input",
    "double-sigmoid double-softmax kl-of-logits log-as-rate rate-as-log relu-logits",
)
wrong_sign = One("diagnosis.loss.consumed:wrong_sign", "loss-sign", doubtful=True)
pulled_off = One("diagnosis.loss.suiting:pulled_off", "fit-pulled-off")
bootstrapped = One("diagnosis.loss.suiting:bootstrapped", "target-trained", doubtful=True)
unlike_joined = One("diagnosis.loss.parted:unlike_joined", "unlike-joined", doubtful=True)
turned_levels = One("diagnosis.loss.targets:turned_levels", "loss-sign")
repels = One("diagnosis.loss.targets:repels", "loss-sign")
turned = One("diagnosis.loss.consumed:turned", "loss-sign", doubtful=True)
shuffled = One("diagnosis.loss.targets:shuffled", "target-of-another-sample")
regrouped = One("diagnosis.loss.shifts:regrouped", "target-of-another-sample")
over_samples = One("diagnosis.loss.targets:over_samples", "samples-share-targets")

misplaced = One("diagnosis.loss.pairing:misplaced", "target-misplaced", doubtful=True)
sorted_apart = Maybe("diagnosis.loss.sorted_apart:sorted_apart", "target-misplaced", seen=True)
tied = One("diagnosis.loss.pairing:tied", "outputs-tied")
spread_over = One("diagnosis.loss.pairing:spread_over", "positions-share-targets")
order = One("diagnosis.loss.pairing:order", "pairs-mixed")
order_of_pairs = One("diagnosis.loss.pairing:order_of_pairs", "order-matters")
self_counted = One("diagnosis.loss.pairing:self_counted", "self-counted", doubtful=True)

by_place = One("diagnosis.loss.pairing:by_place", "weight-by-place", doubtful=True)
mean_over_others = One("diagnosis.loss.weights:mean_over_others", "mean-over-others")
divided_again = One("diagnosis.loss.weights:divided_again", "mean-divided")
met_samples = One("diagnosis.loss.weights:met_samples", "loss-broadcast")
mixed_reductions = One("diagnosis.loss.weights:mixed_reductions", "reductions-mixed")

deaf_gradient = One("diagnosis.loss.pairing:deaf_gradient", "gradient-without-targets")
caught = One("diagnosis.loss.suiting:caught", "targets-ignored")
ignored = One("diagnosis.loss.targets:ignored", "targets-ignored", doubtful=True)
not_finite = One("diagnosis.loss.targets:not_finite", "edge-targets-non-finite", doubtful=True)
refuses_target = One("diagnosis.loss.edges:refuses_target", "edge-targets-raise")
of_other_samples = One("diagnosis.loss.targets:of_other_samples", "target-of-another-sample")
shared = One("diagnosis.loss.targets:shared", "samples-share-targets")
unbounded = One("diagnosis.loss.bounds:unbounded", "loss-unbounded")
unpaired = One("diagnosis.loss.suiting:unpaired", "samples-share-targets", doubtful=True)
unread = One("diagnosis.loss.targets:unread", "target-unread", doubtful=True)
without_effect = One("diagnosis.loss.targets:without_effect", "targets-ignored")
one_suits_all = One("diagnosis.loss.bounds:one_suits_all", "targets-ignored")
skipped = One(
    "diagnosis.loss.step_samples:skipped",
    "target-unread targets-ignored input-ignored samples-mixed target-of-another-sample",
    doubtful=True,
)
padding_read = One("diagnosis.padding.excluded:padding_read", "mask-shifted")
log_determinant = One("diagnosis.loss.volumes:log_determinant", "log-determinant")

ENTAILS = (
    rule(
        "mode-agreement/sample-order mode-agreement/input-ignored",
        f"step-losses/target-of-another-sample step-losses/input-ignored {STUCK}",
        "model",
        "outputs that do not follow their samples in training cannot be compared with their targets",
    ),
    rule(
        "target-ownership/gradient-without-targets",
        f"descent/* {STUCK}",
        "model",
        "a gradient that does not follow the targets is not the gradient of the loss",
    ),
    rule(
        "loss-shapes/loss-broadcast",
        f"loss-at-start/* loss-sign/* target-ownership/samples-share-targets {STUCK}",
        "model",
        "a loss over all pairs of samples is a different loss",
    ),
    rule(
        "loss-arguments/target-mutated",
        f"target-alignment/* loss-sign/* loss-at-start/* seeding/* resume/* repeatable-steps/* accumulation/* {STUCK}",
        "model",
        "a loss that changes its targets gives another value at its next call",
    ),
    rule(
        "target-alignment/target-misplaced",
        "target-ownership/samples-share-targets in-batch-pairs/order-matters",
        "model",
        "mixing positions across samples pairs outputs with targets of other samples",
    ),
    rule(
        "target-ownership/target-of-another-sample target-ownership/target-unread",
        "target-alignment/*",
        "model",
        "an output paired with another sample is paired with another position as well",
    ),
    rule(
        "edge-targets/edge-targets-raise",
        "target-ownership/target-unread target-ownership/target-of-another-sample",
        "line",
        "labels that are taken for places choose samples by them, and leave out the others",
    ),
    rule(
        "loss-input/*",
        f"loss-at-start/* {STUCK}",
        "model",
        "a bounded input bounds the loss from below",
    ),
    rule(
        "loss-input/nll-without-log",
        "descent/*",
        "model",
        "the gradient of a CTC loss is that by logits, which only log-probabilities of log_softmax turn into its own",
    ),
    rule(
        "loss-input/loss-arguments-swapped",
        f"*/probability-range loss-sign/* gradients-finite/* label-range/* {STUCK}",
        "model",
        "a loss with swapped arguments is a different loss",
    ),
    rule(
        "loss-input/loss-arguments-swapped",
        "*/probability-range */non-finite-forward",
        "raises",
        "a step along gradients of the targets is not finite",
    ),
    rule(
        "loss-sign/*",
        STUCK,
        "model",
        "training does not lower a loss that rewards the wrong output",
    ),
    rule(
        "loss-sign/*",
        "loss-bounded/*",
        "line",
        "a loss that rewards the wrong output has no lowest value",
    ),
    rule(
        "loss-sound/loss-recreated loss-sound/loss-disconnected",
        f"gradients-exist/* weights-update/* input-influence/* dead-modules/* sampling-paths/* {STUCK}",
        "model",
        "a loss without a graph gives no gradients",
    ),
    rule(
        "loss-sound/loss-recreated loss-sound/loss-disconnected",
        "*/no-graph */loss-not-tensor",
        "raises",
        "backward fails on a loss without a graph",
    ),
    rule(
        "loss-sound/result-unread",
        "in-batch-pairs/self-counted target-ownership/targets-ignored",
        "model",
        "what the loss computes and drops does not reach it",
    ),
    rule(
        "loss-sound/loss-not-scalar", "*/loss-not-scalar", "raises", "backward needs a scalar loss"
    ),
)
"""What follows from findings of this family."""
