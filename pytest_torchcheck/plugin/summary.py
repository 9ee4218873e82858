"""The lines at the end of a run: what every contract came to, and how many of its items failed."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

from ..lean import dataclass
from ..render.terminal import followers, render_measured
from ..render.text import headline, one_line, place, stale_lines

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ..findings import Finding, Report, Status, Verdict

Lines = list[tuple[str, dict[str, bool]]]
_MOST_LISTED: Final = 20  # contracts that hold are listed one by one up to so many
_HOLDING: Final = ("ok", "unchanged")
_LATER: Final = (
    "nothing checked",
    *_HOLDING,
)  # what is told after all that is broken, in this order
_WORST: Final = ("violated", "error", "failed", "nothing checked", "unchanged", "ok")


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """What pytest counts of one contract.

    Attributes:
        passed, failed, skipped: How many of its items ended so.
        errors: How many had an error in their setup or teardown; of the latter the call counts too, as in pytest.
        items: How many there are.
        whole: Whether every check of the contract ran, none of them left out by a selection.
        told: Findings of failed items that are not violated, such as suspicions under strict.
    """

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    errors: int = 0
    items: int = 0
    whole: bool = False
    told: tuple[Finding, ...] = ()


def standing(report: Report, tally: Tally | None) -> Literal[Verdict, "failed", "unchanged"]:
    """Return what a contract came to: what its findings say, but never ok where pytest has a failed item.

    It is unchanged where none of its checks ran, since all of them held before and nothing has changed.
    """
    if report.findings and all(finding.code == "unchanged" for finding in report.findings):
        return "unchanged"
    if (
        tally is not None
        and (tally.failed or tally.errors)
        and report.verdict in ("ok", "nothing checked")
    ):
        return "failed"
    return report.verdict


def is_red(report: Report, tally: Tally | None) -> bool:
    """Say whether a contract fails the run.

    One whose checks all ran, and of which none reached a verdict, does: a check that was selected
    alone and could not decide anything is only a skip, as everywhere in pytest.
    """
    stands = standing(report, tally)
    if stands == "nothing checked":
        return tally is not None and tally.whole
    return stands not in ("ok", "unchanged")


def summary(
    reports: Iterable[tuple[str, Report]],
    tallies: Mapping[str, Tally] | None = None,
    *,
    verbosity: int = 0,
    gone: int = 0,
) -> Lines:
    """Return the lines of the terminal summary with their markup: what is broken first, then what holds.

    Args:
        reports: One for each contract, by its node id.
        tallies: What pytest counts of each.
        verbosity: pytest's.
        gone: How many known findings are gone, so that the run fails.
    """
    tallies = tallies or {}
    verdicts: Counter[str] = Counter()
    told: dict[str, list[Lines]] = {}
    sizes: list[tuple[int, float]] = []  # checks and seconds of each
    for node, report in reports:
        stands = standing(report, tallies.get(node))
        verdicts[stands] += 1
        each = _told(node, report, tallies.get(node), stands, verbosity)
        told.setdefault(stands if stands in _LATER else "", []).append(each)
        checks = {(f.check, f.device, f.dtype) for f in report.findings}
        sizes.append((len(checks), report.seconds))
    lines: Lines = []
    for kind in ("", *_LATER):
        group = told.get(kind, [])
        if kind not in _HOLDING or verbosity > 0 or len(group) <= _MOST_LISTED:
            lines += [line for each in group for line in each]
    total = _total(verdicts, sizes, tallies)
    if gone:
        total += f"; {stale_lines(gone)}"
    lines.append((total, {"bold": True} | ({"red": True} if gone else {})))
    return lines


def _told(node: str, report: Report, tally: Tally | None, stands: str, verbosity: int) -> Lines:
    """Return the lines of one contract, the first of them with its counts."""
    head, more = f"{node}: {stands}: {_counts(report)}", []
    if stands == "nothing checked":
        color, more = "red" if is_red(report, tally) else "yellow", list(_undecided(report))
    elif stands == "unchanged":
        color = "yellow"
    elif stands == "ok":
        color = "yellow" if any(report.with_status("suspicious", "inconclusive")) else "green"
        more = list(render_measured(report)) if verbosity > 1 else []
    else:
        color, more = "red", _reasons(report, tally)
    return [(head, {color: True}), *((f"  {text}".rstrip(), {}) for text in more)]


def slowest(spent: Mapping[str, tuple[float, float | None]], most: int) -> list[str]:
    """Return a line for each of the slowest checks: seconds, plain training steps, and the item.

    Args:
        spent: By node id: how long the check took, and how long a plain step of its model takes, in
            seconds.
        most: How many.
    """
    chosen = sorted(spent.items(), key=lambda item: -item[1][0])[:most]
    if not chosen:
        return []
    lines = ["slowest checks: seconds, plain training steps, item"]
    for nodeid, (seconds, step) in chosen:
        steps = f"{seconds / step:8.1f}" if step else "       ?"
        lines.append(f"  {seconds:8.3f} {steps}  {nodeid}")
    return lines


def _total(
    verdicts: Mapping[str, int], sizes: Sequence[tuple[int, float]], tallies: Mapping[str, Tally]
) -> str:
    parts = [
        f"{verdicts.get(one, 0)} {one}"
        for one in _WORST
        if one in ("violated", "ok") or verdicts.get(one)
    ]
    checks = sum(size for size, _ in sizes)
    told = _count(checks, "check")
    if tallies:
        made = {
            name: sum(getattr(tally, name) for tally in tallies.values())
            for name in ("failed", "passed", "skipped", "errors")
        }
        words = {name: name for name in made} | {"errors": "error" + "s" * (made["errors"] != 1)}
        each = ", ".join(f"{number} {words[name]}" for name, number in made.items() if number)
        told = f"{_count(sum(tally.items for tally in tallies.values()), 'check')} ({each})"
    seconds = sum(spent for _, spent in sizes)
    return f"{_count(len(sizes), 'contract')}: {', '.join(parts)}; {told} in {seconds:.1f} s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _counts(report: Report) -> str:
    counts = report.counts()
    items: dict[tuple[str, str, str], set[str]] = {}
    for f in report.findings:
        items.setdefault((f.check, f.device, f.dtype), set()).add(f.status)
    # pytest counts items: what a check says beside its verdict is no further one
    counts["passed"] = sum("passed" in s <= {"passed", "not-applicable"} for s in items.values())
    counts["not-applicable"] = sum(s == {"not-applicable"} for s in items.values())
    unchanged = sum(finding.code == "unchanged" for finding in report.findings)
    counts["inconclusive"] -= unchanged
    causes = len(report.causes)
    parts = [_count(causes, "cause")] if causes else []
    if counts["violated"] > causes:
        more = counts["violated"] - causes
        parts.append(f"{more} that follow{'s' * (more == 1)}")
    if counts["error"]:
        parts.append(_count(counts["error"], "error"))
    rest: tuple[Status, ...] = ("suspicious", "inconclusive", "known", "passed", "not-applicable")
    parts += [f"{counts[one]} {one.replace('-', ' ')}" for one in rest if counts[one]]
    if unchanged:
        parts.append(f"{unchanged} unchanged and not run")
    return ", ".join(parts) or "no check ran"


def _reasons(report: Report, tally: Tally | None) -> list[str]:
    """Return a line for each cause and error, and for what fails an item though it is no violation."""
    lines = []
    for cause, follow in followers(report.findings):
        at = f" ({place(cause.location)})" if cause.location is not None else ""
        lines.append(f"{headline(cause)}{at}")
        if follow:
            lines.append(
                f"  also failing for it: {', '.join(dict.fromkeys(one.check for one in follow))}"
            )
    known = {cause.key for cause in report.causes}
    lines += [
        f"{headline(one)} (follows from {one.root})"
        for one in report.with_status("violated")
        if one.root is not None and one.root not in known
    ]
    lines += [headline(one) for one in report.with_status("error")]
    return lines + [headline(one) for one in (() if tally is None else tally.told)]


def _undecided(report: Report) -> Iterable[str]:
    """Return each reason for which a check reached no verdict once, with the checks that give it."""
    checks: dict[str, list[str]] = {}
    for finding in report.findings:
        checks.setdefault(one_line(finding.summary), []).append(finding.check)
    for reason, names in checks.items():
        few = list(dict.fromkeys(names))
        more = f" and {len(few) - 3} more" if len(few) > 3 else ""
        yield f"{', '.join(few[:3])}{more}: {reason}"
