from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import data_workers
import pytest
import torch

from pytest_torchcheck import Contract
from pytest_torchcheck.checks.datasets import loading
from pytest_torchcheck.data import delivery
from pytest_torchcheck.data.explaining import workers as explain_workers
from pytest_torchcheck.data.plan import parts
from pytest_torchcheck.data.relations import worker_agreement as agreement
from pytest_torchcheck.subject import Subject

LOADER = {"batch_size": 4, "num_workers": 1}


def deliver(dataset: object, **options: float) -> delivery.Delivery:
    (part,) = parts(dataset, LOADER)
    return delivery.deliver(part, **options)


def text_of(made: delivery.Delivery) -> str:
    assert made.location is not None
    return made.location.text


def test_two_batches_come_of_the_samples_that_are_read_here() -> None:
    made = deliver(data_workers.Plain())
    assert (made.outcome, made.batches) == ("delivered", 2)
    (part,) = parts(data_workers.Plain(), LOADER)
    assert sorted(made.told) == list(range(8))
    assert agreement.disagreement(part, made.told) is None


def test_a_sample_that_hangs_on_the_process_is_another_one_in_a_worker() -> None:
    (part,) = parts(data_workers.ByProcess(), LOADER)
    found = agreement.disagreement(part, delivery.deliver(part).told)
    assert found is not None
    assert (found.index, found.path, found.count, found.compared) == (0, "1", 8, 8)
    told = explain_workers.differing(part, found)
    assert (told.status, told.code) == ("violated", "worker-differs")
    assert told.location.text == "return torch.full((3,), float(i)), HERE"


class Hashed(data_workers.Plain):
    def __getitem__(self, i):
        return hash(f"word-{i}") % 1000, torch.rand(2)


def test_the_hash_of_a_text_is_named() -> None:
    (part,) = parts(Hashed(), LOADER)
    told = {i: agreement.tell(part.dataset[i]) for i in range(3)}
    assert agreement.disagreement(part, told) is None  # what is random is not compared
    fixed = {i: [one for one in leaves if one[0] == "0"] for i, leaves in told.items()}

    class Alone(Hashed):
        def __getitem__(self, i):
            return (super().__getitem__(i)[0],)

    (part,) = parts(Alone(), LOADER)
    assert agreement.disagreement(part, fixed) is None
    for leaves in fixed.values():
        leaves[0][2] = "other"
    found = agreement.disagreement(part, fixed)
    assert found is not None
    assert found.hashed is not None
    assert "hash(f" in found.hashed.text
    assert "salted" in explain_workers.differing(part, found).cause


def test_floats_that_other_threads_round_differently_are_no_difference() -> None:
    class Mean(data_workers.Plain):
        def __getitem__(self, i):
            return (torch.tensor([1.0, 2.0]) * (1 + 1e-6 * self.other),)

    dataset = Mean()
    dataset.other = 0
    (part,) = parts(dataset, LOADER)
    dataset.other = 1
    told = {0: agreement.tell(dataset[0])}
    dataset.other = 0
    assert agreement.disagreement(part, told) is None


def test_an_attribute_that_asks_itself_is_named() -> None:
    made = deliver(data_workers.Asks())
    assert (made.outcome, made.phase, made.error_type) == ("raised", "unpickle", "RecursionError")
    (part,) = parts(data_workers.Plain(), LOADER)
    found = explain_workers.undelivered(part, made, 60.0)
    assert "Asks.__getattr__ recurses without end" in found.summary
    assert "begin __getattr__ with" in found.fix


def test_samples_that_do_not_stack_are_named() -> None:
    made = deliver(data_workers.Ragged())
    assert (made.outcome, made.phase, made.index) == ("raised", "collate", 2)
    assert made.shapes == ("sample 0: 0 Tensor[3], 1 int[]", "sample 2: 0 Tensor[4], 1 int[]")


def test_error_has_index_and_line() -> None:
    made = deliver(data_workers.Raises())
    assert (made.outcome, made.error_type, made.index) == ("raised", "IndexError", 3)
    assert text_of(made) == "return torch.zeros(3), [0, 1, 2][i]"


def test_hanging_worker_is_stopped_and_its_line_named() -> None:
    made = deliver(data_workers.Hangs(), deadline_s=3.0)
    assert (made.outcome, made.batches) == ("hung", 1)
    assert text_of(made) in ("time.sleep(0.05)", "while i == 5:")


def test_worker_that_dies_is_no_success() -> None:
    made = deliver(data_workers.Dies())
    assert (made.outcome, made.exit_code) == ("died", 3)


def test_state_that_cannot_be_rebuilt() -> None:
    made = deliver(data_workers.Rebuilt())
    assert (made.outcome, made.phase, made.error_type) == ("raised", "unpickle", "KeyError")


def test_main_module_without_a_guard(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    folder = Path(data_workers.__file__).parent
    script.write_text(
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "import data_workers\n"
        "from pytest_torchcheck.data import delivery\n"
        "from pytest_torchcheck.data.plan import parts\n"
        "part, = parts(data_workers.Plain(), {'batch_size': 4, 'num_workers': 1})\n"
        "made = delivery.deliver(part)\n"
        "print(made.outcome, made.phase, made.location.line)\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=600,
        cwd=Path(delivery.__file__).parents[2],
    )  # fmt: skip
    assert done.stdout.split() == ["raised", "main", "6"], done.stderr


def test_module_that_only_a_path_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    file = tmp_path / "odd-name.py"
    file.write_text(Path(data_workers.__file__).read_text())
    spec = importlib.util.spec_from_file_location("by_path", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "by_path", module)
    spec.loader.exec_module(module)
    assert deliver(module.Plain()).outcome == "delivered"


@pytest.mark.parametrize(
    ("dataset", "status", "code"),
    [
        ("Plain", "passed", "held"),
        ("Ragged", "violated", "worker-collate"),
        ("Dies", "violated", "worker-dies"),
    ],
)
def test_verdicts(dataset: str, status: str, code: str) -> None:
    subject = Subject(Contract(dataset=getattr(data_workers, dataset)(), loader=LOADER))
    (finding,) = loading.worker_delivery(subject)
    assert (finding.status, finding.code) == (status, code)


def test_no_process_without_workers() -> None:
    subject = Subject(Contract(dataset=data_workers.Dies(), loader={"num_workers": 0}))
    (finding,) = loading.worker_delivery(subject)
    assert finding.status == "not-applicable"
