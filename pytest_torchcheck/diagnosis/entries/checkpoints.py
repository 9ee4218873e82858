"""Files that torch.load refuses: what in them is no plain type, and where it was put there."""

from __future__ import annotations

import ast
import os
import re
from typing import TYPE_CHECKING

from ... import sources
from ...explanation import Explanation, clipped, on_line
from ...findings import Culprit
from ..crashes.table import entry
from ..lines.assigned import assigned
from ..stored.pickled_names import paths_of

if TYPE_CHECKING:
    from ...findings import Location
    from ..crashes.scene import Scene


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
    saves = _saving(scene)
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
    for frame, _ in reversed(scene.frames):
        code = frame.f_code
        if code.co_name == "load" and code.co_filename.endswith(os.path.join("torch", "serialization.py")):  # fmt: skip
            return frame.f_locals.get("f")
    return None


def _files(scene: Scene) -> list[str]:
    files = dict.fromkeys(frame.f_code.co_filename for frame, _ in scene.frames)
    return [file for file in files if sources.rank(file) == 2]


def _saving(scene: Scene) -> Location | None:
    """Return the only line of the files that ran which saves something."""
    found = {
        sources.of_line(file, node.lineno)
        for file in _files(scene)
        for node in ast.walk(sources.tree_of(file) or ast.Module(body=[], type_ignores=[]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.save"
    }
    return found.pop() if len(found) == 1 else None


def _made(scene: Scene, key: str) -> Location | None:
    """Return the line that makes the value of an entry, where the files that ran name that entry only once."""
    given: list[tuple[str, ast.expr]] = []
    for file in _files(scene) if key else ():
        tree = sources.tree_of(file)
        for node in ast.walk(tree) if tree is not None else ():
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
    dead: frozenset[int] = frozenset().union(
        *(sources.untaken_in(f) for f, _ in scene.frames if f.f_code.co_filename == file)
    )
    found = assigned(place, value.id, without=dead)
    return found.location if found is not None else place
