"""Memory and time of a step, and what stays after it."""

from __future__ import annotations

from .explainer import One
from .rule import rule

inference_graph = One(
    "diagnosis.gradient.changed_inputs:inference_graph", "inference-graph", doubtful=True
)

cached = One("diagnosis.stored.leaks:cached", "leak-graph leak-hooks")
grows_too_fast = One("diagnosis.stored.memory:grows_too_fast")
leaks = One("diagnosis.stored.leaks:leaks", "leak-graph leak-hooks", doubtful=True)
longer_graph = One("diagnosis.stored.leaks:longer_graph", "leak-graph")
over_ceiling = One("diagnosis.stored.memory:over_ceiling", "memory-ceiling")
too_many_flops = One("diagnosis.stored.memory:too_many_flops", "flops-ceiling")
too_slow = One("diagnosis.stored.memory:too_slow", "too-slow")
out_of_memory = One("diagnosis.stored.memory:out_of_memory", "out-of-memory")

ENTAILS = (
    rule(
        "step-leak/*",
        "inference-memory/*",
        "overlap",
        "memory that accumulates in training also accumulates in evaluation",
    ),
)
"""What follows from findings of this family."""
