"""Why a checkpoint that is loaded changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...explanation import on_line
from ...findings import Culprit, Finding
from ...verdicts import violated

if TYPE_CHECKING:
    from ...loop.loads import Load


def loads_nothing(load: Load) -> Finding:
    """Explain a load of which no key matches."""
    place, expected, given = load.location, load.expected[0], load.given[0]
    prefix = given.removesuffix(expected) if given.endswith(f".{expected}") else ""
    lacking = expected.removesuffix(given) if expected.endswith(f".{given}") else ""
    if prefix:
        keyed = f"{{key.removeprefix({prefix!r}): value for key, value in ...}}"
        fix = f"take {prefix!r} off the keys{on_line(place)}: {keyed}"
    elif lacking:
        fix = f"load into the part of {load.kind} that the checkpoint is of, or put {lacking!r} before its keys"
        fix += on_line(place)
    else:
        fix = f"compare the keys with those of the model, rename them, and leave out strict=False{on_line(place)}"
    return violated(
        "loads-nothing",
        f"load_state_dict gives {load.kind} nothing: no key of the checkpoint is one of its own",
        culprits=[Culprit("call", "load_state_dict", "matches no key", place)],
        location=place,
        observed=f"the checkpoint has {', '.join(load.given)}; {load.kind} has {', '.join(load.expected)}",
        cause="with strict=False keys that do not match are left out, and all of them are: the weights stay as they "
        "were initialised",
        because="the factory was watched while it built the model, and no other call loads into this part",
        fix=fix,
    )
