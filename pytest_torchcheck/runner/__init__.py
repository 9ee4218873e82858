"""Run the checks of a contract: which cases there are, one case, all of them."""

from __future__ import annotations

from .contracts import run_contract as run_contract
from .running import DEFAULT_EXAMPLES as DEFAULT_EXAMPLES
from .running import Runner as Runner
from .selection import Case as Case
from .selection import cases as cases
from .selection import ordered as ordered
from .selection import real_devices as real_devices
from .surroundings import environment as environment
