"""Settings for this project's own tests."""

from __future__ import annotations

import gc

import torch._dynamo  # noqa: F401  # with what it imports in turn, most of what the collector walks through

pytest_plugins = ["pytester", "tests.runs"]
gc.freeze()  # each run of pytest within a test collects garbage five times, and tests of leaks do too
