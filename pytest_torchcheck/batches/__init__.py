"""Batches: one, where they come from, and how they lie in memory."""

from __future__ import annotations

from .batch import Batch, relayout
from .describe import LAYOUTS, Layout
from .source import BatchSource

__all__ = ["LAYOUTS", "Batch", "BatchSource", "Layout", "relayout"]
