"""One rank: its place in the group, the program that was sent to it, and what its stages build on."""

from __future__ import annotations

import json
import pickle
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ..declared.callables import loss_of
from ..state import is_lazy, seed_everything
from ..storage.files import write_whole
from ..subject.losses import own_loss
from ..subject.optimizers import default_optimizer
from .comparing import Gradients, cast_to, gradients_of, quiet, sample_mean
from .sending import Program, load

if TYPE_CHECKING:
    from pathlib import Path

    from ..batches import Batch


class Rank:
    """One rank: its place in the group, the program that was sent to it, and what it has measured so far."""

    def __init__(self, folder: Path, rank: int, world: int) -> None:
        self.folder, self.rank, self.world = folder, rank, world
        self.stage, self.step = "start", 0.0
        self.program: Program
        self.dtype: torch.dtype | None = torch.float64
        self.single: dict[str, Any] = {}
        self.reference: Gradients = {}
        self.micro: Gradients = {}

    def enter(self, stage: str) -> None:
        """Say that a stage begins."""
        self.stage = stage
        data = {"stage": stage, "step": self.step, "time": time.time()}
        write_whole(self.folder / f"progress{self.rank}.json", json.dumps(data).encode())

    def leave(self, **found: Any) -> None:
        """Leave what a stage found, as plain data."""
        write_whole(self.folder / f"result-{self.stage}-{self.rank}.pkl", pickle.dumps(found))

    def join(self, rank: int, world: int, name: str) -> None:
        """Become a member of a process group."""
        backend = "nccl" if self.program.device == "cuda" else "gloo"
        store = dist.FileStore(str(self.folder / f"store-{name}"), world)  # type: ignore[attr-defined]
        device = torch.device("cuda", self.rank) if backend == "nccl" else None
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, device_id=device)

    def build(
        self, seed: int | None = None, *, double: bool = True, synchronised: bool = False
    ) -> nn.Module:
        """Build the model in training mode.

        Args:
            seed: In force while building.
            double: Whether to convert to float64.
            synchronised: Whether synchronised normalisations stay what they are on a CPU, where the
                wrapper refuses them; everywhere else they use their running statistics, as plain
                ones do.
        """
        program = self.program
        if program.is_factory:
            seed_everything(program.seed if seed is None else seed)
            model = program.model()
        else:  # a copy of its own each time
            model = load((self.folder / "program.pkl").read_bytes()).model
        model = model.to(program.device)
        if program.device == "cpu" and not synchronised:
            model = plain(model)
        if any(is_lazy(t) for t in (*model.parameters(), *model.buffers())):
            with torch.no_grad():
                batch = program.full.clone()
                model(*batch.args, **batch.kwargs)
        if double and self.dtype is not None:
            model = cast_to(model, self.dtype)
        return model.train()  # type: ignore[no-any-return]

    def batch(self, batch: Batch, *, double: bool = True) -> Batch:
        """Return a copy of a batch on the rank's device, in float64 unless ``double`` is False."""
        moved = batch.to(device=self.program.device, dtype=self.dtype if double else None)
        return moved.clone()

    def wrap(self, model: nn.Module, *, unused: bool) -> nn.Module:
        """Wrap the model for the group."""
        return DistributedDataParallel(model, find_unused_parameters=unused)

    def loss(self, output: Any, batch: Batch) -> torch.Tensor:
        """Return the declared loss of an output, or a mean over its samples."""
        loss = self.program.loss
        if loss is None:
            return sample_mean(output, self.program.seed)
        if isinstance(loss, str):  # "output"
            return own_loss(output)
        value: torch.Tensor = loss_of(loss, output, batch.targets)
        return value

    def once(self, model: nn.Module, batch: Batch, scale: float = 1.0) -> Any:
        """Run forward, loss and backward, and return the output."""
        seed_everything(self.program.seed)
        batch = self.batch(batch)
        output = model(*batch.args, **batch.kwargs)
        (self.loss(output, batch) * scale).backward()
        return output

    def gradients(
        self, batch: Batch, *, seed: int | None = None
    ) -> tuple[nn.Module, Gradients, Any]:
        """Return a fresh model, its gradients on a batch, and its output."""
        model = quiet(self.build())
        output = self.once(model, batch) if seed is None else self._once_seeded(model, batch, seed)
        return model, gradients_of(model), output

    def _once_seeded(self, model: nn.Module, batch: Batch, seed: int) -> Any:
        seed_everything(self.program.seed + seed)
        batch = self.batch(batch)
        output = model(*batch.args, **batch.kwargs)
        self.loss(output, batch).backward()
        return output

    def step_model(self, *, unused: bool) -> tuple[nn.Module, nn.Module, Any]:
        """Return a fresh model, the same wrapped, and its optimizer: what the user's step is given."""
        model = quiet(self.build(), pinned=True)
        wrapped = self.wrap(model, unused=unused)
        return model, wrapped, self.optimizer(model)

    def optimizer(self, model: nn.Module) -> Any:
        """Make the declared optimizer for a model, or a plain one."""
        made = self.program.optimizer
        return default_optimizer(model) if made is None else made(model)

    def user_step(self, wrapped: nn.Module, optimizer: Any, batch: Batch, seed: int) -> None:
        """Take one of the user's own steps on a batch."""
        seed_everything(seed)
        batch = self.batch(batch)
        inputs: Any = batch.kwargs if batch.kwargs and not batch.args else batch.args
        step = self.program.train_step
        step(wrapped, optimizer, inputs, batch.targets)

    def meet(self, name: str) -> None:
        """Wait for the other ranks without any collective: they may have one of their own left."""
        (self.folder / f"met-{name}-{self.rank}").touch()
        while not all((self.folder / f"met-{name}-{r}").exists() for r in range(self.world)):
            time.sleep(0.05)


def plain(model: nn.Module) -> nn.Module:
    """Put torch's ordinary batch normalisation, with the same tensors, where statistics were gathered."""
    for name, module in list(model.named_modules()):
        if not isinstance(module, nn.SyncBatchNorm):
            continue
        made = _AnyBatchNorm(
            module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
        )  # fmt: skip
        made._parameters, made._buffers, made.training = (
            module._parameters,
            module._buffers,
            module.training,
        )
        if not name:
            return made
        owner, _, last = name.rpartition(".")
        setattr(model.get_submodule(owner), last, made)
    return model


class _AnyBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Batch normalisation of any number of dimensions, as the synchronised one takes."""

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2 dimensions; got {input.dim()}")
