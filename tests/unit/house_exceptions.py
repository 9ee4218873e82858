"""Where the rules of the house are not kept yet; every list may only shrink."""

TYPES_UPWARDS = {
    (
        "promises.base",
        "subject",
    ): "Promise.verify is given a Subject, which users' own promises name",
    ("declared.kept_count", "contracts"): "a log of contracts that a contract writes to",
}
"""Imports for types alone that lead from a lower layer to a higher one, with the reason."""

IMPORTS_INSIDE_FUNCTIONS = 32
"""How many there may be."""

MODES = frozenset(
    {
        "probes.memory.tracker",
        "record.modes",
    }
)
"""Modules that subclass a mode of torch's."""

FILES: frozenset[str] = frozenset()
"""Files above 400 lines."""

FUNCTIONS: frozenset[str] = frozenset(
    {
        "checks.autograd:gradients_exist",
        "checks.losses.labels:label_range",
        "checks.parallel.replicas:ddp_equivalence",
        "checks.promised:_causal",
        "contracts:__init__",
        "diagnosis.entries.devices:pair",
        "diagnosis.entries.dtype_pairs:pair",
        "diagnosis.entries.graph:no_graph",
        "diagnosis.entries.indexing:_table",
        "diagnosis.entries.inplace:saved",
        "diagnosis.entries.second_backward:second_backward",
        "diagnosis.entries.sizes.convolutions:channels",
        "diagnosis.entries.sizes.linear:linear",
        "diagnosis.entries.targets:label_range",
        "diagnosis.entries.targets:label_shape",
        "diagnosis.gradient.missing:_missing",
        "diagnosis.outputs.complex_cast:complex_cast",
        "diagnosis.stored.leaks:leaks",
        "diagnosis.training.drift:drifted",
        "diagnosis.training.optimizers:missing",
        "diagnosis.training.optimizers:standstill",
        "diagnosis.training.parameter_groups:groups_overlap",
        "functions.explanation:_finding",
        "loop.traces.clipping:_unclipped",
        "loop.traces.rates:schedule_finding",
        "measure.growth:grow",
        "measure.savings:assert_saves",
        "probes.memory.replay:build_profile",
        "probes.positions.lengthening:first_lengthening",
        "runs.losses.consumption:describe",
        "runs.training.observation:passes",
        "runs.training.steps:_steps",
    }
)
"""Functions above 60 lines."""

FOLDERS: frozenset[str] = frozenset()
"""Folders of more than 20 files."""
