"""The training loop: accumulation, resuming, schedules."""

from __future__ import annotations

from typing import Any

from ..findings import Location
from .explainer import Explainer, Maybe, One
from .rule import STUCK, rule

longer_graph = One("diagnosis.stored.leaks:longer_graph", "leak-graph")

not_accumulated = One(
    "loop.explain_equivalences:not_accumulated", "accumulation-differs accumulation-scale"
)
not_averaged = One("diagnosis.training.following:not_averaged", "average-differs")
not_guarded = One("loop.explain_equivalences:not_guarded", "non-finite-applied")
not_resumed = One("loop.explain_equivalences:not_resumed")
one_for_two = One("diagnosis.training.following:one_for_two", "average-shared")
own_memory = One("diagnosis.training.following:own_memory", "average-shared")
one_memory = One("diagnosis.training.following:one_memory", "average-shared")
pulled_back = One("diagnosis.training.following:pulled_back", "average-swapped")
dropped = One("diagnosis.training.forgetting:dropped", "average-statistics", doubtful=True)
forgets = One("diagnosis.training.forgetting:forgets", "average-forgets")
pushed_away = One("diagnosis.training.following:pushed_away", "average-pushed-away")
parted = One("diagnosis.training.following:parted", "replicas-differ")
shortened = One("diagnosis.training.following:shortened", "average-statistics")
stale = One("diagnosis.training.following:stale", "average-statistics")
state_dropped = One("diagnosis.training.following:state_dropped", "optimizer-state-lost")
stepped_each = One("loop.explain_equivalences:stepped_each", "accumulation-missing")
stepped_early = Maybe("loop.explain_equivalences:stepped_early", "accumulation-early")

made_in_file = Explainer[Location | None]("data.explaining.declared_lines:made_in_file")
making = Explainer[Any]("diagnosis.training.making:making")
optimizer_line = Explainer[Location | None]("diagnosis.training.optimizers:optimizer_line")
used_up_near = Explainer[list[Any]]("diagnosis.training.used_up_iterators:used_up_near")

ENTAILS = (
    rule(
        "step-protocol/*",
        f"weights-update/* accumulation/* {STUCK}",
        "model",
        "calls in the wrong order undo the step",
    ),
    rule(
        "step-protocol/zero-grad-missing",
        "overfit/optimizer-diverges",
        "model",
        "accumulated gradients enlarge the step",
    ),
    rule(
        "graph-kept/graph-retained",
        "*/inplace-saved */second-backward",
        "raises",
        "a graph that is carried over refers to weights that have changed since",
    ),
    rule(
        "evaluation-leaves-trace/* step-protocol/* mode-flags/mode-stuck seeding/*",
        "resume/*",
        "model",
        "a run that depends on unsaved state cannot be resumed",
    ),
    rule(
        "graph-kept/* repeatable-steps/*",
        "step-leak/*",
        "model",
        "a graph that is retained keeps its tensors alive",
    ),
)
"""What follows from findings of this family."""
