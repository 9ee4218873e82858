"""What ``--markers`` shows of this plugin's markers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from .options import ACCELERATORS

if TYPE_CHECKING:
    from .options import Options

MARKERS: Final = (
    (
        "cuda(min_gpus=1, memory=None, capability=None, isolated=False): run on CUDA devices only: "
        "skipped without them, an error where they are required (--torchcheck-require). memory is "
        "what must be free, such as '8 GiB'; isolated runs the test in a process of its own"
    ),
    "xpu(min_gpus=1, memory=None, capability=None, isolated=False): as cuda, for Intel GPUs",
    "mps(min_gpus=1, memory=None, capability=None, isolated=False): as cuda, for Apple GPUs",
    (
        "batches(*, sizes=None, **specs): draw many batches for the test's argument `batch` and shrink the one that "
        "fails, such as batches(x='B T', y=Labels('B', classes=3), sizes={'T': (1, 128)})"
    ),
    (
        "leak_free(repeats=5, warmup=2, allow=0): run the test's body again and again: the bytes of its live tensors "
        "must stay what they are; allow is what each repetition may leave behind, such as '1 KiB'"
    ),
    (
        "torchcheck(*, devices=(), dtypes=(), seed=None, examples=None): an instance of the test per device and dtype, "
        "its seed and its number of batches"
    ),
)
"""What ``--markers`` shows; the signatures are those of :mod:`.markers`."""


def marker_lines(options: Options) -> tuple[str, ...]:
    """Return the lines of the markers that are this plugin's in this run."""
    if options.cuda_marker:
        return MARKERS
    return tuple(line for line in MARKERS if line.partition("(")[0] not in ACCELERATORS)
