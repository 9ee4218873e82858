"""From evidence on pickling, workers and their randomness to findings."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any

from ... import sources
from ...findings import Culprit, Finding, Location
from ...verdicts import inconclusive, not_applicable, suspicious, violated
from .. import delivery, sample_lines
from ..wording import dataset_culprit, few, line_ref, own_line
from .making_lines import replaced_from_outside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ..delivery import Delivery
    from ..order import Shards
    from ..pickling import Unpicklable
    from ..plan import Part
    from ..randomness import Augmentation, Duplicate, Reseeding
    from ..relations.worker_agreement import Disagreement

_INSTEAD = {
    "lambda": "a function at module level (functools.partial for what it closes over)",
    "local function": "a function at module level",
    "open file": "its path, opened at the first read in each worker",
    "lock": "nothing: create it at the first use in each worker",
    "generator": "the arguments to create it, and create it in __iter__ or at the first read",
    "module": "an import at the top of the file",
    "CUDA tensor": "a CPU tensor; the loop moves batches to the device",
    "tensor with a graph": "its detach()ed value",
    "object": "the arguments to create it, or give its class a __getstate__",
}


def _kept(part: Part, one: Unpicklable) -> Location | None:
    """Return the line by which the dataset comes to hold what cannot be sent."""
    name = re.match(r"\w+", one.path)
    return sources.of_assignment(part.dataset, name.group()) if name else None


def not_picklable(part: Part, found: Sequence[Unpicklable]) -> Finding:
    """Something cannot go to a spawned worker."""
    plan = part.plan
    first = found[0]
    culprits = tuple(dataset_culprit(part, one.path, one.kind, one.location) for one in found)
    culprits += tuple(
        dataset_culprit(part, one.path, "kept from here", line)
        for one in found[:2]
        if (line := _kept(part, one)) not in (None, one.location)
    )
    if plan.declared and plan.num_workers == 0:
        return not_applicable(
            f"{part.prefix}{first.path} cannot be pickled ({first.kind}), which matters only "
            "with workers; the loader uses the main process (num_workers=0)"
        )
    forked = plan.start_method == "fork" and not any(one.shares_handle for one in found)
    make = violated if plan.num_workers > 0 and not forked else suspicious
    method = plan.start_method or "spawn"
    return make(
        "not-picklable",
        f"{part.prefix}{first.path} of {part.name} cannot be sent to a {method} worker: it is "
        f"{'an' if first.kind[0] in 'aeiou' else 'a'} {first.kind}",
        culprits=culprits,
        location=first.location,
        observed=f"pickle refuses {len(found)} thing{'s' * (len(found) > 1)}: {few([one.path for one in found])}",
        cause="workers that are not forked (macOS, Windows, Python 3.14 on Linux) receive the dataset by pickle"
        if not first.shares_handle
        else "an open file cannot be sent, and forked workers would share its position",
        because=first.error[:200],
        fix=f"define {first.path} at module level"
        if first.kind == "local class"
        else f"in {first.path} keep {_INSTEAD[first.kind]}",
        evidence={"paths": [one.path for one in found], "num_workers": plan.num_workers},
    )


def undelivered(part: Part, made: Delivery, deadline_s: float) -> Finding:
    """A spawned worker did not deliver."""
    where_ = line_ref(made.location)
    common: dict[str, Any] = {"location": made.location, "evidence": {
        "phase": made.phase, "seconds": made.seconds, "payload_bytes": made.payload_bytes, "message": made.message,
    }}  # fmt: skip
    name = part.name if made.index is None else f"{part.name}[{made.index}]"
    culprit = dataset_culprit(part, name, made.error_type or made.outcome, made.location)
    if made.outcome == "too-large":
        return inconclusive(
            f"the pickled dataset has {made.payload_bytes} bytes, more than the {delivery.MOST_BYTES} tried here"
        )
    if made.outcome == "hung":
        if made.phase in ("start", "main"):
            return inconclusive(
                f"the worker did not import the main module within {delivery.START_S:g} s", **common
            )
        return violated(
            "worker-hangs",
            f"{part.prefix}a spawned worker hangs while it {_DOING[made.phase]} ({made.batches} batches in {deadline_s:g} s)",
            culprits=(culprit,),
            observed=f"{made.batches} of {delivery.BATCHES} batches came within {deadline_s:g} s",
            cause="it waits for a lock, a queue or a process that only the parent has",
            because=f"its stack is at {where_}" if made.location else "the deadline passed",
            fix=f"create what {where_} waits for in the worker itself"
            if made.location
            else "check its first read",
            **common,
        )
    if made.outcome == "died":
        return _died(part, made, common)
    return _raised(part, made, culprit, common)


_ENDS = r"os\._exit\(|os\.kill\(|os\.abort\("


def _died(part: Part, made: Delivery, common: dict[str, Any]) -> Finding:
    """The process ended with no word: what the stack, else the code of the reading, says of where."""
    doing = _DOING[made.phase] if made.index is None else f"reads sample {made.index}"
    name = part.name if made.index is None else f"{part.name}[{made.index}]"
    reads = made.phase == "read"
    place = made.location
    if place is None and reads:
        place = own_line(part, _ENDS) or own_line(part, r"def __(getitem|iter|next)__")
    return violated(
        "worker-dies",
        f"{part.prefix}a spawned worker dies with exit code {made.exit_code} while it {doing}",
        culprits=(dataset_culprit(part, name, made.outcome, place),),
        observed=f"exit code {made.exit_code} after {made.batches} batches",
        cause="the process ended without an exception: os._exit, a signal, or memory",
        because=made.message or "it wrote nothing to stderr",
        fix=f"read {'one sample' if made.index is None else f'sample {made.index}'} in a fresh "
        "interpreter to see what terminates it",
        **(common | {"location": place}),
    )


_DOING = {
    "start": "starts", "main": "imports the main module", "unpickle": "unpickles the dataset",
    "init": "runs worker_init_fn", "read": "reads a sample", "collate": "collates a batch",
    "send": "sends a batch", "done": "ends",
}  # fmt: skip


def _raised(part: Part, made: Delivery, culprit: Culprit, common: dict[str, Any]) -> Finding:
    where_ = line_ref(made.location)
    observed = f"{made.error_type} in a fresh interpreter, after {made.batches} of {delivery.BATCHES} batches"
    said = f"it said: {made.message[:200]}"
    if made.phase == "main":
        return violated(
            "main-guard",
            f"{part.prefix}a spawned worker cannot import the main module: {made.error_type}: {made.message[:100]}",
            culprits=(culprit,), observed=observed, because=said,
            cause="every spawned worker imports the main module, and this module runs code on "
                "import",
            fix='put that code under if __name__ == "__main__":', **common,
        )  # fmt: skip
    function = _running(made.location)
    if made.error_type == "RecursionError" and function.endswith(".__getattr__"):
        return violated(
            "worker-cannot-unpickle",
            f"{part.prefix}{part.name} cannot be unpickled in a worker: {function} recurses "
            "without end",
            culprits=(
                Culprit("function", function, made.error_type, made.location),
                culprit,
            ),
            observed=observed, because=f"{said}, at {where_}",
            cause="unpickling looks up attributes before any exist, and __getattr__ reads "
                "one of them, which calls __getattr__ again",
            fix="begin __getattr__ with: if name.startswith('_'): raise AttributeError(name)",
            **common,
        )  # fmt: skip
    if made.phase == "unpickle":
        return violated(
            "worker-cannot-unpickle",
            f"{part.prefix}{part.name} cannot be unpickled in a worker: {made.error_type}: "
            f"{made.message[:100]}",
            culprits=(culprit,), observed=observed, because=said,
            cause=("it was pickled here, but refers to a name that a new process does not have"),
            fix="define its class in a module that the worker can import, and its state in "
                "__getstate__", **common,
        )  # fmt: skip
    if made.phase in ("collate", "send"):
        shapes = "; ".join(made.shapes)
        return violated(
            "worker-collate",
            f"{part.prefix}a worker cannot {'make' if made.phase == 'collate' else 'send'} a batch: "
            f"{shapes or made.message[:120]}",
            culprits=(culprit,), observed=observed + (f"; {shapes}" if shapes else ""), because=said,
            cause="samples of one batch cannot be stacked" if shapes else f"the worker fails as it {_DOING[made.phase]}",
            fix="give all samples the same shape, or pad them in a collate_fn" if shapes
            else "return detached CPU tensors" , **common,
        )  # fmt: skip
    return violated(
        "worker-raises",
        f"{part.prefix}a spawned worker raises {made.error_type} while it {_DOING[made.phase]}: {made.message[:100]}",
        culprits=(culprit,), observed=observed, because=said,
        cause=("it works here but not in a new process: it needs state of the main process")
        if made.phase == "read" else "worker_init_fn fails in a new process",
        fix=f"create what {where_} needs in the worker itself", **common,
    )  # fmt: skip


def _running(place: Location | None) -> str:
    """Return the method around a line with its class, such as ``Images.__getattr__``; empty where there is none."""
    if place is None or (method := sources.function_around(place.file, place.line)) is None:
        return ""
    classes = sources.around(place.file, place.line, ast.ClassDef)
    return ".".join([*(cls.name for cls in classes[-1:]), method.name])


def differing(part: Part, found: Disagreement) -> Finding:
    """A worker reads other samples than the main process."""
    place = found.hashed or sample_lines.return_line(part, found.index)
    name = f"{part.name}[{found.index}]" + (f", value {found.path}" if found.path else "")
    forked = part.plan.start_method == "fork"
    make = suspicious if forked else violated
    here, there = (
        "text" if low is None or high is None else f"{low:g} to {high:g}"
        for low, high in (found.here, found.there)
    )
    if found.hashed is not None:
        cause = "hash() of a string is salted: its values differ between interpreters and runs"
        fix = f"use a hash of the contents at {line_ref(place)}: zlib.crc32(text.encode()), or hashlib"
    else:
        cause = (
            "the sample depends on a value that differs between interpreters: the salt of "
            "hash(), the order of a set, a global"
        )
        fix = f"compute what {line_ref(place)} returns from the pickled state of the dataset"
    ran = f"; hash() of a string ran at {line_ref(place)}" if found.hashed is not None else ""
    return make(
        "worker-differs",
        f"{part.prefix}{name} differs between a spawned worker and the main process",
        culprits=(dataset_culprit(part, "hash" if found.hashed else name, "different values in each process", place),),
        location=place,
        observed=f"{found.count} of {found.compared} samples differ; {name} ({found.dtype}): {here} here, {there} in the worker",
        cause=cause,
        because=f"two reads here agree, one of them with another seed and as a worker{ran}",
        fix=fix,
        evidence={"start_method": part.plan.start_method},
    )  # fmt: skip


def duplicated(part: Part, found: Augmentation) -> Iterator[Finding]:
    """Workers or epochs draw the same augmentations."""
    for one in found.duplicates:
        yield _duplicate(part, found, one)


def _duplicate(part: Part, found: Augmentation, one: Duplicate) -> Finding:
    culprits = [
        dataset_culprit(
            part, one.name, f"the same state in all {one.between}", one.made or one.drawn
        )
    ]
    if one.drawn is not None and one.made is not None:
        culprits.append(dataset_culprit(part, one.name, "is drawn from here", one.drawn))
    if one.seeded_by:
        told, line = "is the worker_init_fn", one.made
        culprits.append(Culprit("function", one.seeded_by, told, line))
        fix = (
            f"in {one.seeded_by}, seed from torch.initial_seed() % 2**32 (which differs by "
            "worker and epoch)"
        )
        each = one.between.removesuffix("s")
        cause = f"{one.seeded_by}, the worker_init_fn, sets the same seed in every {each}"
    else:
        fix = f"seed {one.name} in worker_init_fn from torch.initial_seed(), or draw from torch's own generator"
        cause = "every worker receives a copy of the dataset's generator, in the same state" + (
            ", again in every epoch" if not part.plan.persistent_workers else ""
        )
    return violated(
        "augmentation-duplicated",
        f"{part.prefix}{one.name} draws the same augmentations in all {one.between}",
        culprits=tuple(culprits),
        location=one.made or one.drawn,
        observed=f"{max(found.workers, 1)} workers, 2 epochs and {found.items} items were simulated",
        cause=cause,
        because=f"{one.name} had the same state in different {one.between}, and "
        f"{line_ref(one.drawn)} draws from it",
        fix=fix,
        evidence={"used": list(found.used), "drawn": line_ref(one.drawn)},
    )


def not_random(
    part: Part, found: Augmentation, fixed: Reseeding | None, declared: Location | None = None
) -> Finding:
    """Augmentation that is promised and does not happen, or is the same for ever; ``declared`` is the contract's line."""
    own = type(part.own)
    place = fixed.location if fixed is not None else own_line(part, r"def __getitem__")
    name = fixed.call if fixed is not None else "__getitem__"
    which = part.name if own is type(part.dataset) else f"{part.name} of {own.__name__}"
    replaced = list(replaced_from_outside(part, declared))[:2] if fixed is None else []
    cause = (
        "every read sets the generator to the same state"
        if fixed
        else "the items do not depend on any random number"
    )
    fix = (
        f"drop {line_ref(place)}; seed once, outside the read"
        if fixed
        else ("apply the augmentation in __getitem__, or drop the promise RandomAugmentation()")
    )
    if replaced:
        attribute, owner, line = replaced[0]
        shares = owner.endswith(".dataset") and own is not type(part.dataset)
        now = type(getattr(part.own, attribute)).__name__
        cause += (
            f"; likely {attribute} (now a {now}), which line {line.line} replaces through {owner}"
            + (": it is shared by the splits of one dataset" if shares else "")
        )
        fix = (
            f"give each split its own dataset, instead of {line_ref(line)}"
            if shares
            else (f"keep the augmentation in {attribute}, at {line_ref(line)}")
        )
    kept = [] if fixed or replaced else _made_once(part)
    if kept:
        cause += f"; the value read from {kept[0][0]} was created once, at {line_ref(kept[0][1])}"
    return violated(
        "augmentation-fixed",
        (f"{part.prefix}every read of an item of {which} is equal, but random augmentation "
            "is promised")
        + (f": {name}" if fixed else ""),
        culprits=(
            *(dataset_culprit(part, f"{owner}.{attribute}", "replaced here", line) for attribute, owner, line in replaced),
            dataset_culprit(part, name, "", place),
            *(dataset_culprit(part, attribute, "created once", line) for attribute, line in kept),
        ),
        location=place,
        observed=f"{found.items} items were read twice in two epochs; none differs",
        cause=cause,
        because=f"{name} at {line_ref(place)}, which runs at every read" if fixed
        else f"generators drawn from: {', '.join(found.used) or 'none'}",
        fix=fix,
    )  # fmt: skip


