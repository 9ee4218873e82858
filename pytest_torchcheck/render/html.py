"""Reports as one self-contained HTML page: no script, no font, no picture from elsewhere.

The page follows the reader's light or dark scheme, prints, and says by words whatever it also says
by colour. It holds what the terminal holds, in the same order, with every measurement.
"""

from __future__ import annotations

from collections import Counter
from html import escape
from typing import TYPE_CHECKING

from ..findings import STATUSES
from ..text.wording import counted
from .evidence import Chain, Curve, Flame, Table, Timeline, blocks
from .source import diff, excerpt
from .terminal import followers
from .text import STATUS_WORDS, fields, headline, number, one_line
from .timeline import flame_svg, timeline_svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..findings import Finding, Report, Status, Verdict
    from .evidence import Block
from .source import Line

_STYLE = """
:root { color-scheme: light dark; --ink: #1c1e21; --soft: #5a6069; --paper: #fff; --card: #f5f6f8;
  --line: #d4d8dd; --bad: #b3261e; --warn: #8a5300; --good: #1b6e3c; --idle: #5a6069; --curve: #2457a8; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #a4abb5; --paper: #15171a;
  --card: #1f2226; --line: #3a3f46; --bad: #ff8a80; --warn: #f2b75c; --good: #7bd69a; --idle: #a4abb5;
  --curve: #8ab4f8; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 .25rem; padding-top: 1rem; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
h3 { font-size: 1.05rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h4 { font-size: .95rem; margin: 1.25rem 0 .25rem; }
p { margin: .25rem 0; }
.soft { color: var(--soft); }
a { color: var(--curve); }
a:focus-visible, summary:focus-visible, .scroll:focus-visible { outline: 3px solid var(--curve); outline-offset: 2px; }
.skip { position: absolute; left: -99rem; }
.skip:focus { left: 1rem; top: 1rem; background: var(--paper); padding: .5rem; }
code, pre, .mono { font-family: ui-monospace, "SF Mono", Consolas, "DejaVu Sans Mono", monospace; font-size: .9em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
article { background: var(--card); border: 1px solid var(--line); border-left: .35rem solid var(--mark, var(--idle));
  border-radius: .4rem; padding: .9rem 1.1rem; margin: 1rem 0; }
.violated, .error { --mark: var(--bad); } .suspicious { --mark: var(--warn); } .inconclusive { --mark: var(--idle); }
.passed { --mark: var(--good); } .not-applicable { --mark: var(--idle); }
.badge { display: inline-block; border: 1px solid currentColor; border-radius: 1rem; padding: 0 .6rem; font-size: .8rem;
  font-weight: 600; color: var(--mark, var(--idle)); white-space: nowrap; }
dl { display: grid; grid-template-columns: 6.5rem 1fr; gap: .3rem 1rem; margin: .5rem 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; white-space: pre-wrap; }
.scroll { overflow-x: auto; }
.source { background: var(--paper); border: 1px solid var(--line); border-radius: .3rem; padding: .5rem .75rem;
  margin: .5rem 0; white-space: pre; overflow-x: auto; overflow-wrap: normal; }
del, ins { text-decoration: none; display: inline-block; min-width: 100%; }
del { background: color-mix(in srgb, var(--bad) 18%, transparent); }
ins { background: color-mix(in srgb, var(--good) 18%, transparent); }
mark { background: color-mix(in srgb, var(--mark, var(--idle)) 18%, transparent); color: inherit; }
table { border-collapse: collapse; font-size: .9rem; margin: .25rem 0 .5rem; }
th, td { text-align: left; padding: .2rem .9rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.figure, th.figure { text-align: right; font-variant-numeric: tabular-nums; }
caption { text-align: left; color: var(--soft); padding-bottom: .2rem; }
details { margin: .75rem 0; } summary { cursor: pointer; }
ul, ol { margin: .25rem 0; padding-left: 1.4rem; } li { overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; } svg path { fill: none; stroke: var(--curve); stroke-width: 2; stroke-linecap: round; }
svg line { stroke: var(--line); } svg text { fill: var(--soft); font-size: 12px; } svg circle { fill: var(--bad); }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
@media print { body { max-width: none; } article { break-inside: avoid; } }
""".strip()


