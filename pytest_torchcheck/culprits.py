"""Culprits that several explainers name: the thing, and the line that makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import sources
from .findings import Culprit

if TYPE_CHECKING:
    from .subject import Subject


def parameter(subject: Subject, name: str, detail: str = "") -> Culprit:
    """Return a parameter as a culprit, with the line that builds it."""
    return Culprit("parameter", name, detail, sources.of_parameter(subject.model, name))
