"""Datasets, loaders and their workers."""

from __future__ import annotations

from .explainer import Each, One
from .rule import rule

dtype_refused = One("data.explaining.labels:dtype_refused", "label-dtype", doubtful=True)
labels_wrong = Each(
    "data.explaining.labels:labels_wrong",
    "label-constant label-dtype label-negative label-one-based label-shifted",
    doubtful=True,
)

last_batch_fails = One("data.explaining.order:last_batch_fails", "last-batch-fails")
last_batch_wrong = Each(
    "data.explaining.order:last_batch_wrong", "evaluation-drops-samples loader-empty"
)
nearly_leaked = One("data.explaining.order:nearly_leaked", "split-near")
scaled_apart = One("data.relations.split_scales:told", "split-scale", doubtful=True)
leaked = One("data.explaining.order:leaked", "split-overlap", doubtful=True)
never_drawn = One("data.relations.never_drawn:samples_never_drawn", "samples-never-drawn")
drawn_alone = One("data.relations.never_drawn:drawn_alone", "samples-never-drawn", doubtful=True)
order_wrong = Each(
    "data.explaining.order:order_wrong", "epoch-empty order-not-repeatable", doubtful=True
)
by_class = One("data.explaining.order:by_class", doubtful=True)
reach_wrong = One("data.explaining.order:reach_wrong", "sampler-length", doubtful=True)

damaged = One("data.explaining.samples:damaged", "dataset-mutated")
elsewhere = Each("data.explaining.samples:elsewhere")
drawn = One("data.relations.drawn_labels:told", "label-drawn", doubtful=True)
blended = One("data.relations.blended_labels:told", "label-blended")
boxes_inverted = One("data.relations.inverted_boxes:told", "boxes-inverted")
flipped_apart = One("data.relations.flipped_apart:told", "target-flipped-apart", doubtful=True)
dropped_result = One("data.relations.dropped_results:told", "result-unread")
misread = One("data.relations.faint_bytes:told", "sample-faint integer-wraps")
empty = One("data.explaining.samples:empty", "dataset-empty", doubtful=True)
used_up = One("data.explaining.order:stream_used_up", "epoch-empty")
nothing = One("data.explaining.unlike_samples:nothing", "dataset-empty")
stood_in = One("data.relations.stood_in:told", "samples-identical")
identical = One("data.explaining.samples:identical", "samples-identical")
inconsistent = Each(
    "data.explaining.unlike_samples:inconsistent", "batch-not-collatable samples-do-not-stack"
)
not_finite = Each("data.explaining.samples:not_finite", "sample-nan", doubtful=True)
not_repeatable = One(
    "data.explaining.samples:not_repeatable", "sample-not-repeatable", doubtful=True
)
out_of_range = One("data.explaining.samples:out_of_range", "sample-range")
overwritten = One("data.explaining.samples:overwritten", "sample-overwritten")
read_error = One("data.explaining.samples:read_error", "sample-raises")

differing = One("data.explaining.workers:differing")
duplicated = Each("data.explaining.workers:duplicated", "augmentation-duplicated", seen=True)
not_picklable = One("data.explaining.workers:not_picklable", "not-picklable", doubtful=True)
not_random = One("data.explaining.workers:not_random", "augmentation-fixed")
shards_leave_out = One("data.explaining.order:shards_leave_out", "worker-drops")
shards_shared = One("data.explaining.workers:shards_shared")
undelivered = One(
    "data.explaining.workers:undelivered",
    "main-guard worker-cannot-unpickle worker-collate worker-dies worker-hangs worker-raises",
)
unseeded = One("data.explaining.workers:unseeded", "augmentation-unseeded")

ENTAILS = (
    rule(
        "dataset-pickling/*",
        "worker-delivery/* worker-sharding/* random-augmentation/* loader-order/*",
        "raises",
        "an object that cannot be pickled never reaches a worker",
    ),
    rule(
        "dataset-pickling/*",
        "worker-delivery/worker-cannot-unpickle worker-delivery/worker-dies",
        "model",
        "a worker cannot start without its dataset",
    ),
    rule(
        "samples-unchanged/dataset-mutated",
        "random-augmentation/* loader-order/order-not-repeatable",
        "model",
        "a sample that reading changes differs at the next read",
    ),
    rule(
        "samples-valid/*",
        "worker-delivery/* last-batch/*",
        "raises",
        "samples of different structure or shape cannot be batched",
    ),
)
"""What follows from findings of this family."""
