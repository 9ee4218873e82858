"""Verdicts that held are reused while nothing changes, and every reused one says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests import forked

MODELS = """
import os
from pathlib import Path
from torch import nn

def build(width=4):
    size = int(Path(__file__).with_name("size.txt").read_text())
    if Path(__file__).with_name("narrow.flag").exists():
        size = 2
    return nn.Sequential(nn.Linear(6, size), nn.Tanh(), nn.Linear(size, 3))
"""

CONTRACTS = """
import os
import torch.nn.functional as F
from torch import nn
from pytest_torchcheck import Labels, contract
from shapes import build

PLACES = os.environ.get("SHAPES_OF_MINE", "none")

@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def net():
    return build()

@contract(inputs="B 6", targets=Labels("B", classes=3), loss=F.cross_entropy)
def cut():
    class Cut(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x):
            return self.last(self.first(x).detach())

    return Cut()
"""

NET = ("-k", "net")
CHECKS = "--torchcheck-checks=mode-flags,gradients-exist"


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shapes=MODELS, test_reused=CONTRACTS)
    Path(pytester.path, "size.txt").write_text("8")
    return pytester


def run(project: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return project.runpytest("--torchcheck", "--torchcheck-cached", CHECKS, "-rs", *arguments)


def kept_file(project: pytest.Pytester) -> Path:
    return Path(project.path, ".pytest_cache", "d", "torchcheck", "verdicts.json")


def test_what_held_is_skipped_and_said_to_stand(project: pytest.Pytester) -> None:
    run(project, *NET).assert_outcomes(passed=2)
    again = run(project, *NET)
    again.assert_outcomes(skipped=2)
    assert again.ret == pytest.ExitCode.OK
    again.stdout.fnmatch_lines(
        [
            "test_reused.py::net: unchanged: 2 unchanged and not run",
            "torchcheck: 2 checks passed before and were not run again, since nothing has changed; *",
            "*gradients-exist*not run: it passed, and nothing has changed since 20*",
        ]
    )
    project.runpytest("--torchcheck", CHECKS, *NET).assert_outcomes(passed=2)


def edited_source(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makepyfile(shapes=MODELS.replace("width=4", "width=5"))


def edited_data(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    Path(project.path, "size.txt").write_text("9")


def new_module(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makepyfile(other="")


def new_variable(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHAPES_OF_MINE", "many")


def removed_data(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    project.makepyfile(shapes=MODELS.replace("int(Path(", "8 or int(Path("))
    Path(project.path, "size.txt").unlink()


def new_name(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    (project.path / "narrow.flag").touch()


def nothing(project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_".join(["UNRELATED", "TO", "IT"]), "1")  # no file names it


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        (edited_source, True),
        (edited_data, True),
        (removed_data, True),
        (new_module, True),
        (new_name, True),
        (new_variable, True),
        (nothing, False),
    ],
)
def test_a_change_runs_everything_again(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, change, runs
) -> None:
    run(project, *NET)
    change(project, monkeypatch)
    result = run(project, *NET)
    result.assert_outcomes(**{"passed" if runs else "skipped": 2})
    assert runs == ("since this has changed: " in str(result.stdout))


@pytest.mark.parametrize("other", ["--torchcheck-seed=3", "-Werror"])
def test_other_settings_run_everything_again(project: pytest.Pytester, other: str) -> None:
    run(project, *NET)
    run(project, *NET, other).assert_outcomes(passed=2)


def test_a_further_check_runs_and_the_known_ones_do_not(project: pytest.Pytester) -> None:
    run(project, *NET)
    more = run(project, *NET, f"{CHECKS},rng-hygiene")
    more.assert_outcomes(passed=1, skipped=2)
    run(project, *NET, f"{CHECKS},rng-hygiene").assert_outcomes(skipped=3)


def test_a_broken_contract_is_run_each_time(project: pytest.Pytester) -> None:
    for passed, skipped in ((3, 0), (1, 2)):
        result = run(project)
        result.assert_outcomes(passed=passed, failed=1, skipped=skipped)
        assert result.ret == pytest.ExitCode.TESTS_FAILED
    kept = json.loads(kept_file(project).read_text())["cases"]
    assert [node.rpartition("::")[2] for node in kept] == ["net"]


def test_what_could_not_decide_is_run_each_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "from torch import nn\nimport torch\nfrom pytest_torchcheck import Contract\n"
        "lone = Contract(model=nn.Linear(3, 2), batch=((torch.ones(1, 3),), None))\n"
    )
    arguments = ("--torchcheck", "--torchcheck-cached", "-rs")
    checks = "--torchcheck-checks=batch-independence,mode-flags"
    pytester.runpytest(*arguments, checks).assert_outcomes(passed=1, skipped=1)
    again = pytester.runpytest(*arguments, checks)
    again.assert_outcomes(skipped=2)
    again.stdout.fnmatch_lines(["*batch-independence*inconclusive: *"])


@pytest.mark.parametrize("text", ["{", '{"format": 99}', '{"format": 1, "bases": {"a": {}}}'])
def test_a_file_of_anothers_is_ignored_with_one_line(project: pytest.Pytester, text: str) -> None:
    run(project, *NET)
    kept_file(project).write_text(text)
    result = run(project, *NET)
    result.assert_outcomes(passed=2)
    assert str(result.stdout).count("is ignored, so every check runs") == 1
    run(project, *NET).assert_outcomes(skipped=2)


def test_a_tampered_file_is_ignored(project: pytest.Pytester) -> None:
    run(project, *NET)
    source = Path(project.path, "shapes.py")
    project.makepyfile(shapes=MODELS.replace("width=4", "width=7"))
    kept = json.loads(kept_file(project).read_text())
    for basis in kept["bases"].values():
        from pytest_torchcheck.storage.unchanged import digest_of

        basis["files"] = {path: digest_of(path) for path in basis["files"]}
    kept_file(project).write_text(json.dumps(kept))
    assert source.exists()
    run(project, *NET).assert_outcomes(passed=2)


def test_a_file_that_changes_during_the_run_keeps_nothing(project: pytest.Pytester) -> None:
    project.makeconftest(
        "import pathlib, pytest\n"
        "@pytest.hookimpl(trylast=True)\n"
        "def pytest_runtest_setup(item):\n"
        "    path = pathlib.Path(__file__).with_name('shapes.py')\n"
        "    path.write_text(path.read_text() + '#')\n"
    )
    result = run(project, *NET)
    result.stdout.fnmatch_lines(
        ["*shapes.py changed during the run, so its verdicts are not kept*"]
    )
    run(project, *NET).assert_outcomes(passed=2)


def test_contracts_with_data_run_each_time(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import torch\nfrom torch.utils.data import TensorDataset\n"
        "from pytest_torchcheck import Contract\n"
        "data = Contract(dataset=TensorDataset(torch.randn(8, 2), torch.arange(8)))\n"
    )
    arguments = ("--torchcheck", "--torchcheck-cached", "--torchcheck-checks=dataset-finite")
    first = pytester.runpytest(*arguments).parseoutcomes()
    assert pytester.runpytest(*arguments).parseoutcomes() == first


def test_workers_reuse_and_the_controller_keeps(project: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    first = forked.pytest_run(project, "--torchcheck", "--torchcheck-cached", CHECKS, "-n2", *NET)
    first.assert_outcomes(passed=2)
    again = forked.pytest_run(project, "--torchcheck", "--torchcheck-cached", CHECKS, "-n2", *NET)
    again.assert_outcomes(skipped=2)
    again.stdout.fnmatch_lines(["torchcheck: 2 checks passed before and were not run again*"])


def test_the_setting_of_a_project_is_switched_off_by_its_opposite(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\ntorchcheck_cached = true\n")
    arguments = ("--torchcheck", CHECKS, *NET)
    project.runpytest(*arguments).assert_outcomes(passed=2)
    project.runpytest(*arguments).assert_outcomes(skipped=2)
    off = project.runpytest(*arguments, "--no-torchcheck-cached")
    off.assert_outcomes(passed=2)


def test_without_a_cache_directory_it_is_refused(project: pytest.Pytester) -> None:
    result = run(project, "-pno:cacheprovider")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--torchcheck-cached keeps verdicts in pytest's cache directory*"]
    )