_MARKS: dict[str, Status] = {"ok": "passed", "nothing checked": "inconclusive"}
"""The status whose colour a verdict has, where they have not the same name."""


def _badge(said: Status | Verdict) -> str:
    mark, words = _MARKS.get(said, said), STATUS_WORDS.get(said, said)
    return f'<span class="badge {mark}">{escape(words)}</span>'


def _is_figure(texts: Iterable[str]) -> bool:
    """Say whether every cell that holds something begins as a number does."""
    held = [text for text in texts if text not in ("", "-")]
    return bool(held) and all(text[0].isdigit() or text[0] in "-+." for text in held)


def _table(table: Table) -> Iterator[str]:
    figures = [_is_figure(row[i] for row in table.rows) for i in range(len(table.columns))]
    kinds = [' class="figure"' if figure else "" for figure in figures]
    title = escape(table.title)
    yield f'<div class="scroll" tabindex="0" role="region" aria-label="{title}">'
    yield f"<table><caption>{title}</caption><thead><tr>"
    for kind, column in zip(kinds, table.columns, strict=True):
        yield f'<th scope="col"{kind}>{escape(column)}</th>'
    yield "</tr></thead><tbody>"
    for row in table.rows:
        cells = zip(kinds, row, strict=True)
        yield f"<tr>{''.join(f'<td{kind}>{escape(text)}</td>' for kind, text in cells)}</tr>"
    yield "</tbody></table></div>"


def _curve(curve: Curve) -> Iterator[str]:
    """Draw the values in 640 by 160 points; a value that is not finite becomes a dot at the top."""
    left, right, top, bottom = 70.0, 630.0, 12.0, 140.0
    finite = [v for v in curve.values if v == v and abs(v) != float("inf")]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    span = (high - low) or 1.0
    step = (right - left) / max(1, len(curve.values) - 1)
    path, dots, drawing = [], [], False
    for i, value in enumerate(curve.values):
        x = left + i * step
        if value != value or abs(value) == float("inf"):
            dots.append(
                f'<circle cx="{x:.1f}" cy="{top:.1f}" r="3"><title>step {i}: {value}</title></circle>'
            )
            drawing = False
            continue
        y = bottom - (value - low) / span * (bottom - top)
        # the short stroke makes a point between two gaps visible
        path.append(f"L{x:.1f} {y:.1f}" if drawing else f"M{x:.1f} {y:.1f}h.01")
        drawing = True
    steps = counted(len(curve.values), "step")
    said = f"{curve.title}: {number(float(curve.values[0]))} at first, {number(float(curve.values[-1]))} after {steps}"
    if dots:
        said += f", {len(dots)} not finite"
    yield f"<h4>{escape(curve.title)}</h4>"
    yield f'<svg viewBox="0 0 640 160" width="640" height="160" role="img" aria-label="{escape(said)}">'
    yield f'<line x1="{left}" y1="{bottom}" x2="{right}" y2="{bottom}"/>'
    yield f'<line x1="{left}" y1="{top}" x2="{left}" y2="{bottom}"/>'
    if path:
        yield f'<path d="{"".join(path)}"/>'
    yield "".join(dots)
    yield f'<text x="{left - 6}" y="{top + 8}" text-anchor="end">{number(float(high))}</text>'
    yield f'<text x="{left - 6}" y="{bottom}" text-anchor="end">{number(float(low))}</text>'
    yield f'<text x="{right}" y="{bottom + 16}" text-anchor="end">{steps}</text></svg>'
    yield f'<p class="soft">{escape(said)}</p>'


def _chain(chain: Chain) -> Iterator[str]:
    yield f"<h4>{escape(chain.title)}</h4><ol>"
    yield f"<li><code>{escape(chain.links[0])}</code></li>"
    yield from (f"<li>held by <code>{escape(link)}</code></li>" for link in chain.links[1:])
    yield "</ol>"


