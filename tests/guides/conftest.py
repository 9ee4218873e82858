"""What runs of pytest in this process would import anew each time is imported here once."""

from __future__ import annotations

import hypothesis  # noqa: F401

import pytest_torchcheck.assertions
import pytest_torchcheck.strategies  # noqa: F401
