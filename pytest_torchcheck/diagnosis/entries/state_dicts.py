"""Files that torch.load refuses, and state dicts whose keys or sizes do not fit the model."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ... import sources
from ...explanation import Explanation, clipped, listed, numbers, on_line, times
from ...findings import Culprit
from ..crashes.table import entry
from ..lines.assigned import assigned
from ..lines.layer_sizes import building_line, size_origin
from ..stored.checkpoints import paths_of

if TYPE_CHECKING:
    import torch

    from ...findings import Location
    from ..crashes.scene import Scene


@entry(r"Error\(s\) in loading state_dict for (\w+):")
def state_dict(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """Keys or sizes of a state_dict that do not fit the model."""
    place = scene.location
    missing = re.search(r"Missing key\(s\) in state_dict: (.*?)\. *$", scene.message, re.MULTILINE)
    unexpected = re.search(
        r"Unexpected key\(s\) in state_dict: (.*?)\. *$", scene.message, re.MULTILINE
    )
    absent = re.findall(r'"([^"]+)"', missing[1]) if missing else []
    foreign = re.findall(r'"([^"]+)"', unexpected[1]) if unexpected else []
    sizes = re.findall(
        r"size mismatch for (\S+): copying a param with shape (?:torch\.Size\()?\[([\d, ]*)\]\)? from checkpoint, "
        r"the shape in current model is (?:torch\.Size\()?\[([\d, ]*)\]",
        scene.message,
    )
    cls = match[1]
    if sizes and not absent and not foreign:
        return _other_size(sizes, scene, cls, place)
    prefix = _prefix(absent, foreign)
    late, cause, fix, place = _key_cause(prefix, place, absent, foreign, scene)
    parts = [f"missing: {listed(absent)}"] if absent else []
    parts += [f"unexpected: {listed(foreign)}"] if foreign else []
    parts += [f"other size: {listed([s[0] for s in sizes])}"] if sizes else []
    first = (absent or foreign or [cls])[0]
    names = [*absent, *foreign]
    return scene.explain(
        code="state-dict-keys",
        summary=(
            f"loading a state_dict into {cls}: {len(absent)} keys are missing, {len(foreign)} "
            f"unexpected ({first})"
        ),
        observed="; ".join(parts),
        cause=cause,
        because=f"load_state_dict names {len(names)} keys that only one side has",
        fix=fix,
        culprits=tuple(
            Culprit(
                "buffer" if name in late else "parameter",
                name,
                "missing" if name in absent else "unexpected",
                late.get(name),
            )
            for name in names[:4]
        ),
        location=place,
    )


def _other_size(
    sizes: list[tuple[str, str, str]], scene: Scene, cls: str, place: Location | None
) -> Explanation | None:
    """Explain a parameter of another size in the checkpoint."""
    name, theirs, ours = sizes[0]
    module, _, leaf = name.rpartition(".")
    made = building_line(scene.model, module) if module else None
    place_argument = (
        "out_features"
        if leaf in ("weight", "bias") and numbers(theirs)[:1] != numbers(ours)[:1]
        else ""
    )
    origin = size_origin(scene.model, module, place_argument) if module and place_argument else None
    made = origin.location if origin is not None else made
    return scene.explain(
        code="state-dict-size",
        summary=(
            f"{name} is {times(numbers(ours))} in {cls} and {times(numbers(theirs))} in the "
            "checkpoint"
        ),
        observed=(
            f"{len(sizes)} parameter{'s' if len(sizes) > 1 else ''} of another size: "
            f"{listed([s[0] for s in sizes])}"
        ),
        cause="the checkpoint was saved by a model of another size (classes, vocabulary, width)",
        because=f"size mismatch for {name}: [{theirs}] against [{ours}]",
        fix=(
            f"build the model with the checkpoint's sizes{on_line(made)}, or drop "
            f"{listed([s[0] for s in sizes], 3)} from it before loading"
        ),
        culprits=tuple(
            Culprit("parameter", s[0], f"[{s[2]}] in the model, [{s[1]}] saved") for s in sizes[:4]
        ),
        location=made or place,
    )


def _key_cause(
    prefix: tuple[str, str] | None,
    place: Location | None,
    absent: list[str],
    foreign: list[str],
    scene: Scene,
) -> tuple[dict[str, Location | None], str, str, Location | None]:
    """Return why the keys differ, what to do, where, and which buffers are filled later."""
    late: dict[str, Location | None] = {}
    if prefix:
        which, edit = prefix
        cause = f"the checkpoint's keys differ by the prefix {which!r}" + (
            ": it was saved from a DataParallel or DDP wrapper" if which == "module." else ""
        )
        fix = edit + on_line(place)
    elif absent and not foreign:
        cause = (
            "the checkpoint lacks them: they were added to the model, or were neither "
            "parameters nor buffers when it was saved"
        )
        fix = "save again from this model, or load with strict=False and initialise them"
    elif foreign and not absent and (late := _filled_later(scene.model, foreign)):
        made = next(iter(late.values()))
        cause = (
            f"{listed(list(late), 2)} {'is' if len(late) == 1 else 'are'} registered as "
            f"None{on_line(made)} and assigned later: a newly built model has no such key"
        )
        fix = f"register it with persistent=False{on_line(made)}, or with its final value"
        place = made or place
    elif foreign and not absent:
        cause = "the model lacks them: layers were removed, or are held in a plain list or dict"
        fix = "register these layers, or delete the keys from the checkpoint"
    else:
        cause = "model and checkpoint name their layers differently"
        fix = "rename the keys of the checkpoint before loading"
    return late, cause, fix, place


def _filled_later(model: torch.nn.Module | None, names: list[str]) -> dict[str, Location | None]:
    """Return those of some keys that are buffers or parameters registered as None, with their lines."""
    found: dict[str, Location | None] = {}
    if model is None:
        return found
    for name in names:
        owner, _, leaf = name.rpartition(".")
        try:
            module = model.get_submodule(owner)
        except AttributeError:
            continue
        for kept in (module._buffers, module._parameters):
            if leaf in kept and kept[leaf] is None:
                found[name] = sources.of_parameter(model, name)
    return found


def _prefix(absent: list[str], foreign: list[str]) -> tuple[str, str] | None:
    """Return the prefix by which all keys differ, and the edit, where there is one."""
    if not absent or len(absent) != len(foreign):
        return None
    for longer, shorter, edit in (
        (sorted(foreign), sorted(absent), "strip the prefix {!r} from the checkpoint's keys"),
        (sorted(absent), sorted(foreign), "add the prefix {!r} to the checkpoint's keys"),
    ):
        head = longer[0][: len(longer[0]) - len(shorter[0])]
        if head and all(a == head + b for a, b in zip(longer, shorter, strict=True)):
            return head, edit.format(head)
    return None


@entry(r"Weights only load failed")
def weights_only(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A file with something in it that torch.load does not make by default."""
    named = re.search(r"(?:Unsupported global: GLOBAL|Unsupported class) (\S+)", scene.message)
    if named is None:
        return None
    kind, place = named[1], scene.location
    paths = paths_of(_file(scene), kind)
    key = next(iter(paths), "")
    what = (
        "a NumPy scalar"
        if kind.endswith("multiarray.scalar")
        else "a NumPy array"
        if kind.endswith("multiarray._reconstruct")
        else kind
    )
    made = _made(scene, key)
    saving = set(scene.calls("save"))
    saves = saving.pop() if len(saving) == 1 else None
    line = on_line(made)
    entry_words = f"entry {key!r}" if key else "an entry"
    if what == "a NumPy scalar":
        plain = f"save float(...) or .item() of it{line}"
    elif what == "a NumPy array":
        plain = f"save it as a tensor (torch.from_numpy){line}"
    else:
        plain = f"save plain types or a state_dict() of it{line}, or allow it with torch.serialization.add_safe_globals"
    return scene.explain(
        code="weights-only",
        summary=f"torch.load refuses the checkpoint: {entry_words} is {what}",
        observed=f"{clipped(kind, 80)} in {len(paths)} {'entry' if len(paths) == 1 else 'entries'} of the file"
        if paths
        else f"the file holds {clipped(kind, 80)}",
        cause="since torch 2.6 torch.load reads tensors and plain Python types only (weights_only=True)",
        because=f'torch said "Weights only load failed ... {clipped(named[0], 100)}"',
        fix=plain,
        culprits=(
            *((Culprit("call", made.text, f"gives {key!r} its value", made),) if made else ()),
            *((Culprit("call", "torch.save", "writes it", saves),) if saves else ()),
            Culprit("call", "torch.load", f"refuses {kind}", place),
        ),
        location=made or saves,
    )  # fmt: skip


def _file(scene: Scene) -> object:
    """Return what torch.load was given."""
    return (scene.called("load") or {}).get("f")


def _made(scene: Scene, key: str) -> Location | None:
    """Return the line that makes the value of an entry, where the files that ran name that entry only once."""
    given: list[tuple[str, ast.expr]] = []
    for file in scene.files if key else ():
        for node in sources.nodes(file):
            if isinstance(node, ast.Dict):
                given += [
                    (file, v)
                    for k, v in zip(node.keys, node.values, strict=True)
                    if isinstance(k, ast.Constant) and k.value == key
                ]
            elif isinstance(node, ast.Call):
                given += [(file, k.value) for k in node.keywords if k.arg == key]
    if len(given) != 1:
        return None
    file, value = given[0]
    place = sources.of_line(file, value.lineno)
    if not isinstance(value, ast.Name):
        return place
    found = assigned(place, value.id, without=scene.dead(file))
    return found.location if found is not None else place
