"""Each folder holds a bug, the same program mended, and what is said of the bug.

``bug.py`` gives exactly the code that its folder is named after, as its only cause, and the text of
``expected.txt``; ``fixed.py`` passes the same checks. ``CHECKS`` in a file limits them; without it the
whole contract is run.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

import torch

from pytest_torchcheck import Contract

HERE = Path(__file__).parent
ENTRIES = sorted(path.parent.name for path in HERE.glob("*/bug.py"))
_MEASURED = re.compile(r"-?\d+\.\d+(?:e[+-]?\d+)?|\b\d+e-\d+|(?<=by up to )\d+|(?<=magnitude )\d+")


def run(path, monkeypatch):
    """Check the one contract of a file, from its own folder, and return the report."""
    monkeypatch.chdir(path.parent)
    name = f"gallery_{path.parent.name.replace('-', '_')}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        (contract,) = [value for value in vars(module).values() if isinstance(value, Contract)]
        return contract.check(checks=getattr(module, "CHECKS", None))
    finally:
        del sys.modules[name]


WRITTEN_WITH = "2.13."
"""The version of torch whose words the golden texts quote."""


def told(report):
    """Return what needs attention and follows from nothing else."""
    return [f for f in report.findings if f.status in ("violated", "suspicious") and f.root is None]


def comparable(text):
    """Return a text without what differs between machines: measured fractions and how lines are broken.

    The texts quote torch. Under another version than the one that they were written with, the code and the lines are left.
    """
    if not torch.__version__.startswith(WRITTEN_WITH):
        return re.findall(r"\[[a-z0-9-]+\]$|^where .*", text, re.M)
    return " ".join(_MEASURED.sub("#", text).split())
