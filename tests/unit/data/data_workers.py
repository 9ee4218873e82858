"""Datasets that a spawned worker must import; each fails in one way of its own."""

from __future__ import annotations

import os
import time

import torch


class Plain:
    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.full((3,), float(i)), i % 2


class Ragged(Plain):
    def __getitem__(self, i):
        return torch.zeros(4 if i == 2 else 3), i % 2


class Raises(Plain):
    def __getitem__(self, i):
        return torch.zeros(3), [0, 1, 2][i]


class Hangs(Plain):
    def __getitem__(self, i):
        while i == 5:
            time.sleep(0.05)
        return torch.zeros(3), i % 2


class Dies(Plain):
    def __getitem__(self, i):
        os._exit(3)


class Rebuilt(Plain):
    def __init__(self):
        self.data = None

    def __setstate__(self, state):
        raise KeyError("handle")


HERE = os.getpid()


class ByProcess(Plain):
    """Hangs on what each interpreter has its own of."""

    def __getitem__(self, i):
        return torch.full((3,), float(i)), HERE


class Asks(Plain):
    """Hands on what it does not have, also while it is unpickled and has nothing."""

    def __init__(self):
        self.inner = Plain()

    def __getattr__(self, name):
        return getattr(self.inner, name)
