"""Findings that a project knows of already.

One line each, sorted, in a file that people read and merge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..lean import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..findings import Finding

HEAD: Final = (
    "# Known findings: contract | check | code | culprits. A known one does not fail its check,\n"
    "# a new one does, and the line of one that is gone must be removed.\n"
    "# Written by --torchcheck-write-baseline.\n"
)
FORM: Final = "contract | check | code | culprits"
_SEPARATOR: Final = " | "
_MOST: Final = 3


class BaselineError(ValueError):
    """A file of known findings cannot be read; the message names the line and what is allowed."""


@dataclass(frozen=True, slots=True, order=True)
class Known:
    """One known finding.

    Attributes:
        contract: Node id of the contract, such as ``tests/test_models.py::net``.
        check: Name of the check, followed by ``@cuda`` where it was found on such devices only.
        code: The symptom.
        culprits: Names of what is at fault, sorted; ``-`` where nothing is named.
    """

    contract: str
    check: str
    code: str
    culprits: str

    def __str__(self) -> str:
        return _SEPARATOR.join((self.contract, self.check, self.code, self.culprits))


def known_of(node: str, finding: Finding) -> Known:
    """Return what is recorded of a finding.

    It holds no line, no number, nothing that an edit elsewhere changes.
    """
    names = sorted({_plain(culprit.name) for culprit in finding.culprits if culprit.name})
    shown = ", ".join(names[:_MOST]) or "-"
    if len(names) > _MOST:
        shown += f" and {len(names) - _MOST} more"
    return Known(node, f"{finding.check}{_device(finding.device)}", finding.code, shown)


def _plain(name: str) -> str:
    return " ".join(name.replace("|", "/").split())


def _device(device: str) -> str:
    kind = device.partition(":")[0]
    return "" if kind in ("", "cpu") else f"@{kind}"


def parse(text: str, name: str) -> dict[Known, int]:
    """Read known findings with the number of their line.

    Args:
        text: The file's text; blank lines and those that begin with ``#`` say nothing.
        name: The file's name, for errors.

    Raises:
        BaselineError: A line has another form.
    """
    found: dict[Known, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        parts = line.strip().rsplit(_SEPARATOR, 3)
        if line.startswith(("<<<<<<<", "=======", ">>>>>>>")):
            raise BaselineError(f"{name}:{number}: a merge conflict; keep the lines of both sides")
        if len(parts) != 4 or not all(part.strip() for part in parts):
            raise BaselineError(f"{name}:{number}: {line!r} must be of the form {FORM!r}")
        found.setdefault(Known(*(part.strip() for part in parts)), number)
    return found


def render(entries: Iterable[Known]) -> str:
    """Return the text of a file with these findings, sorted.

    A finding on ``@cuda`` is left out where the same is known on every device.
    """
    unique = set(entries)
    general = {entry for entry in unique if "@" not in entry.check}
    kept = {
        entry
        for entry in unique
        if entry in general
        or Known(entry.contract, entry.check.partition("@")[0], entry.code, entry.culprits)
        not in general
    }
    return HEAD + "".join(f"{entry}\n" for entry in sorted(kept))


def matches(entries: Mapping[Known, int], wanted: Known, *, selected: Iterable[str] = ()) -> bool:
    """Say whether a finding is known.

    Args:
        entries: The known ones.
        wanted: The finding.
        selected: The checks of its contract that run in this session: what a check that was left
            out would have reported first, another one reports in its place.
    """
    general = wanted.check.partition("@")[0]
    present = set(selected)
    for entry in entries:
        if (entry.contract, entry.code, entry.culprits) != (
            wanted.contract, wanted.code, wanted.culprits,
        ):  # fmt: skip
            continue
        if entry.check in (wanted.check, general):
            return True
        if present and entry.check.partition("@")[0] not in present:
            return True
    return False
