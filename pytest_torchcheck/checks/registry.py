"""Names that moved to :mod:`pytest_torchcheck.catalogue` and :mod:`pytest_torchcheck.verdicts`, as promises of users' own import them."""

from __future__ import annotations

from ..catalogue import Check as Check
from ..catalogue import catalogue as catalogue
from ..verdicts import inconclusive as inconclusive
from ..verdicts import passed as passed
from ..verdicts import violated as violated
