"""The same model in several processes: started, watched and read, so that a hang is a result too."""

from __future__ import annotations

from .launch import Failure, Outcome, Stuck, run
from .sending import NotSendable, Program

__all__ = ["Failure", "NotSendable", "Outcome", "Program", "Stuck", "run"]
