"""Schedulers that do not fit their optimizer any more."""

from __future__ import annotations

import ast
import os
from typing import TYPE_CHECKING, Any

from ... import sources
from ...findings import Culprit
from ..crashes.table import entry

if TYPE_CHECKING:
    import re

    from ...explanation import Explanation
    from ...findings import Location
    from ..crashes.scene import Scene

_FILE = os.path.join("torch", "optim", "lr_scheduler.py")


@entry(
    r"zip\(\) argument \d+ is (?:shorter|longer) than",
    r"The number of param groups in the `optimizer`",
    r"^'(?:initial_lr|max_lr|min_lr)'$",
    r"list index out of range",
)
def groups_added(scene: Scene, match: re.Match[str]) -> Explanation | None:
    """A scheduler that was made before a parameter group was added to its optimizer."""
    scheduler = _scheduler(scene)
    groups = len(getattr(getattr(scheduler, "optimizer", None), "param_groups", ()))
    known = _known(scheduler)
    if scheduler is None or not known or groups <= known:
        return None
    name = type(scheduler).__name__
    added = _calls(scene, "add_param_group")
    made = _calls(scene, name)
    place = added[0] if len(added) == 1 else None
    line = f" (line {place.line})" if place is not None else ""
    return scene.explain(
        code="scheduler-groups",
        summary=(f"{name}.step fails: its optimizer has {groups} parameter groups, and it was "
            f"created for {known}"),
        observed=f"{groups} param_groups, {known} base rates of the scheduler",
        cause=(f"add_param_group{line} ran after the scheduler was created, which has one base "
            "rate for each group at that time"),
        because=f"its step raised {type(scene.error).__name__}: {scene.first_line}",
        fix="give the optimizer every group before the scheduler is created (frozen ones have "
            f"no gradient), or create the scheduler again after add_param_group{line}",
        culprits=(
            *(Culprit("call", "add_param_group", "adds a group", p) for p in added[:3]),
            *(Culprit("scheduler", name, f"created for {known}", p) for p in made[:1]),
            *((Culprit("call", f"{name}.step", "fails", scene.location),) if scene.location else ()),
        ),
        location=place,
    )  # fmt: skip


def _scheduler(scene: Scene) -> Any:
    """Return the scheduler whose own code raised."""
    for frame, _ in reversed(scene.frames):
        if frame.f_code.co_filename.endswith(_FILE) and "self" in frame.f_locals:
            return frame.f_locals["self"]
    return None


def _known(scheduler: Any) -> int:
    """Return for how many groups a scheduler was made."""
    given = getattr(scheduler, "base_lrs", None)
    return len(given if isinstance(given, list) else getattr(scheduler, "min_lrs", ()))


def _calls(scene: Scene, name: str) -> list[Location]:
    """Return the lines of the files that ran which call a function of this name."""
    files = dict.fromkeys(frame.f_code.co_filename for frame, _ in scene.frames)
    dead = {
        file: frozenset[int]().union(
            *(sources.untaken_in(f) for f, _ in scene.frames if f.f_code.co_filename == file)
        )
        for file in files
    }
    return [
        sources.of_line(file, node.lineno)
        for file in files
        if sources.rank(file) == 2
        for node in ast.walk(sources.tree_of(file) or ast.Module(body=[], type_ignores=[]))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).rpartition(".")[2] == name
        and node.lineno not in dead[file]
    ]
