"""The model under FSDP2 (``fully_shard``): outputs, gradients, a step, checkpoints, ties, and a build on meta."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from ..objects import trees
from .comparing import compare, quiet, ties, worst_of

if TYPE_CHECKING:
    from .rank import Rank

RATE = 1e-3
Gradients = dict[str, torch.Tensor]


def stage(rank: Rank) -> None:
    """Shard, step, save and load; each part leaves what it found, so that an error later hides nothing."""
    program = rank.program
    plain = quiet(rank.build())
    before = ties(plain)
    model = quiet(rank.build())
    _shard(rank, model)
    units = [name for name, module in model.named_modules() if is_unit(module)]
    found: dict[str, Any] = {
        "ties": before,
        "tied": ties(model),
        "units": units,
        "precision": _precision(model),
        "managed": managed(model),
    }
    rank.leave(**found)
    if found["ties"] != found["tied"] or not units:
        return
    shard = program.shards[rank.rank]
    output = rank.once(model, shard)
    expected = rank.once(plain, shard)
    found["output"] = _gap(output, expected)
    found["placed"] = _placed(model)
    gradients = {name: _whole(g) for name, g in _shared_gradients(model)}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=RATE)
    optimizer.step()
    stepped = {name: _whole(p.detach()) for name, p in model.named_parameters()}
    if rank.rank == 0:
        reference = {name: rank.reference[name] for name in rank.reference if name in gradients}
        found["missing"] = sorted(set(rank.reference) - set(gradients))
        found["error"], found["ratio"], _ = compare(gradients, reference)
        found["worst"] = worst_of(gradients, reference)
        wanted = {
            name: p.detach() - RATE * reference[name] if name in reference else p.detach()
            for name, p in plain.named_parameters()
        }
        found["stepped"] = compare(stepped, wanted)[0]
        found["apart"] = worst_of(stepped, wanted)
    rank.leave(**found)
    state = _full_state(model)
    found["keys"] = sorted(state)
    if rank.rank == 0:
        found["expected"] = sorted(plain.state_dict())
        current = {name: t for name, t in stepped.items() if name in state}
        found["lost"] = sorted(n for n, t in current.items() if not torch.equal(state[n].to(t), t))
        fresh = quiet(rank.build(seed=program.seed + 1))
        told = fresh.load_state_dict(state, strict=False)
        found["unloadable"] = sorted([*told.missing_keys, *told.unexpected_keys])
    other = quiet(rank.build(seed=program.seed + 1))
    _shard(rank, other)
    _load_full(other, state)
    restored = {name: _whole(p.detach()) for name, p in other.named_parameters()}
    found["restored"] = sorted(n for n, t in restored.items() if not torch.equal(t, stepped[n]))
    rank.leave(**found)
    if program.meta:
        rank.enter("meta")
        _on_meta(rank, model, state)


def is_unit(module: nn.Module) -> bool:
    """Say whether a module was given to ``fully_shard``."""
    from torch.distributed.fsdp import FSDPModule

    return isinstance(module, FSDPModule)


def default_plan(model: nn.Module) -> list[nn.Module]:
    """Return what to shard: the entries of every ModuleList that share no parameter with others, and the model."""
    made: list[nn.Module] = []
    owners: dict[int, int] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners[id(parameter)] = owners.get(id(parameter), 0) + 1
    for module in model.modules():
        if isinstance(module, nn.ModuleList):
            made += [
                child
                for child in module
                if any(True for _ in child.parameters())
                and not isinstance(child, nn.ModuleList | nn.ModuleDict)
                and all(owners[id(p)] == 1 for p in child.parameters())
            ]
    inner = dict.fromkeys(reversed(made))  # the innermost first
    return [*inner, model]


def _shard(rank: Rank, model: nn.Module) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if rank.program.wrap is not None:
        rank.program.wrap(model)
        return
    mesh = init_device_mesh(rank.program.device, (rank.world,))
    for module in default_plan(model):
        fully_shard(module, mesh=mesh)


def managed(model: nn.Module) -> list[str]:
    """Return the parameters that no unit shards."""
    from torch.distributed.tensor import DTensor

    return [name for name, p in model.named_parameters() if not isinstance(p, DTensor)]


def _precision(model: nn.Module) -> str:
    """Return the dtype in which the user's plan computes, or an empty string."""
    for module in model.modules():
        if is_unit(module):
            policy = getattr(getattr(module, "_get_fsdp_state", lambda: None)(), "_mp_policy", None)
            dtype = getattr(policy, "param_dtype", None) or getattr(policy, "reduce_dtype", None)
            if dtype is not None:
                return str(dtype).removeprefix("torch.")
    return ""


