"""A checkpoint that the ranks save with the wrapped model, loaded into a plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .comparing import digests_of, quiet, ties

if TYPE_CHECKING:
    from pathlib import Path

    from torch import nn

    from .rank import Rank

PREFIXES = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What wrappers put before the names of a state_dict."""


def stage(rank: Rank, *, unused: bool) -> None:
    """Save on every rank, as training does; load into a plain model that starts otherwise."""
    program = rank.program
    folder = rank.folder / "checkpoints"
    folder.mkdir(exist_ok=True)
    path = folder / "checkpoint.pt"
    model = quiet(rank.build(seed=program.seed + 1))
    names = set(model.state_dict())
    _move(model, names)
    wrapped = rank.wrap(model, unused=unused)
    program.save(wrapped, str(path))
    dist.barrier()  # a rank may load what another one has saved
    found: dict[str, Any] = {
        "files": sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()),
        "saved": {name: digest for name, digest in digests_of(model).items() if name in names},
        "keys": _keys(path),
    }
    rank.leave(**found)
    plain = quiet(rank.build(seed=program.seed + 2))
    found["before"], found["ties"] = digests_of(plain), ties(plain)
    rank.leave(**found)
    program.load(plain, str(path))
    found |= {"loaded": digests_of(plain), "tied": ties(plain), "done": True}
    rank.leave(**found)
    dist.barrier()


def _move(model: nn.Module, names: set[str]) -> None:
    """Change everything that a state_dict holds: what every new model has anyway would come back by itself."""
    with torch.no_grad():
        for name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if name in names and tensor.is_floating_point():
                tensor.add_(0.25)


def _keys(path: Path) -> list[str]:
    """Return the names of the tensors in a file that torch wrote; none where it is another kind of file."""
    try:
        content = torch.load(path, weights_only=True, map_location="cpu")
    except Exception:  # any format is the user's right
        return []
    return sorted(_names(content))


def _names(value: Any, depth: int = 0) -> set[str]:
    if not isinstance(value, dict) or depth > 3:
        return set()
    found: set[str] = set()
    for key, item in value.items():
        if isinstance(item, torch.Tensor):
            found.add(str(key))
        elif (
            isinstance(item, dict) and key != "state"
        ):  # an optimizer's state has numbers for names
            found |= _names(item, depth + 1)
    return found
