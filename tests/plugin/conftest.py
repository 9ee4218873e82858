"""Torch and the package are imported here once: runs of pytest in this process drop what they import, and torch
cannot be imported twice.
"""

from __future__ import annotations

import hypothesis  # noqa: F401
import torch
import torch._dynamo  # an optimizer and fake tensors import it when they are first used

import tests.imported  # noqa: F401

torch.set_num_threads(1)
