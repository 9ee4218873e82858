"""What the ranks of a contract measured, once for all the checks that ask."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from ..lean import dataclass
from ..subject.remembered import remembered
from .launch import Outcome, run
from .sending import PROMISED, NotSendable, Program, part_of

if TYPE_CHECKING:
    from ..batches import Batch
    from ..subject import Subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The outcome, or why there is none.

    Attributes:
        outcome: What the ranks found.
        reason: A sentence, where they could not be run.
        code: Its symptom.
        device: Where the ranks ran: ``cpu`` or ``cuda``.
    """

    outcome: Outcome | None = None
    reason: str = ""
    code: str = ""
    device: str = "cpu"


@remembered("ranks")
def evidence(subject: Subject) -> Evidence:
    """Run the ranks of a contract once; cached."""
    contract = subject.contract
    ranks = contract.ranks or 2
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        return Evidence(reason="this torch is built without torch.distributed", code="no-backend")
    cut = _shards(subject, ranks)
    if cut is None:
        return Evidence(
            reason=f"no batch can be split among {ranks} ranks: no batch axis has at least {ranks} samples",
            code="no-batch-axis",
        )
    full, shards, micro = cut
    parts = {name: part_of(contract, name) for name in PROMISED}
    uneven, uneven_full = (
        _uneven(subject, full, ranks) if parts["epochs"] is not None else ([], None)
    )
    cuda = subject.device.type == "cuda" and torch.cuda.device_count() >= ranks
    with subject.pristine() as model:
        program = Program(
            model=contract.model if contract.is_factory else model,
            loss=contract.loss,
            optimizer=contract.optimizer,
            train_step=contract.train_step,
            full=full,
            shards=shards,
            micro=micro,
            seed=subject.seed,
            device="cuda" if cuda else "cpu",
            uneven=uneven,
            uneven_full=uneven_full,
            sharded=bool(contract.promised("FullyShards")),
            **parts,
        )
        try:
            return Evidence(outcome=run(contract, program, ranks=ranks), device=program.device)
        except NotSendable as error:
            return Evidence(reason=_advice(error), code="not-sendable")


def _advice(error: NotSendable) -> str:
    if error.part == "model":
        how = "declare the contract at the top level of a file, or define the factory as a function there"
    elif error.part == "batch":
        how = "use tensors, or objects of classes defined at the top level of a file"
    else:  # a function of the contract or of one of its promises
        how = f"declare the contract at the top level of a file, or define {error.part} as a function there"
    return (
        f"the {error.part} cannot be sent to the ranks, because it does not pickle ({error}); {how}"
    )


def _shards(subject: Subject, ranks: int) -> tuple[Batch, list[Batch], list[list[Batch]]] | None:
    """Cut a batch of 4 samples a rank (or 2, or 1, as sizes allow) into shards, and these into halves."""
    source = subject.source
    symbol = source.batch_symbol
    if symbol is None:
        return None
    real = subject.batch().sizes.get(symbol, 0) if source.has_real else 0
    span = source.symbols.get(symbol)
    for each in (4, 2, 1):
        size = each * ranks
        if span is not None and span.declared and not span.low <= size <= (span.high or size):
            continue
        batch = (
            source.rows(subject.batch(), torch.arange(size))
            if real >= size
            else subject.at(**{symbol: size})
        )
        if batch is None or batch.sizes.get(symbol) != size:
            continue
        batch = batch.to(device="cpu")
        index = torch.arange(size)
        shards = [source.rows(batch, part) for part in index.chunk(ranks)]
        micro = (
            []
            if each == 1
            else [[source.rows(batch, half) for half in part.chunk(2)] for part in index.chunk(ranks)]
        )  # fmt: skip
        return batch, shards, micro
    return None


def _uneven(subject: Subject, full: Batch, ranks: int) -> tuple[list[Batch], Batch | None]:
    """Cut a batch into shards of which the first is twice as large as the others."""
    symbol = subject.source.batch_symbol
    each = full.sizes.get(symbol or "", 0) // ranks
    if each < 2:
        return [], None
    pieces = [
        torch.arange(each * r, each * r + (each if r == 0 else each // 2)) for r in range(ranks)
    ]
    return [subject.source.rows(full, piece) for piece in pieces], subject.source.rows(
        full, torch.cat(pieces)
    )


CHECK_OF: Final = {
    "init": "rank-consistency",
    "consistency": "rank-consistency",
    "steps": "distributed-steps",
    "single": "distributed-steps",
    "checkpoint": "rank-checkpoint",
    "sharded": "fsdp-equivalence",
    "meta": "fsdp-equivalence",
    "epochs": "rank-data",
    "statistics": "synchronised-statistics",
}
"""Which check tells that the ranks stopped in a stage; ddp-equivalence tells the others."""
