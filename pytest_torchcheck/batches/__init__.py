"""Batches: one, where they come from, and how they lie in memory."""

from __future__ import annotations

from pytest_torchcheck.batches.batch import Batch, relayout
from pytest_torchcheck.batches.layouts import LAYOUTS, Layout
from pytest_torchcheck.batches.source import BatchSource

__all__ = ["LAYOUTS", "Batch", "BatchSource", "Layout", "relayout"]
