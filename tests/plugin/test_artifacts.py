"""Failures kept on disk: written, read back without running code, and run again."""

from __future__ import annotations

import json
import os
import types
from typing import TYPE_CHECKING, Any

import pytest
import torch

from pytest_torchcheck import sources
from pytest_torchcheck.batches import Batch
from pytest_torchcheck.storage import artifacts
from pytest_torchcheck.storage.files import write_whole

if TYPE_CHECKING:
    from pathlib import Path

CUT = "@contract(**FIELDS)\ndef net():\n    return Net(cut=True)\n\n@contract(**FIELDS)\ndef other():\n    return Net()"


def kept(batch: Batch) -> artifacts.Artifact:
    return artifacts.Artifact(
        contract="net", check="backward", device="cpu", dtype="float32", seed=3, batch=batch
    )


def test_a_batch_comes_back_as_it_was(tmp_path: Path) -> None:
    x = torch.randn(2, 3, requires_grad=True)
    batch = Batch(
        args=(x,),
        kwargs={"mask": [torch.ones(2, dtype=torch.bool), (1, "two")]},
        targets={"labels": torch.tensor([0, 1])},
        sizes={"B": 2},
    )
    path = artifacts.path_of(tmp_path / "deep", "my net", "backward[cpu-float32]")
    assert path.name == "my-net-backward-cpu-float32.pt"
    assert artifacts.save(path, kept(batch), []) == ""
    found = artifacts.load(path)
    assert (found.contract, found.check, found.device, found.dtype, found.seed) == (
        "net",
        "backward",
        "cpu",
        "float32",
        3,
    )
    assert torch.equal(found.batch.args[0], x)
    assert found.batch.kwargs["mask"][1] == (1, "two")
    assert torch.equal(found.batch.targets["labels"], torch.tensor([0, 1]))
    assert found.batch.sizes == {"B": 2}
    assert json.loads(path.with_suffix(".json").read_text()) == []


def test_what_cannot_be_read_without_running_code_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    problem = artifacts.save(path, kept(Batch(args=(types.SimpleNamespace(x=1),))), [])
    assert "SimpleNamespace" in problem
    assert not path.exists()
    assert path.with_suffix(".json").exists()


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    path.write_bytes(b"nothing")
    beside = tmp_path / "described.json"
    beside.write_text("{}")
    beside.with_suffix(".pt").write_bytes(b"")
    with pytest.raises(
        ValueError, match=r"holds no batch; it is in the file beside it: .*described.pt"
    ):
        artifacts.load(beside)
    with pytest.raises(ValueError, match="is no batch that torchcheck has saved"):
        artifacts.load(path)
    torch.save({"format": 99}, path)
    with pytest.raises(ValueError, match="its format is 99"):
        artifacts.load(path)


def test_a_failure_is_saved_and_run_again(pytester: pytest.Pytester, models: Any) -> None:
    models(CUT)
    arguments = ("--torchcheck", "--torchcheck-checks=backward,gradients-exist")
    first = pytester.runpytest_inprocess(
        *arguments, "--torchcheck-artifacts=kept", "--torchcheck-seed=4"
    )
    first.assert_outcomes(passed=3, failed=1)
    first.stdout.fnmatch_lines(
        [
            "*the batch is saved; run the check on it again with --torchcheck-replay=kept/net-gradients-exist-cpu-float32.pt"
        ]
    )
    assert sorted(path.name for path in (pytester.path / "kept").iterdir()) == [
        "net-gradients-exist-cpu-float32.json",
        "net-gradients-exist-cpu-float32.pt",
    ]
    [finding] = json.loads(
        (pytester.path / "kept/net-gradients-exist-cpu-float32.json").read_text()
    )
    assert finding["code"] == "grad-none"
    again = pytester.runpytest_inprocess(
        "--torchcheck-replay=kept/net-gradients-exist-cpu-float32.pt"
    )
    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(
        [
            "first.weight*[[]grad-none[]]",
            "again *--torchcheck-seed=4 --torchcheck-replay=kept/net-gradients*",
        ]
    )


def test_the_saved_batch_is_what_the_model_gets(pytester: pytest.Pytester, models: Any) -> None:
    models(
        """
        class Picky(Net):
            def forward(self, x):
                open("seen", "a").write(str(tuple(x.shape)) + "\\n")
                if x.shape[0] == 3:
                    raise ValueError("three")
                return super().forward(x)

        @contract(**FIELDS)
        def net():
            return Picky()
        """
    )
    batch = Batch(
        kwargs={}, args=(torch.randn(3, 4),), targets=torch.tensor([0, 1, 2]), sizes={"B": 3}
    )
    artifacts.save(pytester.path / "three.pt", kept(batch), [])
    result = pytester.runpytest_inprocess("--torchcheck-replay=three.pt")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*three*"])
    assert (pytester.path / "seen").read_text().splitlines()[0] == "(3, 4)"


