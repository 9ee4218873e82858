"""Which devices exist, really: asked by doing, never by believing what a library says.

Everything that the plugin asks of an accelerator goes through a :class:`Layer`, so that lost contexts,
full memories and missing devices can be simulated where there is no GPU. Importing this module imports
no torch.
"""

from __future__ import annotations

from .layers import ACCELERATORS as ACCELERATORS
from .layers import CONTEXT_BYTES as CONTEXT_BYTES
from .layers import Device as Device
from .layers import Layer as Layer
from .layers import Memory as Memory
from .layers import Probe as Probe
from .layers import TorchLayer as TorchLayer
from .layers import driver_version as driver_version
from .layers import install as install
from .layers import layer as layer
from .layers import parse_smi_list as parse_smi_list
from .layers import present_gpus as present_gpus
from .sharing import LEAST_SHARE as LEAST_SHARE
from .sharing import cores as cores
from .sharing import holding as holding
from .sharing import lock_folder as lock_folder
from .sharing import memory_share as memory_share
from .sharing import visible as visible
