"""Several processes that train one model."""

from __future__ import annotations

from typing import Any

from ..findings import Culprit, Location
from .explainer import Each, Explainer, One

broken = One("ranks.explain:broken", "rank-raised wrapper-hides-attribute")
consistency = Each(
    "ranks.explain:consistency",
    "not-broadcast rank-dependent-init same-noise tie-split unseeded-init",
    doubtful=True,
)
culprits = Explainer[list[Culprit]]("ranks.differences:culprits_of")
differing = Explainer[list[str]]("ranks.differences:differing")
gradients = Each(
    "ranks.explain:gradients",
    "accumulation-differs batch-coupled gradients-differ late-parameter loss-coupled loss-sum",
    doubtful=True,
)
line = Explainer[Location | None]("ranks.differences:line")
listed = Explainer[str]("ranks.differences:listed")
message_of = Explainer[str]("ranks.explain:message_of")
parameters_differ = One("ranks.explain:parameters_differ", "parameters-differ")
root_of = Explainer[str | None]("ranks.explain:root_of")
steps = Each(
    "ranks.explain_sharding:steps",
    "buffer-drift gradient-sum late-parameter loss-sum parameters-differ step-differs tie-split",
)
stopped_at = Explainer[str]("ranks.explain:stopped_at")
tie_split = One("ranks.differences:tie_split", "tie-split")
unused = One("ranks.explain:unused", "unused-parameter")

hung = One("ranks.explain_data:hung", "rank-raised uneven-batches wrapper-hides-attribute")
is_stuck = Explainer[bool]("ranks.explain_data:is_stuck")
shared = Each("ranks.explain_data:shared", "data-not-shared set-epoch-missing uneven-batches")
training = Explainer[Any]("ranks.explain_data:training")

meta = Each("ranks.explain_sharding:meta", "meta-left meta-not-restored tie-split")
sharding = Each(
    "ranks.explain_sharding:sharding",
    "fsdp-differs not-sharded nothing-sharded sharded-state tie-split",
)
