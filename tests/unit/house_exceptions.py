"""Where the rules of the house are not kept yet; every list may only shrink."""

TYPES_UPWARDS = {
    (
        "promises.base",
        "subject",
    ): "Promise.verify is given a Subject, which users' own promises name",
    ("declared.kept_count", "contracts"): "a log of contracts that a contract writes to",
}
"""Imports for types alone that lead from a lower layer to a higher one, with the reason."""

IMPORTS_INSIDE_FUNCTIONS = 24
"""How many there may be."""

MODES = frozenset(
    {
        "probes.memory.tracker",
        "record.modes",
    }
)
"""Modules that subclass a mode of torch's."""

FILES: frozenset[str] = frozenset(
    {
        "checks.machines.cuda",
        "diagnosis.entries.state",
        "diagnosis.outputs.behaviour",
    }
)
"""Files above 400 lines."""

FUNCTIONS: frozenset[str] = frozenset(
    {
        "checks.losses.labels:label_range",
        "checks.losses.pairing:target_alignment",
        "checks.machines.amp:grad_scaler",
        "checks.parallel.data:rank_checkpoint",
        "checks.parallel.sharding:synchronised_statistics",
        "checks.steps.trainer:_labels_wrong",
        "checks.steps.updates:weights_update",
        "contracts:__init__",
        "diagnosis.entries.calls:signature",
        "diagnosis.entries.indexing:_table",
        "diagnosis.entries.sizes.convolutions:channels",
        "diagnosis.entries.sizes.linear:linear",
        "diagnosis.entries.targets:label_range",
        "diagnosis.gradient.freezing:off",
        "diagnosis.gradient.missing:_missing",
        "diagnosis.outputs.behaviour:unseeded",
        "diagnosis.outputs.placement:_attribute",
        "diagnosis.stored.checkpoints:_loses",
        "diagnosis.training.drift:drifted",
        "diagnosis.training.optimizers:missing",
        "diagnosis.training.optimizers:standstill",
        "diagnosis.training.parameter_groups:groups_overlap",
        "loop.traces.clipping:_unclipped",
        "loop.traces.rates:schedule_finding",
        "probes.memory.replay:build_profile",
        "probes.positions.lengthening:first_lengthening",
        "runs.losses.consumption:describe",
        "runs.training.steps:_steps",
    }
)
"""Functions above 60 lines."""

FOLDERS: frozenset[str] = frozenset()
"""Folders of more than 20 files."""