def _placed(model: nn.Module) -> int:
    """Return how many parameters lie in parts on the ranks: none would make the comparison an empty one."""
    from torch.distributed.tensor import DTensor

    return sum(isinstance(p, DTensor) for p in model.parameters())


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    from torch.distributed.tensor import DTensor

    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def _shared_gradients(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Return the gradients that every rank has: gathering is a collective, which all must join."""
    own = [name for name, p in model.named_parameters() if p.grad is not None]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, own)
    common = set.intersection(*(set(names) for names in everyone))
    return [
        (name, p.grad)
        for name, p in model.named_parameters()
        if name in common and p.grad is not None
    ]


def _gap(found: Any, expected: Any) -> float:
    worst = float("nan")
    wanted = trees.tensors(expected)
    for path, tensor in trees.tensors(found).items():
        if path not in wanted or not tensor.is_floating_point():
            continue
        tensor, other = _whole(tensor.detach()), wanted[path].detach()
        gap = trees.apart(tensor, other, zero=1.0)
        worst = gap if worst != worst else max(worst, gap)
    return worst


def _full_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Gather the state_dict, whole, on every rank."""
    return {
        name: _whole(value) if isinstance(value, torch.Tensor) else value
        for name, value in model.state_dict().items()
    }


def _load_full(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(
        model, dict(state), options=StateDictOptions(full_state_dict=True, strict=False)
    )


def _on_meta(rank: Rank, model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Build on meta, shard, give memory, load; what is then not as it was is named."""
    program = rank.program
    with torch.device("meta"):
        made = program.model()
    if rank.dtype is not None:
        made = made.to(rank.dtype)
    made = quiet(made.train())
    before = ties(made)
    _shard(rank, made)
    with torch.no_grad():
        if callable(program.meta):
            program.meta(made)
        else:
            made.to_empty(device=program.device)
            for tensor in made.buffers():  # memory as it comes may hold what was there before
                if tensor.is_floating_point():
                    tensor.fill_(float("nan"))
    after = ties(made)
    on_meta = [
        name for name, t in (*made.named_parameters(), *made.named_buffers()) if t.device.type == "meta"
    ]  # fmt: skip
    found: dict[str, Any] = {"ties": before, "tied": after, "on_meta": on_meta}
    rank.leave(**found)
    if on_meta:
        return
    _load_full(made, state)
    wanted = {name: _whole(t.detach()) for name, t in (*model.named_parameters(), *model.named_buffers())}  # fmt: skip
    held = {name: _whole(t.detach()) for name, t in (*made.named_parameters(), *made.named_buffers())}  # fmt: skip
    found["lost"] = sorted(
        n for n, t in wanted.items() if n not in held or not torch.equal(held[n], t)
    )
    found["persistent"] = sorted(state)
    made.eval()
    model.eval()
    shard = program.shards[rank.rank]
    with torch.no_grad():
        outputs = []
        for each in (made, model):
            batch = rank.batch(shard)
            outputs.append(each(*batch.args, **batch.kwargs))
    found["output"] = _gap(*outputs)
    rank.leave(**found)