def _made_once(part: Part) -> list[tuple[str, Location]]:
    """Return the attributes that ``__getitem__`` indexes and the lines that compute them by a call, two at most."""
    reading = getattr(type(part.own), "__getitem__", None)
    lines = sources.matches(reading, r"\bself\.\w+\s*\[") if reading is not None else []
    names = dict.fromkeys(
        name for place in lines for name in re.findall(r"\bself\.(\w+)\s*\[", place.text)
    )
    return [
        (name, line)
        for name in names
        for line in sources.matches(type(part.own), rf"\bself\.{name}\s*(:[^=]+)?=[^=].*\(")
    ][:2]


def unseeded(part: Part, found: Augmentation, name: str, place: Location | None) -> Finding:
    """Augmentation that no seed repeats."""
    return violated(
        "augmentation-unseeded",
        f"{part.prefix}{name or part.name} draws random numbers that no seed repeats",
        culprits=(dataset_culprit(part, name or part.name, "differs with equal seeds", place),),
        location=place,
        observed=f"one worker was simulated twice with the same seed; {found.items} items differ",
        cause="a generator is created without a seed, or seeded from the clock or the system",
        because=f"{name} is the first value that differs, after {line_ref(place)}"
        if name
        else "the items differ",
        fix="draw from torch's generator, or seed this one from torch.initial_seed()",
    )


def shards_shared(part: Part, found: Shards) -> Finding:
    """An iterable dataset that every worker reads whole."""
    place = own_line(part, r"def __iter__")
    make = violated if part.plan.num_workers > 1 else suspicious
    return make(
        "worker-duplicates",
        f"{part.prefix}every worker of {part.name} delivers the same samples",
        culprits=(dataset_culprit(part, part.name, "the same stream in every worker", place),),
        location=place,
        observed=f"{found.shared} of the first {found.items} samples of two workers are equal",
        cause="__iter__ does not use get_worker_info(): an epoch has every sample once per worker",
        because="two workers were simulated with one seed, and their samples compared bit for bit",
        fix="start at get_worker_info().id and step by num_workers in __iter__",
    )
