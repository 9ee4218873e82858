"""Take and put back: everything a run may change, of a module and of the process."""

from __future__ import annotations

from .devices import device_loss_told as device_loss_told
from .devices import is_device_error as is_device_error
from .devices import is_range_error as is_range_error
from .devices import settle as settle
from .modules import ModuleState as ModuleState
from .seeds import has_drawn as has_drawn
from .seeds import isolated as isolated
from .seeds import own_generators as own_generators
from .seeds import random_states as random_states
from .seeds import randomness_kept as randomness_kept
from .seeds import seed_everything as seed_everything
from .seeds import seed_process as seed_process
from .seeds import seed_torch as seed_torch
from .settings import Precision as Precision
from .settings import filled_memory as filled_memory
from .settings import flags_settable as flags_settable
from .settings import repeatable as repeatable
from .settings import rounded as rounded
from .settings import settings_kept as settings_kept
from .tensors import is_lazy as is_lazy
from .tensors import saved_state as saved_state