def _block(block: Block) -> Iterator[str]:
    match block:
        case Curve():
            yield from _curve(block)
        case Table():
            yield from _table(block)
        case Chain():
            yield from _chain(block)
        case Timeline():
            yield f"<h4>{escape(block.title)}</h4>"
            yield timeline_svg(block.data)
        case Flame():
            yield f"<h4>{escape(block.title)}</h4>"
            yield flame_svg(block.stacks)


_TRIED: dict[str, str] = {
    "passes": ", with which this finding is gone",
    "fails": ", with which this finding remains",
    "": ", which was not tried",
}


def _line(line: Line) -> str:
    """Return a line of source with its sign; what matters is marked by a sign as well as by colour."""
    text = f"{line.number:>4}  {escape(line.text)}"
    if line.sign:
        tag = "del" if line.sign == "-" else "ins"
        return f"<{tag}>{line.sign} {text}</{tag}>"
    return f"<mark>&gt; {text}</mark>" if line.here else f"  {text}"


def _source(finding: Finding) -> Iterator[str]:
    """Show the lines around the one that the finding names, and the suggested edit as a diff."""
    edit = finding.edit
    changed = diff(edit)
    place = finding.location
    same = changed and edit and place and (edit.file, edit.line) == (place.file, place.line)
    for label, lines in (("source", [] if same else excerpt(place)), ("suggested edit", changed)):
        if lines and edit and label != "source":
            yield f'<p class="soft">Suggested edit{_TRIED[edit.tried]}</p>'
        if lines:
            yield f'<pre class="source" tabindex="0" role="region" aria-label="{label}">'
            yield "\n".join(map(_line, lines)) + "</pre>"


def _ran_on(finding: Finding) -> str:
    return ", ".join(part for part in (finding.check, finding.device, finding.dtype) if part)


def _finding(finding: Finding, follow: Sequence[Finding] = ()) -> Iterator[str]:
    yield f'<article class="{finding.status}">'
    summary = one_line(finding.summary)
    code = f" <code>[{escape(finding.code)}]</code>" if finding.code else ""
    yield f"<h3>{_badge(finding.status)} {escape(summary)}{code}</h3>"
    yield f'<p class="soft">{escape(_ran_on(finding))}</p><dl>'
    for label, text in fields(finding):
        shown = escape(text.strip())
        if label in ("where", "again"):
            shown = f"<code>{shown}</code>"
        yield f"<dt>{label}</dt><dd>{shown}</dd>"
    yield "</dl>"
    yield from _source(finding)
    if follow:
        yield f"<p>{counted(len(follow), 'more finding')} of the same cause:</p><ul>"
        yield from (f"<li>{escape(_ran_on(f))}: {escape(headline(f))}</li>" for f in follow)
        yield "</ul>"
    measured = list(blocks(finding, verbosity=2))
    if measured:
        yield "<details><summary>Evidence</summary>"
        for block in measured:
            yield from _block(block)
        yield "</details>"
    yield "</article>"


def _reasons(findings: Sequence[Finding], heading: str) -> Iterator[str]:
    if not findings:
        return
    yield f"<details><summary>{heading} ({len(findings)})</summary><ul>"
    for finding in findings:
        yield f"<li><strong>{escape(_ran_on(finding))}</strong>: {escape(one_line(finding.summary))}"
        for block in blocks(finding.replace(culprits=()), verbosity=1):
            yield from _block(block)
        yield "</li>"
    yield "</ul></details>"


def _checks(report: Report) -> Table:
    """Return the counts by check and status, one row per check."""
    present = [status for status in STATUSES if any(report.with_status(status))]
    names = dict.fromkeys(finding.check or finding.code for finding in report.findings)
    rows = []
    for name in names:
        found = [f.status for f in report.findings if (f.check or f.code) == name]
        rows.append((name, *(str(found.count(status) or "") for status in present)))
    return Table(
        title="findings by check",
        columns=("check", *(STATUS_WORDS[status] for status in present)),
        rows=tuple(rows),
    )


