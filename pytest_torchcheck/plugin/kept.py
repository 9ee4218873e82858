"""What the items of a run found, kept small: as text, packed by contract, read again a contract at a time."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_OPEN: Final = 4  # contracts whose records may be plain at once: under xdist they come in turns


class Kept:
    """The records of all items, by contract.

    A record is a report's JSON: some 700 bytes for a check that passes, of which all but a tenth are the same in the
    other checks of its contract. So what a contract found is packed together, once others have their turn.
    """

    def __init__(self) -> None:
        self.ids: set[str] = set()
        self._open: dict[str, list[tuple[int, str, str, str]]] = {}
        self._packed: dict[str, list[bytes]] = {}
        self._count = 0
        self._void: dict[str, int] = {}  # before which record an item's earlier attempts end

    def __bool__(self) -> bool:
        return bool(self.ids)

    def add(self, nodeid: str, when: str, text: str) -> None:
        """Keep the record of an item's phase, as JSON; a later one of the same phase replaces it."""
        node: str = json.loads(text)["node"]
        self._count += 1
        self._open.setdefault(node, []).append((self._count, nodeid, when, text))
        self.ids.add(nodeid)
        if len(self._open) > _OPEN:
            oldest = next(iter(self._open))
            entries = json.dumps(self._open.pop(oldest)).encode("utf-8", "surrogatepass")
            self._packed.setdefault(oldest, []).append(zlib.compress(entries))

    def forget(self, nodeid: str) -> None:
        """Forget what earlier attempts of the item have found."""
        if nodeid in self.ids:
            self.ids.discard(nodeid)
            self._void[nodeid] = self._count

    def by_node(
        self, order: Mapping[str, int]
    ) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
        """Yield each contract's node id with the records of its items, both in the given order of items.

        Args:
            order: The place of each item, by node id; items without one come last.
        """
        last = len(order)

        def place(nodeid: str) -> tuple[int, str]:
            return order.get(nodeid, last), nodeid

        first: dict[str, tuple[int, str]] = {}
        for node in (*self._packed, *self._open):
            found = [place(nodeid) for nodeid, _ in self._records(node)]
            if found:
                first[node] = min(found)
        for node in sorted(first, key=first.__getitem__):
            records = sorted(self._records(node), key=lambda entry: place(entry[0]))
            yield node, [(nodeid, json.loads(text)) for nodeid, text in records]

    def _records(self, node: str) -> list[tuple[str, str]]:
        """Return the node ids and records of a contract's items that still hold."""
        entries = [
            entry
            for packed in self._packed.get(node, ())
            for entry in json.loads(zlib.decompress(packed).decode("utf-8", "surrogatepass"))
        ]
        entries += self._open.get(node, ())
        held: dict[tuple[str, str], str] = {}
        for number, nodeid, when, text in entries:
            if number > self._void.get(nodeid, 0):
                held[nodeid, when] = text
        return [(nodeid, text) for (nodeid, _), text in held.items()]
