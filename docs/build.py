"""Write the generated parts of README and docs from the registry and from real runs.

``python docs/build.py`` rewrites what stands between ``<!-- NAME -->`` and ``<!-- /NAME -->``; with ``--check`` it
writes nothing and fails where something differs. A test runs the check.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
GALLERY = ROOT / "tests" / "gallery"
PAGES = ROOT / "pytest_torchcheck" / "cli" / "pages.json"
ALWAYS = {"model", "loss", "targets", "overfit"}


def table_of_checks() -> str:
    """Every check, in the order in which they run: what it promises, when it applies, what it costs."""
    from pytest_torchcheck.catalogue import catalogue
    from pytest_torchcheck.catalogue.check import NAMED

    rows = ["| check | holds that | applies where | cost |", "| --- | --- | --- | --- |"]
    for check in catalogue().values():
        needs = [need for need in check.needs if need != "model"]
        where = ", ".join(NAMED.get(need, f"`{need}`") for need in needs)
        if check.promise:
            where = f"{where}, `{check.promise}`" if where else f"`{check.promise}`"
        if check.devices:
            where = f"{where}, {'/'.join(check.devices)}" if where else "/".join(check.devices)
        rows.append(
            f"| [`{check.name}`]({check.name}.md) | {check.summary.rstrip('.')} "
            f"| {where or 'always'} | {check.cost} |"
        )
    return "\n".join(rows)


def table_of_options() -> str:
    """Every setting, as the command line, the environment and the ini file write it."""
    from pytest_torchcheck.plugin.settings import SETTINGS

    rows = ["| command line, and key in the ini file | means |", "| --- | --- |"]
    for one in SETTINGS:
        value = f" {one.metavar}" if one.metavar else ""
        flag = f"`{one.flag}{value}`".replace("|", "\\|") if one.flag else ""
        env = f"; environment `{one.env}`" if one.env else ""
        ini = f"`{one.ini}`" if one.ini else ""
        rows.append(
            f"| {'<br>'.join(filter(None, (flag, ini)))} | {one.help.replace('|', chr(92) + '|')}{env} |"
        )
    return "\n".join(rows)


def list_of_markers() -> str:
    """Every marker, with its signature."""
    from pytest_torchcheck.plugin.marker_help import MARKERS

    lines = []
    for marker in MARKERS:
        signature, _, text = marker.partition("): ")
        lines.append(f"- `@pytest.mark.{signature})`: {text}.")
    return "\n".join(lines)


def pages_of_checks() -> dict[str, str]:
    """The generated parts of every check's page: head, how it works, when it does not apply."""
    import inspect

    from pytest_torchcheck.catalogue import catalogue
    from pytest_torchcheck.catalogue.check import NAMED

    axes = {
        "device-dtype": "one item for each device and full-precision dtype",
        "low-precision": "one item for each device and declared half-precision dtype",
        "device": "one item for each device",
        "once": "one item",
    }
    made = {}
    for check in catalogue().values():
        needs = [NAMED.get(need, f"`{need}`") for need in check.needs if need != "model"]
        if check.promise:
            needs.append(f"`promises.{check.promise}`")
        where = f"the contract declares {', '.join(needs)}" if needs else "the contract has a model"
        made[f"{check.name}:head"] = (
            f"{check.summary}\n\n- Runs where {where}; {axes[check.axes]}.\n- Costs {check.cost}."
        )
        made[f"{check.name}:how"] = inspect.getdoc(check.function) or ""
        otherwise = f"Not where {where.replace('declares', 'does not declare').replace('has a', 'has no')}. "
        stale = "a skip that is no longer needed fails" if check.tries_skip else "nothing runs then"
        made[f"{check.name}:optout"] = (
            f'{otherwise}To opt out, say why: `skip={{"{check.name}": "reason"}}`; {stale}.'
        )
    return made


def gallery() -> dict[str, str]:
    """The page of the gallery, and the list of each check's findings on the check's own page."""
    import ast
    import difflib

    from pytest_torchcheck.catalogue import catalogue

    shown: dict[str, list[str]] = {name: [] for name in catalogue()}
    links: dict[str, list[str]] = {name: [] for name in catalogue()}
    for folder in sorted(path.parent for path in GALLERY.glob("*/expected.txt")):
        text = (folder / "expected.txt").read_text(encoding="utf-8").rstrip()
        bug, fixed = (
            (folder / name).read_text(encoding="utf-8").splitlines()
            for name in ("bug.py", "fixed.py")
        )
        check = re.search(r'check\(\["([\w-]+)"\]\)$', text)
        if check is None:
            raise SystemExit(f"{folder.name}: no check in its last line")
        diff = [
            line
            for line in difflib.unified_diff(bug, fixed, lineterm="", n=0)
            if not line.startswith(("---", "+++", "@@"))
        ]
        what = ast.get_docstring(ast.parse("\n".join(bug))) or ""
        source = f"../tests/gallery/{folder.name}/bug.py"
        shown[check[1]].append(
            f"### {folder.name}\n\n{what} ([the program]({source}))\n\n"
            f"```text\n{text}\n```\n\nMended:\n\n```diff\n" + "\n".join(diff) + "\n```"
        )
        said = re.sub(r" \[[\w-]+\]$", "", text.splitlines()[0])
        links[check[1]].append(f"- [`{folder.name}`](../gallery.md#{folder.name}): {said}")
    made = {
        "gallery": "\n\n".join(
            f"## {name}\n\n[What it checks](checks/{name}.md).\n\n" + "\n\n".join(entries)
            for name, entries in shown.items()
            if entries
        )
    }
    for name, lines in links.items():
        made[f"{name}:says"] = "\n".join(lines) or (
            "Its failures need more than one small program in one process; "
            "they have tests instead of entries in the [gallery](../gallery.md)."
        )
    return made


