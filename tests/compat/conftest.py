"""What torch must be imported for here is said in ``tests/plugin/conftest.py``."""

from __future__ import annotations

import hypothesis  # noqa: F401
import torch

import pytest_torchcheck.assertions
import pytest_torchcheck.strategies  # noqa: F401

torch.set_num_threads(1)
