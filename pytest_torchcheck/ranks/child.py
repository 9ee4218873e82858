"""What one rank does: the same stages as every other, each leaving plain data behind.

Gradients are compared where they are; only digests, norms and names leave the process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import pickle
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from .. import sources
from ..hardware import accelerator
from ..objects import trees
from ..state import seed_everything
from ..storage.files import write_whole
from ..text.printable import message_of
from . import checkpoint, epochs, sharding, statistics
from .comparing import (
    Gradients,
    close,
    compare,
    coupled,
    digest,
    digests_of,
    gradients_at_steps,
    gradients_of,
    mean,
    norm_of,
    output_digest,
    plain_digests,
    quiet,
    still_norms,
    ties,
    worst_of,
)
from .rank import Rank
from .sending import load

if TYPE_CHECKING:
    from ..batches import Batch

STEPS = 3


def main(folder: str) -> None:
    """Run as a rank; ``RANK`` and ``WORLD_SIZE`` stand in the environment."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = Path(folder)
    stacks = (place / f"stack{rank}.txt").open("w")
    if hasattr(signal, "SIGUSR1"):
        faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False)
    worker = _Rank(place, rank, world)
    try:
        worker.run()
    except BaseException as error:  # whatever it is, the parent tells it
        raised = {
            "stage": worker.stage,
            "kind": type(error).__name__,
            "message": message_of(error),
            "location": sources.of_error(error),
            "traceback": "".join(traceback.format_exception(error)),
        }
        write_whole(place / f"error{rank}.pkl", pickle.dumps(raised))
        sys.stdout.flush()
        os._exit(1)  # a group whose other rank waits must not be torn down in order
    os._exit(0)


