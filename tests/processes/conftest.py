"""Why these are imported here is said in ``tests/plugin/conftest.py``."""

from __future__ import annotations

import hypothesis  # noqa: F401
import torch
import torch._dynamo

import tests.imported  # noqa: F401

torch.set_num_threads(1)
