"""What a rank compares: gradients, digests of tensors, tied parameters, and outputs."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..objects import trees
from ..state import is_lazy

if TYPE_CHECKING:
    from collections.abc import Iterator

Gradients = dict[str, torch.Tensor]


def cast_to(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Convert a module's floating parameters and buffers to ``dtype``, and complex ones to complex128, in place."""

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(torch.complex128)
        return tensor.to(dtype) if tensor.is_floating_point() else tensor

    made: nn.Module = model._apply(cast)
    return made


def still_norms(model: nn.Module) -> None:
    """Put every normalisation that tracks statistics into eval mode."""
    for module in model.modules():
        if isinstance(module, _NormBase) and module.track_running_stats:
            module.eval()


def quiet(model: nn.Module, *, pinned: bool = False) -> nn.Module:
    """Turn off dropout and batch statistics: with them, no two batches have comparable gradients."""
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention | nn.RNNBase):
            module.dropout = 0.0
        elif isinstance(module, _NormBase) and module.track_running_stats:
            module.eval()
            if pinned:  # the user's step calls train()
                module.__dict__["train"] = _Still(module)
    return model


class _Still:
    """Stands in for ``train`` of a module that is to stay in eval mode."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module

    def __call__(self, _mode: bool = True) -> nn.Module:
        return self._module


@contextlib.contextmanager
def gradients_at_steps(model: nn.Module) -> Iterator[list[Gradients]]:
    """Note the gradients that stand when an optimizer steps."""
    seen: list[Gradients] = []
    handle = register_optimizer_step_pre_hook(lambda *_: seen.append(gradients_of(model)))
    with handle:
        yield seen


def gradients_of(model: nn.Module) -> Gradients:
    """Return copies of a model's gradients as strided tensors, by the names of their parameters."""
    return {
        name: trees.dense(p.grad.detach()).clone()
        for name, p in model.named_parameters()
        if p.grad is not None
    }


def mean(parts: list[Gradients]) -> Gradients:
    """Return the mean of several ranks' gradients."""
    total: Gradients = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return {name: value / len(parts) for name, value in total.items()}


def _flat(gradients: Gradients, names: list[str], like: Gradients) -> torch.Tensor:
    pieces = [
        (gradients[n] if n in gradients else torch.zeros_like(like[n])).flatten() for n in names
    ]
    flat = torch.cat(pieces) if pieces else torch.zeros(0)
    return torch.view_as_real(flat).flatten() if flat.is_complex() else flat


def compare(found: Gradients, expected: Gradients) -> tuple[float, float, float]:
    """Return the relative distance, the length along the expected one, and what is left across it."""
    names = sorted({*found, *expected})
    a, b = _flat(found, names, expected), _flat(expected, names, found)
    size = float(b.norm())
    if size == 0.0:
        return (0.0 if float(a.norm()) == 0.0 else float("inf")), 1.0, 0.0
    ratio = float(a @ b) / size**2
    return float((a - b).norm()) / size, ratio, float((a - ratio * b).norm()) / size


def worst_of(found: Gradients, expected: Gradients) -> list[str]:
    """Return the names of gradients, those that differ most first."""

    def distance(name: str) -> float:
        a, b = found.get(name), expected.get(name)
        if a is None or b is None:
            return float("inf")
        return float((a - b).abs().max()) if a.numel() else 0.0

    return sorted({*found, *expected}, key=lambda n: (-distance(n), n))[:4]


def norm_of(gradients: Gradients) -> float:
    """Return the Euclidean norm over all gradients."""
    return float(sum(float(g.abs().pow(2).sum()) for g in gradients.values()) ** 0.5)


def digest(tensor: torch.Tensor) -> str:
    """Return a digest of a tensor's dtype, shape and bytes."""
    plain = trees.dense(tensor.detach()).cpu().contiguous().reshape(-1)
    plain = torch.view_as_real(plain).contiguous().reshape(-1) if plain.is_complex() else plain
    head = f"{tensor.dtype}{tuple(tensor.shape)}".encode()
    return hashlib.sha256(head + plain.view(torch.uint8).numpy().tobytes()).hexdigest()[:16]


def digests_of(
    model: nn.Module, *, parameters: bool = True, buffers: bool = True
) -> dict[str, str]:
    """Return a digest of every parameter and buffer, by name."""
    found: dict[str, str] = {}
    if parameters:
        found |= {
            n: digest(p)
            for n, p in model.named_parameters(remove_duplicate=False)
            if not is_lazy(p)
        }
    if buffers:
        found |= {n: digest(b) for n, b in model.named_buffers() if not is_lazy(b)}
    return found


def ties(model: nn.Module) -> list[tuple[str, ...]]:
    """Return the names of parameters that are one tensor, group by group."""
    groups: dict[Any, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if is_lazy(parameter) or not parameter.numel():
            continue
        groups.setdefault(id(parameter), []).append(name)
    return sorted(tuple(sorted(names)) for names in groups.values() if len(names) > 1)


def plain_digests(model: nn.Module) -> dict[str, str]:
    """Tensors that are plain attributes: DDP sends neither these nor what stands in lists."""
    found = {}
    for prefix, module in model.named_modules():
        for key, value in vars(module).items():
            if key.startswith("_") and key in ("_parameters", "_buffers", "_modules"):
                continue
            name = f"{prefix}.{key}" if prefix else key
            if isinstance(value, torch.Tensor):
                found[name] = digest(value)
            elif isinstance(value, list | tuple | dict):
                items = value.items() if isinstance(value, dict) else enumerate(value)
                for at, item in items:
                    if isinstance(item, torch.Tensor):
                        found[f"{name}[{at!r}]"] = digest(item)
    return found


def close(tensor: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Say whether two tensors differ by no more than 4096 units of rounding at their scale."""
    if other is None or other.shape != tensor.shape or other.dtype != tensor.dtype:
        return False
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return torch.equal(tensor, other)
    eps = torch.finfo(tensor.dtype).eps
    return bool(
        torch.allclose(
            tensor, other, rtol=0.0, atol=4096 * eps * (trees.scale(other) or 1.0), equal_nan=True
        )
    )


def output_digest(output: Any) -> dict[str, str]:
    """Return a digest of every tensor of an output, by path."""
    return {path: digest(t) for path, t in trees.tensors(output).items()}


def sample_mean(output: Any, seed: int) -> torch.Tensor:
    """Return a loss that is a mean over samples: one random direction for all of them."""
    generator = torch.Generator().manual_seed(seed)
    total: torch.Tensor | None = None
    for tensor in trees.floats(output).values():
        if not tensor.requires_grad:
            continue
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        direction = torch.randn(values.shape[1:], generator=generator, dtype=torch.float64)
        term = (values * direction.to(values)).sum() / max(len(values) if values.dim() else 1, 1)
        total = term if total is None else total + term
    if total is None:
        raise RuntimeError("no output of the model requires a gradient")
    return total


def coupled(full: Any, parts: list[Any]) -> float:
    """Return how far the outputs of shards differ from those in the full batch; NaN where unknown."""
    whole, pieces = trees.floats(full), [trees.floats(part) for part in parts]
    worst = float("nan")
    for path, tensor in whole.items():
        if not all(path in piece for piece in pieces):
            continue
        shapes = [piece[path] for piece in pieces]
        if tensor.dim() == 0 or sum(len(s) if s.dim() else 0 for s in shapes) != len(tensor):
            continue
        relative = trees.apart(torch.cat(shapes).detach(), tensor.detach(), zero=1.0)
        worst = relative if worst != worst else max(worst, relative)
    return worst
