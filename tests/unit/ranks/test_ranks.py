"""The engine's parts, without processes: what can be sent, what a hang reads like, what is told."""

from __future__ import annotations

import pickle

import pytest
import rank_bugs
import torch
import torch.nn.functional as F
from torch import nn

from pytest_torchcheck import Contract, Labels, promises
from pytest_torchcheck.contracts import contract
from pytest_torchcheck.ranks import (
    checkpoint,
    epochs,
    explain,
    explain_data,
    launch,
    sending,
    sharding,
)
from pytest_torchcheck.ranks.evidence import evidence
from pytest_torchcheck.subject import Subject

FIELDS = {"inputs": "B 6", "targets": Labels("B", classes=3), "sizes": {"B": (2, 16)}, "ranks": 2}


@contract(loss=lambda output, targets: F.cross_entropy(output, targets), **FIELDS)
def decorated() -> nn.Module:
    return nn.Linear(6, 3)


def _program(declared: Contract) -> sending.Program:
    subject = Subject(declared)
    batch = subject.batch()
    return sending.Program(
        model=declared.model, loss=declared.loss, full=batch, shards=[batch, batch], seed=3
    )


def test_a_decorated_factory_and_its_lambda_are_sent_by_the_contract_s_name() -> None:
    program = sending.load(sending.dump(decorated, _program(decorated)))
    assert program.model is decorated.model
    assert program.loss is decorated.loss
    assert program.seed == 3


def test_a_module_is_sent_with_its_weights() -> None:
    module = rank_bugs.Net()
    declared = Contract(model=module, loss=F.cross_entropy, **FIELDS)
    sent = sending.load(sending.dump(declared, _program(declared))).model
    assert sent is not module
    assert torch.equal(sent.head.weight, module.head.weight)


def test_what_cannot_be_sent_is_named() -> None:
    declared = Contract(model=rank_bugs.Net, loss=lambda output, targets: output.sum(), **FIELDS)
    with pytest.raises(sending.NotSendable, match="lambda") as raised:
        sending.dump(declared, _program(declared))
    assert raised.value.part == "loss"
    finding = declared.check(["ddp-equivalence"]).findings[0]
    assert (finding.status, finding.code) == ("inconclusive", "not-sendable")
    assert "define loss as a function" in finding.summary


def test_a_batch_that_cannot_be_shared_is_told() -> None:
    declared = Contract(model=rank_bugs.Net, **{**FIELDS, "sizes": {"B": 1}})
    made = evidence(Subject(declared))
    assert made.code == "no-batch-axis"


def test_shards_are_parts_of_the_full_batch() -> None:
    from pytest_torchcheck.ranks.evidence import _shards

    cut = _shards(Subject(decorated), 2)
    assert cut is not None
    full, shards, micro = cut
    assert torch.equal(torch.cat([shard.args[0] for shard in shards]), full.args[0])
    assert torch.equal(torch.cat([half.targets for half in micro[1]]), shards[1].targets)


STACK = f"""Current thread 0x00007f (most recent call first):
  File "{torch.__file__}", line 12 in barrier
  File "{rank_bugs.__file__}", line 5 in waits_alone
  File "{launch.__file__}", line 7 in run
"""


def test_a_hang_names_the_users_line_of_every_rank() -> None:
    place = launch._user_line(STACK)
    assert place is not None
    assert (place.line, place.function) == (5, "waits_alone")
    stuck = tuple(
        launch.Stuck(rank=rank, stage=stage, location=place if rank == 0 else None, stack=STACK)
        for rank, stage in ((0, "steps"), (1, "end"))
    )
    outcome = launch.Outcome(ranks=2, stuck=stuck)
    assert explain.stopped_at(outcome) == "steps"
    finding = explain.broken(Subject(decorated), outcome)
    assert finding.code == "hang"
    assert "rank 0 at rank_bugs.py:5" in finding.summary
    assert finding.location == place
    assert STACK in str(finding.evidence["ranks"][0]["stack"])


def test_names_that_differ_or_are_missing_on_a_rank_are_found() -> None:
    assert explain.differing([{"a": "1", "b": "2"}, {"a": "1", "b": "3", "c": "4"}]) == ["b", "c"]
    assert explain.differing([{"a": "1"}, {"a": "1"}]) == []


