"""Findings as SARIF 2.1.0: what code scanning shows beside the lines of a change.

Source:
    OASIS, *Static Analysis Results Interchange Format Version 2.1.0*; what GitHub reads of it is in its
    "SARIF support for code scanning".
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ..catalogue import catalogue
from ..storage.baseline import known_of
from .terminal import render_finding
from .text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from ..findings import Edit, Finding, Location, Report, Status

SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_ROOT: Final = "SRCROOT"
_LEVELS: Final[Mapping[Status, str]] = {
    "violated": "error",
    "error": "error",
    "suspicious": "warning",
    "known": "warning",
}
"""The statuses that are told, and how serious each is; a known finding is told as a suppressed one."""


def sarif(reports: Iterable[tuple[str, Report]], *, root: Path, version: str) -> dict[str, Any]:
    """Return a SARIF log of one run: a result for each cause, error, suspicion and known finding.

    Findings that follow from another one are left out, as in the terminal's summary.

    Args:
        reports: Node id of each contract, such as ``tests/test_models.py::net``, and its report.
        root: Absolute path that the files of the log are relative to.
        version: That of pytest-torchcheck.
    """
    results: list[dict[str, Any]] = []
    rules: dict[str, dict[str, Any]] = {}
    for node, report in reports:
        for finding in _told(report):
            rules.setdefault(finding.key, _rule(finding))
            result = _result(node, finding, root)
            result["ruleIndex"] = list(rules).index(finding.key)
            results.append(result)
    driver = {"name": "pytest-torchcheck", "version": version, "rules": list(rules.values())}
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"uri": f"{root.as_uri()}/"}},
        "results": results,
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _told(report: Report) -> Iterator[Finding]:
    return (
        finding
        for finding in report.findings
        if finding.status in _LEVELS and (finding.root is None or finding.status == "error")
    )


def _rule(finding: Finding) -> dict[str, Any]:
    check = catalogue().get(finding.check)
    promised = check.summary if check is not None else finding.check
    explained = f"python -m pytest_torchcheck explain {finding.code or finding.check}"
    return {
        "id": finding.key,
        "name": finding.code or finding.check,
        "shortDescription": {"text": promised},
        "fullDescription": {"text": f"{promised.rstrip('.')}."},
        "help": {"text": f"Explained, with an example, by: {explained}"},
    }


def _result(node: str, finding: Finding, root: Path) -> dict[str, Any]:
    result: dict[str, Any] = {
        "ruleId": finding.key,
        "level": _LEVELS[finding.status],
        "message": {"text": render_finding(finding)},
        "locations": [
            {
                "physicalLocation": _physical(_place(finding), node, root),
                "logicalLocations": [{"fullyQualifiedName": node, "kind": "object"}],
            }
        ],
        "partialFingerprints": {"torchcheck/v1": str(known_of(node, finding))},
        "properties": {"device": finding.device, "dtype": finding.dtype},
    }
    related = [
        {
            "physicalLocation": _physical(culprit.location, node, root),
            "message": {"text": one_line(f"{culprit.kind} {culprit.name} {culprit.detail}")},
        }
        for culprit in finding.culprits
        if culprit.location is not None and culprit.location != finding.location
    ]
    if related:
        result["relatedLocations"] = related
    if (edit := finding.edit) is not None and edit.old != edit.new:
        result["fixes"] = [_fix(finding.fix, edit, root)]
    if finding.status == "known":
        result["suppressions"] = [
            {"kind": "external", "justification": "in the project's file of known findings"}
        ]
    return result


def _fix(words: str, edit: Edit, root: Path) -> dict[str, Any]:
    """Return the suggested edit as the replacement of one line."""
    region = {"startLine": edit.line, "startColumn": 1, "endColumn": len(edit.old) + 1}
    change = {"deletedRegion": region, "insertedContent": {"text": edit.new}}
    artifact = {"artifactLocation": _artifact(edit.file, root), "replacements": [change]}
    return {"description": {"text": one_line(words)}, "artifactChanges": [artifact]}


def _place(finding: Finding) -> Location | None:
    if finding.location is not None:
        return finding.location
    return next((c.location for c in finding.culprits if c.location is not None), None)


def _physical(place: Location | None, node: str, root: Path) -> dict[str, Any]:
    """Return a line of the user's code; the test file where none is known, since code scanning needs a place."""
    file, line = (node.partition("::")[0], 1) if place is None else (place.file, place.line)
    region: dict[str, Any] = {"startLine": max(1, line)}
    if place is not None and place.text:
        region["snippet"] = {"text": place.text}
    return {"artifactLocation": _artifact(file, root), "region": region}


def _artifact(file: str, root: Path) -> dict[str, str]:
    path = Path(os.path.normpath(root / file))
    if path.is_relative_to(root):
        return {"uri": quote(path.relative_to(root).as_posix()), "uriBaseId": _ROOT}
    return {"uri": path.as_uri()}
