"""Where the user's code makes several uses of one value: the lines at which their calls part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import sources
from ..recorded.recording import Recorder
from ..recorded.steps import gradients_kept, record_step

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from torch import nn

    from ...findings import Location
    from ..recorded.watch import Op


def where_parted(
    run: Callable[[], object], module: nn.Module, names: Iterable[str], uses: Collection[Op]
) -> list[Location]:
    """Run once more and return the lines of one function of the user's from which several operations came.

    Going inward from the outermost call, these are the first lines that are not the same. Empty where the
    operations stand on one line, or in different functions.

    Args:
        run: What was recorded before.
        module: The model.
        names: The parameters that it was recorded for.
        uses: Operations of that record.
    """
    known = dict(module.named_parameters(remove_duplicate=False))
    watch = _Lines(module, {name: known[name] for name in names}, gradients=True)
    watch.wanted = {op.index: op.name for op in uses}
    try:
        with gradients_kept(module.parameters()):
            record_step(run, watch)
    finally:
        watch.release()
    if len(watch.lines) != len(watch.wanted):
        return []  # the run does not repeat
    for level in zip(*watch.lines.values(), strict=False):
        places = {(place.file, place.line): place for place in level}
        if len(places) > 1:
            one = len({(place.file, place.function) for place in level}) == 1
            return sorted(places.values(), key=lambda place: place.line) if one else []
    return []


class _Lines(Recorder):
    """Notes the user's lines, from the outermost, that led to some operations."""

    wanted: dict[int, str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lines: dict[int, list[Location]] = {}

    def op(self, name: str, location: Location | None = None) -> Op:
        """Make the next operation, and keep the lines of a wanted one."""
        made = super().op(name, location)
        if self.wanted.get(made.index) == name:
            self.lines[made.index] = [
                sources.of_line(code.co_filename, frame.f_lineno, code.co_qualname)
                for frame in self.frames()
                if sources.rank((code := frame.f_code).co_filename) == 2
            ][::-1]
        return made