class _Rank(Rank):
    # -- running --------------------------------------------------------------------------------

    def run(self) -> None:
        torch.set_num_threads(1)
        importlib.import_module("torch._dynamo")  # the wrapper would, seconds after the watch began
        self.program = load((self.folder / "program.pkl").read_bytes())
        program = self.program
        with contextlib.ExitStack() as stack:
            if program.device == "cuda":
                torch.cuda.set_device(self.rank)
                # where float64 is refused, shards and the whole batch must not be rounded to TF32
                # each in its way
                stack.enter_context(accelerator.Cuda().precision(tf32=False))
            self._stages()

    def _stages(self) -> None:
        program = self.program
        self.enter("single")
        if program.train_step is not None and self.rank == 0:
            self._alone()
        self.enter("join")
        self.join(self.rank, self.world, "all")
        if program.is_factory:
            self.enter("init")
            self._init()
        self.enter("local")
        unused = self._local()
        self.enter("ddp")
        self._ddp(unused=bool(unused))
        self.enter("consistency")
        self._consistency(unused=bool(unused))
        if program.train_step is not None:
            self.enter("steps")
            self._steps(unused=bool(unused))
        if program.save is not None:
            self.enter("checkpoint")
            checkpoint.stage(self, unused=bool(unused))
        if program.sharded:
            self.enter("sharded")
            sharding.stage(self)
        if program.epochs is not None:
            self.enter("epochs")
            self._epochs(unused=bool(unused))
        if statistics.applies(self):
            self.enter("statistics")
            statistics.stage(self)
        if unused:
            self.enter("unused")
            self._unused()
        self.enter("end")
        dist.barrier()

    # -- building -------------------------------------------------------------------------------

    # -- stages ---------------------------------------------------------------------------------

    def _init(self) -> None:
        """The same seed on every rank: the factory must build the same model."""
        digests = []
        for _ in range(2):
            model = self.build(double=False)
            digests.append({**digests_of(model), **plain_digests(model)})
        self.leave(first=digests[0], second=digests[1], ties=ties(model))

    def _local(self) -> list[str]:
        """Without any wrapper: who gets no gradient from which shard, and the reference on rank 0."""
        program = self.program
        began = time.perf_counter()
        try:
            self.gradients(program.shards[self.rank])
        except Exception:  # float64 may be refused in any words; the model's own dtype is then used
            self.dtype = None
            self.gradients(program.shards[self.rank])
        dtypes: list[Any] = [None] * self.world
        dist.all_gather_object(dtypes, self.dtype is None)
        if any(dtypes):
            self.dtype = None
        model, gradients, _ = self.gradients(program.shards[self.rank])
        self.step = time.perf_counter() - began
        missing = [n for n, p in model.named_parameters() if p.requires_grad and n not in gradients]
        everyone: list[Any] = [None] * self.world
        dist.all_gather_object(everyone, missing)
        found: dict[str, Any] = {"missing": missing, "double": self.dtype is not None}
        if self.rank == 0:
            found |= self._reference()
        self.leave(**found)
        return sorted({name for names in everyone for name in names})

    def _reference(self) -> dict[str, Any]:
        """The full batch's gradient and the mean of the shards', in one process."""
        program = self.program
        model, full, output = self.gradients(program.full)
        again = self.gradients(program.full, seed=7)[1]
        parts, outputs = [], []
        for shard in program.shards:
            _, gradients, part = self.gradients(shard)
            parts.append(gradients)
            outputs.append(part)
        self.reference = mean(parts)
        self.micro = (
            mean([self.gradients(m)[1] for halves in program.micro for m in halves])
            if program.micro
            else {}
        )
        error, ratio, across = compare(self.reference, full)
        uneven: dict[str, Any] = {}
        if program.uneven_full is not None:
            means = mean([self.gradients(part)[1] for part in program.uneven])
            uneven["uneven"] = compare(means, self.gradients(program.uneven_full)[1])[0]
        return uneven | {
            "noise": compare(again, full)[0],
            "decomposes": error,
            "ratio": ratio,
            "across": across,
            "coupled": coupled(output, outputs),
            "norms": [name for name, m in model.named_modules() if isinstance(m, _NormBase)],
            "norm": norm_of(full),
        }

    def _ddp(self, *, unused: bool) -> None:
        """The gradients that the ranks average, in two steps and accumulated under no_sync."""
        program = self.program
        model = quiet(self.build())
        wrapped = self.wrap(model, unused=unused)
        made = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1e-3)
        before = set(dict(model.named_parameters(remove_duplicate=False)))
        found: dict[str, Any] = {}
        self.once(wrapped, program.shards[self.rank])
        found["late"] = sorted(set(dict(model.named_parameters())) - before)
        gradients = gradients_of(model)
        found["gradients"] = {name: digest(value) for name, value in gradients.items()}
        if self.rank == 0:
            found["error"], found["ratio"], found["across"] = compare(gradients, self.reference)
            found["worst"] = worst_of(gradients, self.reference)
        if program.micro:
            wrapped.zero_grad(set_to_none=True)
            first, second = program.micro[self.rank]
            with wrapped.no_sync():  # type: ignore[operator]
                self.once(wrapped, first, 0.5)
            self.once(wrapped, second, 0.5)
            gathered = gradients_of(model)
            if self.rank == 0:
                found["accumulated"], found["accumulated_ratio"], _ = compare(gathered, self.micro)
        for _ in range(2):
            wrapped.zero_grad(set_to_none=True)
            self.once(wrapped, program.shards[self.rank])
            made.step()
        found["parameters"] = digests_of(model, buffers=False)
        self.leave(**found)

    def _consistency(self, *, unused: bool) -> None:
        """Every rank with a seed of its own: what the wrapper does not send must not matter."""
        program = self.program
        own = program.seed + 1000 * (self.rank + 1)
        found: dict[str, Any] = {}
        model = self.build(seed=own)
        wrapped = self.wrap(model, unused=unused)
        found["wrapped"] = digests_of(model)
        found["plain"] = plain_digests(model)
        with torch.no_grad():
            model.eval()
            seed_everything(program.seed)
            batch = self.batch(program.full)
            found["output"] = self._shared(wrapped(*batch.args, **batch.kwargs))
            active = [
                name for name, m in model.named_modules()
                if isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0
            ]  # fmt: skip
            fired: list[str] = []
            if active:
                model.train()
                still_norms(model)
                hooks = [
                    m.register_forward_hook(lambda *_, name=name: fired.append(name))
                    for name, m in model.named_modules()
                    if name in active
                ]
                digests = []
                for offset in (0, 1):
                    seed_everything(own + offset)
                    batch = self.batch(program.full)
                    digests.append(output_digest(wrapped(*batch.args, **batch.kwargs)))
                for hook in hooks:
                    hook.remove()
                found["noisy"] = digests
            found["dropouts"] = fired[:1]
        self.leave(**found)

    def _shared(self, output: Any) -> dict[str, str]:
        """Return the digests of outputs; on GPUs those of rank 0 for all that differ by rounding only.

        Kernels there may add in any order, so that two ranks with one model give other last digits.
        """
        if self.program.device == "cpu":
            return output_digest(output)
        first = [{path: t.detach().cpu() for path, t in trees.tensors(output).items()}]
        own = first[0]
        dist.broadcast_object_list(first, src=0)
        return output_digest(
            {path: first[0][path] if close(t, first[0].get(path)) else t for path, t in own.items()}
        )

    def _alone(self) -> None:
        """The user's step as the only rank, on everyone's batch: what the ranks together should do."""
        saved = os.environ["WORLD_SIZE"]
        os.environ["WORLD_SIZE"] = "1"
        self.join(0, 1, "alone")
        try:
            try:
                self.single = self._alone_step()
            except Exception:  # float64 may be refused in any words
                self.dtype = None
                try:
                    self.single = self._alone_step()
                except Exception:  # a bug of the step shows among the ranks again
                    self.single = {}
                self.dtype = torch.float64
        finally:
            dist.destroy_process_group()
            os.environ["WORLD_SIZE"] = saved

    def _alone_step(self) -> dict[str, Any]:
        model, wrapped, optimizer = self.step_model(unused=True)
        with gradients_at_steps(model) as seen:
            self.user_step(wrapped, optimizer, self.program.full, self.program.seed)
        found = {"gradients": seen[0] if seen else None, "dtype": self.dtype}
        if self.program.uneven_full is not None:
            found["uneven"] = self._first_gradients(self.program.uneven_full, unused=True)
        return found

    def _first_gradients(self, batch: Batch, *, unused: bool) -> Gradients | None:
        """What the optimizer sees in the first of the user's steps, from a fresh model."""
        model, wrapped, optimizer = self.step_model(unused=unused)
        with gradients_at_steps(model) as seen:
            self.user_step(wrapped, optimizer, batch, self.program.seed)
        return seen[0] if seen else None

    def _steps(self, *, unused: bool) -> None:
        """The user's own step on every rank's shard; parameters and buffers afterwards."""
        program = self.program
        model, wrapped, optimizer = self.step_model(unused=unused)
        before = set(dict(model.named_parameters(remove_duplicate=False)))
        found: dict[str, Any] = {"steps": [], "ties": ties(model)}
        with gradients_at_steps(model) as seen:
            for step in range(STEPS):
                shard = program.shards[(self.rank + step) % self.world]
                count = len(seen)
                self.user_step(
                    wrapped, optimizer, shard, program.seed + 1000 * (self.rank + 1) + step
                )
                taken = seen[count] if len(seen) > count else None
                found["steps"].append(
                    {
                        "gradients": None if taken is None else {n: digest(g) for n, g in taken.items()},
                        "norm": None if taken is None else norm_of(taken),
                        "parameters": digests_of(model, buffers=False),
                        "buffers": digests_of(model, parameters=False),
                    }
                )  # fmt: skip
                self.enter("steps")
        found["late"] = sorted(set(dict(model.named_parameters())) - before)
        found["tied"] = ties(model)
        found["norms"] = [
            f"{name}.{key}" if name else key
            for name, module in model.named_modules()
            if isinstance(module, _NormBase)
            for key in module._buffers
        ]
        reference = self.single.get("gradients")
        if reference and seen and self.single.get("dtype") == self.dtype:
            found["error"], found["ratio"], found["across"] = compare(seen[0], reference)
            found["worst"] = worst_of(seen[0], reference)
        if program.uneven:
            taken = self._first_gradients(program.uneven[self.rank], unused=unused)
            alone = self.single.get("uneven")
            if taken and alone and self.single.get("dtype") == self.dtype:
                found["uneven"] = compare(taken, alone)[0]
        self.leave(**found)

    def _epochs(self, *, unused: bool) -> None:
        """The user's own loop with the wrapped model: what its loaders deliver to this rank."""
        model = self.build(double=False)
        wrapped = self.wrap(model, unused=unused)
        optimizer = self.optimizer(model)
        watched = epochs.Recorder(lambda: self.leave(passes=watched.passes))
        seed_everything(self.program.seed)
        with watched.active():
            self.program.epochs(wrapped, optimizer)
        self.leave(passes=watched.passes, probes=watched.probes(self.program.seed))
        self.meet("epochs")

    def _unused(self) -> None:
        """Two steps with DDP's own default, which does not look for unused parameters."""
        wrapped = self.wrap(quiet(self.build()), unused=False)
        for _ in range(2):
            self.once(wrapped, self.program.shards[self.rank])
        self.leave(held=True)


# -- helpers ----------------------------------------------------------------------------------------