def test_a_lost_peer_is_not_the_first_cause(tmp_path) -> None:
    class Ended:
        def __init__(self, code: int) -> None:
            self.returncode = code

    for rank, message in enumerate(("Connection closed by peer", "no such key")):
        raised = {
            "stage": "steps", "kind": "RuntimeError", "message": message, "location": None, "traceback": "",
        }  # fmt: skip
        (tmp_path / f"error{rank}.pkl").write_bytes(pickle.dumps(raised))
    outcome = launch._read(tmp_path, [Ended(1), Ended(1)], set(), 1.0, 12.0)  # type: ignore[list-item]
    assert [failure.rank for failure in outcome.failures] == [1, 0]
    assert "rank 1 raises RuntimeError" in explain.broken(Subject(decorated), outcome).summary


def _pass(indices, *, epoch=0, steps=1, **fields) -> epochs.Pass:
    return epochs.Pass(
        dataset=0, location=None, sampler="DistributedSampler", renewable=True, epoch=epoch,
        indices=indices, sizes=[len(indices)], steps=steps, **fields,
    )  # fmt: skip


def test_an_order_that_repeats_is_told_only_of_a_shuffle_whose_epoch_stays() -> None:
    shuffled = [3, 0, 2, 1, 4]
    assert explain_data._repeated([_pass(shuffled), _pass(shuffled)]) is not None
    assert explain_data._repeated([_pass(shuffled), _pass(shuffled, epoch=1)]) is None
    assert explain_data._repeated([_pass(sorted(shuffled)), _pass(sorted(shuffled))]) is None
    assert explain_data._repeated([_pass(shuffled), _pass([4, 1, 2, 0, 3])]) is None


def test_padding_and_draws_with_replacement_are_no_shared_samples() -> None:
    def found(*indices):
        return [{"probes": [["a"]], "passes": [_pass(list(each))]} for each in indices]

    def told(*indices):
        ranks = found(*indices)
        return explain_data._not_shared(ranks, [each["passes"] for each in ranks], None)

    assert told(range(0, 20, 2), range(1, 20, 2)) is None
    assert told([0, 2, 4, 6, 8], [1, 3, 5, 7, 0]) is None  # padded by one
    assert told([0, 0, 2, 3, 4], [1, 0, 2, 3, 4]) is None  # drawn with replacement
    assert told([4, 3, 2, 1, 0], [0, 2, 4, 1, 3]) is not None


def test_a_recorder_sees_order_sizes_and_steps_and_leaves_the_loader_as_it_was() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(10.0).reshape(5, 2))
    loader = torch.utils.data.DataLoader(data, 2)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = vars(torch.utils.data.DataLoader)["__iter__"]
    recorder = epochs.Recorder(lambda: None)
    with recorder.active():
        for _ in range(2):
            for (x,) in loader:
                model(x).sum().backward()
                optimizer.step()
    first, second = recorder.passes
    assert first.indices == second.indices == [0, 1, 2, 3, 4]
    assert first.sizes == [2, 2, 1]
    assert first.steps == second.steps == 3
    assert first.location is not None
    assert first.location.file == __file__
    assert len(set(first.contents)) == 3
    assert recorder.probes(0)[0] == recorder.probes(0)[0]
    assert vars(torch.utils.data.DataLoader)["__iter__"] is before


def test_the_default_plan_leaves_tied_modules_to_the_root() -> None:
    model = rank_bugs.TyingInModules()
    plan = sharding.default_plan(model)
    assert plan[-1] is model
    assert set(plan[:-1]) == set(model.blocks)
    model.blocks[0].weight = model.table.weight
    assert model.blocks[0] not in sharding.default_plan(model)


def test_names_of_a_file_are_found_in_nested_dicts(tmp_path) -> None:
    torch.save({"model": {"module.a": torch.ones(1)}, "step": 3}, tmp_path / "c.pt")
    assert checkpoint._keys(tmp_path / "c.pt") == ["module.a"]
    (tmp_path / "d.pt").write_text("no checkpoint of torch")
    assert checkpoint._keys(tmp_path / "d.pt") == []


def test_promises_of_ranks_take_functions() -> None:
    for make in (
        lambda: promises.SharesData("fit"),
        lambda: promises.Checkpoints(print, None),
        lambda: promises.FullyShards("plan"),
        lambda: promises.FullyShards(meta="yes"),
    ):
        with pytest.raises(promises.PromiseError, match="must be callable"):
            make()