def _report(report: Report, anchor: str) -> Iterator[str]:
    name = escape(report.contract or "contract")
    yield f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{name} '
    yield f"{_badge(report.verdict)}</h2>"
    counts = report.counts()
    told = [f"{counts[status]} {STATUS_WORDS[status]}" for status in STATUSES if counts[status]]
    if report.verdict == "violated":
        told.insert(0, counted(len(report.causes), "cause"))
    seconds = f" in {report.seconds:.1f} s" if report.seconds else ""
    yield f'<p class="soft">{", ".join(told) or "no check ran"}{seconds}</p>'
    for cause, follow in followers(report.findings):
        yield from _finding(cause, follow)
    acting = (*report.with_status("violated"), *report.with_status("suspicious"))
    keys = {finding.key for finding in acting if finding.root is None}
    for finding in acting:
        if finding.root is not None and finding.root not in keys:
            yield from _finding(finding)
    for finding in report.with_status("error"):
        yield from _finding(finding)
    for finding, follow in followers(report.findings, "suspicious"):
        yield from _finding(finding, follow)
    yield from _reasons(
        list(report.with_status("inconclusive")), "Inconclusive: these could not have failed"
    )
    yield from _reasons(list(report.with_status("known")), "Known, and accepted for now")
    yield from _reasons(list(report.with_status("passed")), "Passed, and what was measured")
    yield from _reasons(list(report.with_status("not-applicable")), "Not applicable")
    if report.findings:
        yield "<details><summary>All checks</summary>"
        yield from _table(_checks(report))
        yield "</details>"
    if report.environment:
        rows = tuple((key, str(value)) for key, value in report.environment.items())
        yield "<details><summary>Environment</summary>"
        yield from _table(Table(title="environment", columns=("name", "value"), rows=rows))
        yield "</details>"
    yield "</section>"


def _overview(reports: Sequence[Report]) -> Iterator[str]:
    yield '<div class="scroll" tabindex="0" role="region" aria-label="contracts">'
    yield '<table><caption>contracts</caption><thead><tr><th scope="col">contract</th>'
    yield '<th scope="col">verdict</th><th scope="col" class="figure">causes</th>'
    yield "".join(f'<th scope="col" class="figure">{STATUS_WORDS[s]}</th>' for s in STATUSES)
    yield '<th scope="col">first cause</th></tr></thead><tbody>'
    for place, report in enumerate(reports):
        counts = report.counts()
        causes = report.causes
        first = next((escape(headline(one)) for one in (*causes, *report.with_status("error"))), "")
        cells = "".join(f'<td class="figure">{counts[status]}</td>' for status in STATUSES)
        badge = _badge(report.verdict)
        name = escape(report.contract or "contract")
        yield f'<tr><th scope="row"><a href="#contract-{place}">{name}</a></th><td>{badge}</td>'
        yield f'<td class="figure">{len(causes)}</td>{cells}<td>{first}</td></tr>'
    yield "</tbody></table></div>"


def render_html(
    reports: Iterable[Report],
    *,
    title: str = "torchcheck report",
    tables: Iterable[Table] = (),
) -> str:
    """Lay out reports as one page.

    Args:
        reports: One per contract, in the order in which they are to stand.
        title: Heading of the page and title of the window.
        tables: What concerns the whole run, below the list of contracts.

    Returns:
        A whole HTML document that loads nothing, to be written as UTF-8.
    """
    reports = list(reports)
    verdicts = Counter(report.verdict for report in reports)
    causes = sum(len(report.causes) for report in reports)
    broken = f"{verdicts['violated']} violated by {counted(causes, 'cause')}" if causes else ""
    told = [
        counted(len(reports), "contract"),
        broken or "none violated",
        *(f"{verdicts[one]} {one}" for one in ("error", "nothing checked") if verdicts[one]),
    ]
    verdict = ", ".join(told)
    lines = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}: {verdict}</title><style>\n{_STYLE}\n</style></head><body>",
        '<a class="skip" href="#main">Skip to the contracts</a>',
        f'<header><h1>{escape(title)}</h1><p>{verdict}</p></header><main id="main">',
        *_overview(reports),
    ]
    for table in tables:
        lines += _table(table)
    for place, report in enumerate(reports):
        lines += _report(report, f"contract-{place}")
    lines.append("</main></body></html>\n")
    return "\n".join(lines)
