"""Datasets, loaders and their workers."""

from __future__ import annotations

from .explainer import Each, One
from .rule import rule

dtype_refused = One("data.explain_labels:dtype_refused", "label-dtype", doubtful=True)
labels_wrong = Each(
    "data.explain_labels:labels_wrong",
    "label-constant label-dtype label-negative label-one-based label-shifted",
    doubtful=True,
)

last_batch_fails = One("data.explain_order:last_batch_fails", "last-batch-fails")
last_batch_wrong = Each(
    "data.explain_order:last_batch_wrong", "evaluation-drops-samples loader-empty"
)
leaked = One("data.explain_order:leaked", "split-overlap", doubtful=True)
order_wrong = Each("data.explain_order:order_wrong", "order-not-repeatable", doubtful=True)
reach_wrong = One("data.explain_order:reach_wrong", "sampler-length", doubtful=True)

damaged = One("data.explain_samples:damaged", "dataset-mutated")
elsewhere = Each("data.explain_samples:elsewhere")
empty = One("data.explain_samples:empty", "dataset-empty", doubtful=True)
identical = One("data.explain_samples:identical", "samples-identical")
inconsistent = Each(
    "data.explain_samples:inconsistent", "batch-not-collatable samples-do-not-stack"
)
not_finite = Each("data.explain_samples:not_finite", "sample-nan", doubtful=True)
not_repeatable = One("data.explain_samples:not_repeatable", "sample-not-repeatable", doubtful=True)
out_of_range = One("data.explain_samples:out_of_range", "sample-range")
overwritten = One("data.explain_samples:overwritten", "sample-overwritten")
read_error = One("data.explain_samples:read_error", "sample-raises")

differing = One("data.explain_workers:differing")
duplicated = Each("data.explain_workers:duplicated", "augmentation-duplicated")
not_picklable = One("data.explain_workers:not_picklable", "not-picklable", doubtful=True)
not_random = One("data.explain_workers:not_random", "augmentation-fixed")
shards_shared = One("data.explain_workers:shards_shared")
undelivered = One(
    "data.explain_workers:undelivered",
    "main-guard worker-cannot-unpickle worker-collate worker-dies worker-hangs worker-raises",
)
unseeded = One("data.explain_workers:unseeded", "augmentation-unseeded")

ENTAILS = (
    rule(
        "dataset-pickling/*",
        "worker-delivery/* worker-sharding/* random-augmentation/* loader-order/*",
        "raises",
        "what cannot be pickled never reaches a worker",
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
        "a sample that is changed by reading differs at the next reading",
    ),
    rule(
        "samples-valid/*",
        "worker-delivery/* last-batch/*",
        "raises",
        "samples that are unlike make no batch",
    ),
)
"""What follows from findings of this family."""
