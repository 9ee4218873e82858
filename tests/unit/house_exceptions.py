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

FILES: frozenset[str] = frozenset()
"""Files above 400 lines."""

FUNCTIONS: frozenset[str] = frozenset(
    {
        "contracts:__init__",
        "diagnosis.entries.sizes.linear:linear",
        "diagnosis.training.drift:drifted",
        "diagnosis.training.optimizers:missing",
        "loop.traces.rates:schedule_finding",
        "probes.memory.replay:build_profile",
        "runs.losses.consumption:describe",
        "runs.training.steps:_steps",
    }
)
"""Functions above 60 lines."""

FOLDERS: frozenset[str] = frozenset()
"""Folders of more than 20 files."""