def first_failure() -> str:
    """What pytest prints of the README's first block, the failure alone."""
    (code,) = re.findall(
        r'^```python title="test_models.py"\n(.*?)^```$', README.read_text("utf-8"), re.S | re.M
    )
    command = [
        sys.executable, "-m", "pytest", "--torchcheck", "test_models.py", "-q", "-p", "no:cacheprovider", "-p", "no:xdist",
        "--color=no", "--no-header",
    ]  # fmt: skip
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "110",
        "PYTHONPATH": str(ROOT),
        "CI": "",
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "test_models.py").write_text(code, encoding="utf-8")
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    found = re.search(r"^_+ (\S+) _+\n(.*?)(?=^_+ |^=+|\Z)", done.stdout, re.S | re.M)
    if found is None:
        raise SystemExit(f"the README's first block did not fail:\n{done.stdout}\n{done.stderr}")
    return "```text\n" + found.group(2).rstrip() + "\n```"


def parts() -> dict[str, str]:
    """Every generated part by its name."""
    return {
        **pages_of_checks(),
        **gallery(),
        "checks": table_of_checks(),
        "options": table_of_options(),
        "markers": list_of_markers(),
        "first": first_failure(),
    }


def installed_pages(made: dict[str, str]) -> str:
    """What ``explain`` prints from an installed package: the page of every code and of every check, as JSON."""
    import json

    codes = {}
    for entry in re.split(r"^### ", "\n" + made["gallery"], flags=re.M)[1:]:
        name, _, body = entry.partition("\n")
        body = re.split(r"^## ", body, flags=re.M)[0]
        codes[name] = f"{name}\n\n{re.sub(r' ?[(].the program.[(].*?[)][)]', '', body).strip()}"
    for name, said in said_of_codes().items():
        codes.setdefault(name, f"{name}\n\n{said}")
    checks = {}
    for path in sorted((ROOT / "docs" / "checks").glob("*.md")):
        if path.stem == "index":
            continue
        text = fill(path.read_text(encoding="utf-8"), made)
        text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.S)
        text = re.sub(r"\[(`[^`]*`)\]\([^)]*\)", r"\1", text)
        checks[path.stem] = re.sub(r"\[([^\]]*)\]\((?!https)[^)]*\)", r"\1", text).strip()
    return json.dumps({"checks": checks, "codes": codes}, indent=1, sort_keys=True) + "\n"


_VERDICTS = {
    "violated": "A finding of the status violated:",
    "suspicious": "A finding of the status suspicious:",
    "inconclusive": "The check could not decide:",
}
_WORDS = r"[a-z][a-z0-9]*(-[a-z0-9]+)+"


def said_of_codes() -> dict[str, str]:
    """What is said of each code, from the calls that give it: the code of those that no program of the gallery shows."""
    import ast

    found: dict[str, str] = {}
    for path in sorted((ROOT / "pytest_torchcheck").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            verdict = getattr(node.func, "attr", getattr(node.func, "id", ""))
            named = {keyword.arg: keyword.value for keyword in node.keywords}
            first = list(node.args)
            code = named.get("code") or (first.pop(0) if verdict in _VERDICTS and first else None)
            summary = named.get("summary") or next(iter(first), None)
            text = "" if summary is None else _template(summary)
            for each in ast.walk(code) if code is not None else ():
                value = getattr(each, "value", None)
                if isinstance(value, str) and re.fullmatch(_WORDS, value):
                    status = getattr(named.get("status"), "value", verdict)
                    start = _VERDICTS.get(status, "A finding:")
                    known = found.get(value, "")
                    found[value] = max(known, f"{start} {text}." if text else "", key=len)
    more = "It has no example here: what was measured, the cause and the fix are in the finding itself."
    return {code: f"{said}\n\n{more}".strip() for code, said in found.items()}


def _template(node: object) -> str:
    """The words of a string, with an ellipsis for what each finding fills in; empty where there are too few."""
    import ast

    while isinstance(node, ast.IfExp | ast.Subscript):
        node = node.body if isinstance(node, ast.IfExp) else node.value
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    words = "".join(
        part.value if isinstance(part, ast.Constant) and isinstance(part.value, str) else "…"
        for part in parts
    )
    text = re.sub(r"…(?:[\s,]*…)+", "…", words)
    return text if len(re.findall(r"\w+", text)) > 2 else ""


def fill(text: str, made: dict[str, str]) -> str:
    """Return the text with its generated parts replaced."""
    for name, part in made.items():
        start, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        if start in text:
            before, _, rest = text.partition(start)
            _, _, after = rest.partition(end)
            text = f"{before}{start}{part}\n{end}{after}"
    return text


def main() -> int:
    """Rewrite, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    made = parts()
    stale = []
    pages = installed_pages(made)
    if not PAGES.exists() or PAGES.read_text(encoding="utf-8") != pages:
        stale.append(PAGES.relative_to(ROOT).as_posix())
        if not arguments.check:
            PAGES.write_text(pages, encoding="utf-8")
    for path in (README, *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        new = fill(text, made)
        if new != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not arguments.check:
                path.write_text(new, encoding="utf-8")
    if stale and arguments.check:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run python docs/build.py\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