def test_a_replay_of_nothing_is_a_usage_error(pytester: pytest.Pytester, models: Any) -> None:
    models(CUT.replace("net", "renamed"))
    artifacts.save(pytester.path / "one.pt", kept(Batch(args=(torch.ones(2, 4),))), [])
    result = pytester.runpytest_inprocess("--torchcheck-replay=one.pt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --torchcheck-replay: no contract named 'net' with the check 'backward' on cpu*"]
    )
    (pytester.path / "bad.pt").write_text("x")
    result = pytester.runpytest_inprocess("--torchcheck-replay=bad.pt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: --torchcheck-replay: *bad.pt is no batch that torchcheck has saved*"]
    )


def test_packages_count_as_own_code_while_the_run_lasts(pytester: pytest.Pytester) -> None:
    import torch.nn
    import xdist

    path = str(xdist.__file__)
    assert sources.rank(path) < 2
    pytester.makepyfile(
        f"""
        from pytest_torchcheck import sources

        def test():
            assert sources.rank({path!r}) == 2
            assert sources.rank({torch.nn.__file__!r}) == 0
        """
    )
    pytester.runpytest_inprocess("--torchcheck-packages=xdist").assert_outcomes(passed=1)
    assert sources.rank(path) < 2


def test_a_folder_that_takes_no_file_costs_no_finding(
    pytester: pytest.Pytester, models: Any
) -> None:
    models(CUT)
    pytester.path.joinpath("kept").write_text("a file where the folder would be")
    result = pytester.runpytest_inprocess(
        "--torchcheck",
        "--torchcheck-checks=gradients-exist",
        "--torchcheck-artifacts=kept",
        "--torchcheck-json=kept/report.json",
        "--torchcheck-html=kept/report.html",
        "--junitxml=kept/junit.xml",
    )
    assert result.ret == 1
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*[[]grad-none]*",
            "the batch is not saved: */kept/net-gradients-exist-cpu-float32.json cannot be written:*",
            "*net: violated: 1 cause*",
            "torchcheck: could not write */kept/report.json: *",
            "torchcheck: could not write */kept/report.html: *",
        ]
    )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is always full")
@pytest.mark.parametrize("failing", [True, False])
def test_a_full_disk_costs_no_summary(
    pytester: pytest.Pytester, models: Any, failing: bool
) -> None:
    models(CUT)
    result = pytester.runpytest_inprocess(
        "--torchcheck",
        "--torchcheck-checks=gradients-exist",
        "--torchcheck-json=/dev/full",
        "--torchcheck-html=/dev/full",
        "--junitxml=/dev/full",
        *([] if failing else ["-k", "other"]),
    )
    assert result.ret == (1 if failing else pytest.ExitCode.INTERNAL_ERROR)
    result.stdout.fnmatch_lines(
        [
            "*net: violated: 1 cause*" if failing else "*other: ok*",
            "torchcheck: could not write*No space left on device*",
        ]
    )


def test_a_full_disk_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.pt"
    write = type(path).write_bytes

    def full(path: Path, data: Any) -> int:
        if ".pt" not in path.name:
            return write(path, data)
        write(path, data[:4])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_bytes", full)
    problem = artifacts.save(path, kept(Batch(args=(torch.ones(2),))), [])
    assert problem == f"{path} cannot be written: No space left on device"
    assert [one.name for one in tmp_path.iterdir()] == ["x.json"]


def test_names_that_no_file_system_takes_are_cut(tmp_path: Path) -> None:
    long, other = (artifacts.path_of(tmp_path, "net" * 200 + end, "backward") for end in "ab")
    assert long != other
    assert artifacts.save(long, kept(Batch(args=(torch.ones(2),))), []) == ""
    odd = artifacts.Artifact(
        contract="n\udc80", check="backward", device="cpu", dtype="float32", seed=0,
        batch=Batch(args=(torch.ones(2),), kwargs={"\ud83d": "\udcff"}),
    )  # fmt: skip
    path = artifacts.path_of(tmp_path, odd.contract, "backward")
    assert artifacts.save(path, odd, []) == ""
    assert artifacts.load(path).batch.kwargs == {"\ud83d": "\udcff"}


def test_a_file_is_written_whole_or_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, link = tmp_path / "report.json", tmp_path / "link.json"
    link.symlink_to(path)
    write_whole(path, "first")
    write_whole(link, b"second")
    assert link.is_symlink()
    assert path.read_text() == "second"
    write = type(path).write_bytes

    def half(path: Path, data: Any) -> int:
        write(path, data[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "write_bytes", half)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, "third")
    assert path.read_text() == "second"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.json", "report.json"]
