"""The golden texts read well, and every code has one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from gallery import ENTRIES, HERE

import pytest_torchcheck

# where a bug cannot be shown by a small program in one process on a CPU, or where another entry shows the
# same text: the code, and what holds it instead
ELSEWHERE = {
    **dict.fromkeys(
        ("outputs-changed", "state-changed", "initial-weights-changed", "cost-changed", "change-absent"),
        "tests/unit/change: a change needs two versions of a program",
    ),
    "old-checkpoint-unreadable": "tests/unit/checks/test_old_checkpoints.py: it concerns a file, no program",
    "record-unreadable": "tests/unit/change/test_records.py: it concerns a file, no program",
    "too-slow": "tests/unit/checks/test_speed.py: its text holds times",
    **dict.fromkeys(
        ("worker-raises", "worker-hangs", "worker-dies", "worker-died", "worker-error", "worker-collate", "worker-differs",
         "worker-cannot-unpickle", "main-guard", "augmentation-duplicated", "collate-sizes", "collate-type",
         "sample-range", "label-shifted"),
        "tests/unit/data, with workers; the messages in tests/unit/diagnosis",
    ),
    **dict.fromkeys(
        ("cuda-forked", "cuda-library", "device-assert", "device-pair", "meta-no-data", "meta-mixed", "context-lost", "not-run"),
        "needs a GPU; the messages in tests/unit/diagnosis",
    ),
    **dict.fromkeys(
        ("device-differs", "device-sync", "stream-differs", "graph-stale", "graph-not-captured"),
        "tests/unit/checks/test_cuda_checks.py, on a simulated device",
    ),
    **dict.fromkeys(
        ("gradcheck-module", "gradcheck-not-finite", "function-unchecked", "surrogate-unknown", "not-differentiable"),
        "tests/unit/functions",
    ),
    **dict.fromkeys(
        (
            "accumulation-differs",
            "batch-coupled",
            "batch-not-collatable",
            "buffer-drift",
            "gradient-sum",
            "gradients-differ",
            "late-parameter",
            "loss-coupled",
            "loss-sum",
            "not-broadcast",
            "parameter-late",
            "parameters-differ",
            "rank-dependent-init",
            "rank-raised",
            "same-noise",
            "step-differs",
            "unseeded-init",
            "unused-parameter",
            "set-epoch-missing",
            "data-not-shared",
            "uneven-last-batch",
            "uneven-batches",
            "state-dict-prefix",
            "checkpoint-lost",
            "tie-split",
            "not-sharded",
            "nothing-sharded",
            "fsdp-differs",
            "sharded-state",
            "meta-left",
            "meta-not-restored",
            "statistics-differ",
            "wrapper-hides-attribute",
        ),
        "tests/unit/ranks, with a process for each rank",
    ),
}  # fmt: skip


@pytest.mark.parametrize("code", ENTRIES)
def test_text_reads_well(code):
    """The cause by its name, a fact without hedges, one edit, one command, at most twelve lines."""
    text = (HERE / code / "expected.txt").read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= 12
    assert lines[0].endswith(f"[{code}]")
    labels = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    assert labels == ["where", "observed", "cause", "because", "fix", "again"]
    assert len(lines[0]) <= 200, lines[0]
    because = text.split("because ", 1)[1].split("\nfix ", 1)[0]
    assert not re.search(r"\b(likely|maybe|perhaps|probably|seems?)\b", because), because


SINGULAR = {
    "axis",
    "batches",
    "behaves",
    "bias",
    "class",
    "does",
    "gives",
    "has",
    "is",
    "less",
    "loss",
    "pass",
    "this",
    "times",
    "was",
}
"""Words that may stand behind a 1 although they end in an s."""


def fields_of(code):
    """Return what stands behind each label of a golden text, on one line."""
    text = (HERE / code / "expected.txt").read_text(encoding="utf-8")
    parts = re.split(r"^(where|observed|cause|because|fix|again) +", text, flags=re.MULTILINE)
    named = dict(zip(parts[1::2], parts[2::2], strict=True))
    return {"summary": parts[0], **named} | {k: " ".join(v.split()) for k, v in named.items()}


@pytest.mark.parametrize("code", ENTRIES)
def test_text_is_plain_english(code):
    """Numbers agree with their nouns, nothing is cut within a word, nothing is said twice."""
    told = fields_of(code)
    whole = "\n".join(told.values())
    assert not re.search(r"[^\x20-\x7e\n\u2026\u00b7\u00b2\u00b3]", whole), (
        "an escape, or another script"
    )
    assert not [
        w
        for w in re.findall(
            r"(?<!of )(?<![\d.,/\[(x*+-] )(?<![\w.,/\[(*+=-])1 ([a-z]{2,}s)\b", whole
        )
        if w not in SINGULAR
    ]
    quoted = re.findall(r'said "(.+?)"', told["because"])
    for words in quoted:
        assert words.rstrip(".") not in told["observed"], "observed repeats what because quotes"
    assert told["because"] != told["observed"]
    assert told["cause"] != told["summary"]


@pytest.mark.parametrize("code", ENTRIES)
def test_the_fix_is_an_edit(code):
    """It says what to change, not where to read on."""
    fix = fields_of(code)["fix"]
    assert not re.match(r"(see|look|read|check|mind|find|consider)\b", fix), fix
    assert len(fix.split()) <= 40, fix


@pytest.mark.parametrize("code", ENTRIES)
def test_no_inner_words(code):
    """A reader knows torch, not this package: no names of its probes, phases or evidence."""
    whole = " ".join(fields_of(code).values())
    assert not re.search(
        r"\b(probes?|subject|FBS?|culprits?|finding|taint(ed)?|replay(ed)?|evidence)\b", whole
    ), whole


@pytest.mark.parametrize("code", ENTRIES)
def test_the_twins_differ_by_a_few_lines(code):
    bug, fixed = (
        (HERE / code / name).read_text(encoding="utf-8").splitlines()
        for name in ("bug.py", "fixed.py")
    )
    assert bug != fixed
    assert len(set(bug) ^ set(fixed)) <= 12


def _codes():
    """Return every code that stands literally in the package, with the statuses that need attention."""
    found = set()
    for path in Path(pytest_torchcheck.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if name not in ("violated", "suspicious", "Explanation", "Relation", "Finding", "Row"):
                continue
            status = next((k.value for k in node.keywords if k.arg == "status"), None)
            if isinstance(status, ast.Constant) and status.value not in ("violated", "suspicious"):
                continue
            given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            given += node.args[:1] if name in ("violated", "suspicious", "Row") else []
            found.update(
                each.value
                for expression in given
                for each in ast.walk(expression)
                if isinstance(each, ast.Constant)
                and isinstance(each.value, str)
                and re.fullmatch(r"[a-z]+(-[a-z]+)+", each.value)
            )
    return found


def test_every_code_is_shown():
    assert _codes() - set(ENTRIES) - set(ELSEWHERE) == set()


def test_nothing_shown_is_listed_as_missing():
    assert set(ELSEWHERE) & set(ENTRIES) == set()
