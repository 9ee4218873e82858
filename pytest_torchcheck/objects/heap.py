"""What Python's garbage collector walks through: what checks made, not all that was imported before them.

A full collection takes as long as some training steps once a large library is imported, and comes
by itself while a model is checked. ``gc.freeze`` keeps it out of all that exists by then. What is
frozen is hidden from ``gc.get_objects`` and ``gc.get_referrers`` too: who looks for something thaws
it first.
"""

from __future__ import annotations

import gc

_FROZEN: list[bool] = []
"""For each who asked for it and has not released it: whether that froze."""
_OTHERS: list[int] = []
"""How many objects the program itself was seen to have frozen: they are walked through to be counted, so once."""


def freeze() -> None:
    """Keep the collector out of all that exists, until :func:`release` was called as often as this.

    Where the program itself has frozen something, or collects nothing by itself, all stays as it is.
    """
    idle = not _FROZEN and gc.isenabled() and not _OTHERS
    if idle and (count := gc.get_freeze_count()):
        _OTHERS.append(count)
        idle = False
    if idle:
        gc.freeze()
    _FROZEN.append(idle)


def release() -> None:
    """Give back to the collector what was frozen; what was made meanwhile and has died is collected first."""
    was_frozen = any(_FROZEN)
    _FROZEN.pop()
    if was_frozen and not _FROZEN:
        gc.collect()  # else it would be frozen again by the next one, dead as it is
        gc.unfreeze()


def thaw() -> None:
    """Show the collector everything again, for the rest of the time."""
    if any(_FROZEN):
        gc.unfreeze()
        _FROZEN[:] = [False] * len(_FROZEN)
