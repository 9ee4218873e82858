"""With pytest-xdist: the same outcomes, reports and files as in one process, whatever happens to workers."""

from __future__ import annotations

import json
import os
import re
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("xdist")
pytestmark = pytest.mark.usefixtures("in_order")

BODY = """
    import pytest
    import warnings

    @contract(**FIELDS)
    def good():
        return Net()

    @contract(**FIELDS, devices=("cpu", "cuda"))
    def cut():
        return Net(cut=True)

    def test_ordinary():
        pass

    def test_assertion(torchcheck):
        torch.manual_seed(0)  # reports hold the norms of its gradients
        torchcheck.assert_gradients(Net(cut=True), (torch.randn(4, 4), torch.randint(3, (4,))), loss=F.cross_entropy)
"""
CHECKS = "--torchcheck-checks=backward,gradients-exist,weights-update,overfit"


def timeless(path: Path) -> Any:
    """Read a JSON report without what differs from run to run."""

    def strip(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: strip(item) for key, item in value.items() if key != "seconds"}
        return [strip(item) for item in value] if isinstance(value, list) else value

    return strip(json.loads(path.read_text()))


def cases(path: Path) -> dict[str, tuple[str, ...]]:
    """Read a JUnit file: by test, its outcome, message and properties."""
    found = {}
    for case in ET.parse(path).iter("testcase"):
        told = [
            f"{child.tag}: {child.get('message', '')}"
            for child in case
            if child.tag != "properties"
        ]
        told += sorted(
            f"{entry.get('name')}={entry.get('value')}" for entry in case.iter("property")
        )
        name = f"{case.get('classname')}::{case.get('name')}"
        assert name not in found
        found[name] = tuple(told)
    return found


def summary(result: pytest.RunResult) -> list[str]:
    """Return the section that this plugin prints at the end, without times."""
    lines = [re.sub(r"in \d+\.\d s", "in N s", line) for line in result.outlines]
    start = next(place for place, line in enumerate(lines) if re.match(r"=+ torchcheck =+$", line))
    end = next(
        place for place, line in enumerate(lines) if place > start and line.startswith("===")
    )
    return [line for line in lines[start:end] if not line.startswith(("torchcheck: wrote", "-"))]


@pytest.mark.parametrize("dist", ["loadscope", "load"])
def test_reports_are_those_of_one_process(
    pytester: pytest.Pytester,
    simulate: Any,
    models: Any,
    monkeypatch: pytest.MonkeyPatch,
    dist: str,
) -> None:
    simulate(gpus=0)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    models(BODY, name="test_a")
    models(BODY.replace("good", "fine"), name="test_b")
    arguments = ["--torchcheck", CHECKS, "-p", "no:randomly"]
    files = ["--torchcheck-json={0}.json", "--torchcheck-html={0}.html", "--junitxml={0}.xml"]
    alone = pytester.runpytest_subprocess(*arguments, *(name.format("alone") for name in files))
    spread = pytester.runpytest_subprocess(
        *arguments, *(name.format("spread") for name in files), "-n", "2", "--dist", dist
    )
    assert alone.ret == spread.ret == pytest.ExitCode.TESTS_FAILED
    outcomes = alone.parseoutcomes()
    outcomes.pop("deselected")  # xdist tells none
    assert outcomes == spread.parseoutcomes()
    assert outcomes["failed"] >= 6
    here = pytester.path
    assert timeless(here / "alone.json") == timeless(here / "spread.json")
    held = [cases(here / f"{name}.xml") for name in ("alone", "spread")]
    if (
        dist == "load"
    ):  # a worker cannot point to a cause that another one reports, so it tells its own in full
        held = [
            {name: [one.partition(":")[0] for one in told] for name, told in file.items()}
            for file in held
        ]
    assert held[0] == held[1]
    assert summary(alone) == summary(spread)
    annotated = [
        [line for line in result.outlines if line.startswith("::")] for result in (alone, spread)
    ]
    assert annotated[0] == annotated[1] != []
    pages = [
        re.sub(r"\d+\.\d+ s", "N s", (here / f"{name}.html").read_text())
        for name in ("alone", "spread")
    ]
    assert pages[0] == pages[1]


DRAWS = """
    import hashlib
    import pytest
    from pathlib import Path

    def note(name, batch):
        digest = hashlib.sha256()
        for value in [batch.x, batch.y]:
            digest.update(str(tuple(value.shape)).encode() + value.contiguous().numpy().tobytes())
        with open(Path(__file__).with_name(name), "a") as file:
            file.write(digest.hexdigest() + "\\n")

    SPECS = dict(x="B T", y=Labels("B", classes=3), sizes={"T": (1, 32)})

    @pytest.mark.batches(**SPECS)
    def test_many(batch):
        note("NAME-many", batch)

    @pytest.mark.parametrize("number", range(4))
    def test_one(torchcheck, number):
        note(f"NAME-one-{number}", torchcheck.batch(**SPECS))

    class Watched(Net):
        def forward(self, x):
            with open(Path(__file__).with_name("NAME-contract"), "a") as file:
                file.write(hashlib.sha256(x.detach().numpy().tobytes()).hexdigest() + "\\n")
            return super().forward(x)

    @contract(**FIELDS)
    def held():
        return Watched()
"""


def test_the_same_seed_gives_the_same_batches(
    pytester: pytest.Pytester, simulate: Any, models: Any
) -> None:
    simulate(gpus=0)
    pytester.makeconftest(
        "import hypothesis\n"
        "hypothesis.settings.register_profile('fresh', database=None)\n"
        "hypothesis.settings.load_profile('fresh')\n"
    )
    for name in ("first", "second"):
        models(DRAWS.replace("NAME", name), name=f"test_{name}")

    def drawn(*arguments: str) -> dict[str, list[str]]:
        result = pytester.runpytest_subprocess("--torchcheck", CHECKS, *arguments)
        assert result.ret == pytest.ExitCode.OK
        files = [*pytester.path.glob("first-*"), *pytester.path.glob("second-*")]
        found = {path.name: path.read_text().splitlines() for path in files}
        for path in files:
            path.unlink()
        return found

    alone = drawn("--torchcheck-seed=3")
    assert len(alone) == 12
    assert alone == drawn("--torchcheck-seed=3", "-n", "2", "--dist", "loadfile")
    other = drawn("--torchcheck-seed=4", "-n", "2", "--dist", "loadfile")
    assert all(alone[name] != other[name] for name in alone)


def test_a_usage_error_of_workers_is_one_of_the_run(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n\n@pytest.mark.cuda(min_gpu=2)\ndef test(): pass")
    result = pytester.runpytest_subprocess("-n", "2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: test_a_usage*.py:3: *::test: @pytest.mark.cuda: *"])
    assert "INTERNALERROR" not in result.stdout.str()


def test_warnings_reach_the_controller(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    pytester.makepyfile("import pytest\n\n@pytest.mark.cuda\ndef test(): pass")
    result = pytester.runpytest_subprocess(
        "-n", "2", "--torchcheck-min-gpu-tests=0", "--torchcheck-require=cuda"
    )
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        ["*TorchcheckWarning: *::test is marked cuda but computed nothing there*"]
    )


def test_requirements_hold_for_what_workers_ran(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device

        @pytest.mark.cuda
        @pytest.mark.parametrize("n", range(4))
        def test(n):
            device.compute()
        """
    )
    assert pytester.runpytest_subprocess("-n", "2", "--torchcheck-min-gpu-tests=4").ret == 0
    result = pytester.runpytest_subprocess("-n", "2", "--torchcheck-min-gpu-tests=5")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["ERROR --torchcheck-min-gpu-tests: 5 tests must compute on a GPU, and 4 did"]
    )


SHARE = """
    import json, os, sys
    import pytest

    SEEN = {name: os.environ.get(name) for name in (
        "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "TORCHCHECK_GPUS", "TORCHCHECK_GPU_WORKERS")}

    @pytest.mark.parametrize("n", range(8))
    def test(n, worker_id):
        import time
        time.sleep(0.1)
        with open(f"seen-{worker_id}", "w") as file:
            json.dump({**SEEN, "torch": "torch" in sys.modules}, file)
"""


def seen(pytester: pytest.Pytester) -> dict[str, dict[str, Any]]:
    return {
        path.name.removeprefix("seen-"): json.loads(path.read_text())
        for path in pytester.path.glob("seen-*")
    }


def test_workers_share_the_callers_gpus_and_cores(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932f937,MIG-5f12")
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(SHARE)
    # a conftest is imported before anything of the plugin's own configuration
    pytester.makeconftest(
        "import os; assert os.environ['CUDA_VISIBLE_DEVICES'].count(',') == ('PYTEST_XDIST_WORKER' not in os.environ)"
    )
    result = pytester.runpytest_subprocess("-n", "3", "--torchcheck-share=on")
    result.assert_outcomes(passed=8)
    result.stdout.fnmatch_lines(
        ["torchcheck: gw0 on GPU-8932f937, gw1 on MIG-5f12, gw2 on GPU-8932f937"]
    )
    found = seen(pytester)
    assert {worker: one["CUDA_VISIBLE_DEVICES"] for worker, one in found.items()} == {
        "gw0": "GPU-8932f937",
        "gw1": "MIG-5f12",
        "gw2": "GPU-8932f937",
    }
    assert {worker: one["TORCHCHECK_GPU_WORKERS"] for worker, one in found.items()} == {
        "gw0": "2",
        "gw1": "1",
        "gw2": "2",
    }
    threads = str(max(1, len(os.sched_getaffinity(0)) // 3))
    for one in found.values():
        assert (one["OMP_NUM_THREADS"], one["MKL_NUM_THREADS"]) == (threads, threads)
        assert one["TORCHCHECK_GPUS"] == "GPU-8932f937,MIG-5f12"
        assert not one["torch"]


def test_what_the_user_chose_is_left_alone(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    pytester.makepyfile(SHARE)
    result = pytester.runpytest_subprocess(
        "--dist=load",
        "--tx",
        "popen//env:CUDA_VISIBLE_DEVICES=7",
        "--tx",
        "popen",
        "--torchcheck-share=on",
    )
    result.assert_outcomes(passed=8)
    found = seen(pytester)
    assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in found.values()) == ["3", "7"]
    assert {one["OMP_NUM_THREADS"] for one in found.values()} == {"5"}
    for path in pytester.path.glob("seen-*"):
        path.unlink()
    pytester.runpytest_subprocess("-n", "2").assert_outcomes(
        passed=8
    )  # nothing of torchcheck is used
    assert {one["CUDA_VISIBLE_DEVICES"] for one in seen(pytester).values()} == {"2,3"}


def test_a_workers_memory_is_its_share(
    pytester: pytest.Pytester, simulate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(gpus=1, total_gib=16)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    pytester.makepyfile(
        """
        import pytest
        import simulated_devices as device

        @pytest.mark.cuda
        @pytest.mark.parametrize("n", range(6))
        def test_shares(n):
            assert device.layer().limits[-1] == pytest.approx(0.45, abs=0.01)

        @pytest.mark.cuda(memory="12 GiB")
        def test_alone():
            assert device.layer().limits[-1] == 1.0
        """
    )
    pytester.runpytest_subprocess("-n", "2", "--torchcheck-share=on").assert_outcomes(passed=7)
    result = pytester.runpytest_subprocess("-n", "12", "--torchcheck-share=on", "-k", "shares")
    result.assert_outcomes(errors=6)
    result.stdout.fnmatch_lines(
        ["12 workers share a GPU of 16.0 GiB, * would fit; start fewer workers (-n)"]
    )


def test_exclusive_tests_are_alone_on_their_gpu(
    pytester: pytest.Pytester, simulate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(gpus=1, total_gib=64)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    pytester.makepyfile(
        """
        import os, time
        import pytest

        def record(word):
            with open("log", "a") as file:
                file.write(word + "\\n")

        def stay(kind):
            record(f"in {kind}")
            time.sleep(0.05)
            record(f"out {kind}")

        @pytest.mark.parametrize("n", range(12))
        @pytest.mark.parametrize("kind", ["shared", pytest.param("alone", marks=pytest.mark.cuda(memory="1 GiB"))])
        @pytest.mark.cuda
        def test(kind, n):
            stay(kind)
        """
    )
    # this test may itself run beside others that share GPUs
    temporary = pytester.mkdir("temporary")
    monkeypatch.setenv("TMPDIR", str(temporary))
    pytester.runpytest_subprocess("-n", "3", "--torchcheck-share=on").assert_outcomes(passed=24)
    inside = []
    for line in (pytester.path / "log").read_text().splitlines():
        verb, kind = line.split()
        if verb == "in":
            assert "alone" not in inside
            assert kind == "shared" or not inside
            inside.append(kind)
        else:
            inside.remove(kind)
    assert not list(temporary.glob("torchcheck-gpus-*"))


LOSING = """
    import os, pytest, time
    import simulated_devices as device

    class TestFirst:
        @pytest.mark.cuda
        @pytest.mark.parametrize("n", range(12))
        def test(self, n):
            with open("ran", "a") as file:
                file.write(f"{n}\\n")
            device.compute()
            if n in (3, 7, 11):
                device.lose()

    class TestSecond:
        @pytest.mark.parametrize("n", range(8))
        def test(self, n):
            time.sleep(0.02)
"""


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadfile", "worksteal"])
def test_a_lost_context_costs_one_failure(
    pytester: pytest.Pytester, simulate: Any, dist: str
) -> None:
    simulate(gpus=1)
    pytester.makepyfile(LOSING)
    result = pytester.runpytest_subprocess(
        "-n",
        "2",
        "--dist",
        dist,
        "--junitxml=out.xml",
        "--torchcheck-json=out.json",
        "--max-worker-restart=0",
        "-v",
    )
    assert "INTERNALERROR" not in result.stdout.str()
    result.assert_outcomes(passed=17, failed=3)
    found = cases(pytester.path / "out.xml")
    assert len(found) == 20
    assert sum(any(told.startswith("failure") for told in one) for one in found.values()) == 3
    ran = Counter(line for line in (pytester.path / "ran").read_text().splitlines())
    assert set(ran) == {str(n) for n in range(12)}
    # the three that lost their context were run again on the CPU to explain them
    assert {n for n, times in ran.items() if times > 1} == {"3", "7", "11"}
    assert "crashed while running" not in result.stdout.str()


@pytest.mark.parametrize(
    "lost", [pytest.param((5,), id="both-at-once"), pytest.param((5, 8), id="replacements-too")]
)
def test_a_lost_context_with_dist_each(
    pytester: pytest.Pytester, simulate: Any, lost: tuple[int, ...]
) -> None:
    simulate(gpus=1)
    pytester.makeconftest(
        """
        import os, time

        def pytest_collection():
            # the other replacement has collected while this one has only started
            if os.environ.get("PYTEST_XDIST_WORKER") == "gw2":
                time.sleep(1)
        """
    )
    pytester.makepyfile(LOSING.replace("(3, 7, 11)", str(lost)))
    result = pytester.runpytest_subprocess("-n", "2", "--dist", "each")
    assert "INTERNALERROR" not in result.stdout.str()
    result.assert_outcomes(passed=40 - 2 * len(lost), failed=2 * len(lost))


def test_dist_each_when_one_worker_has_nothing_left(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=1)
    pytester.makeconftest(
        """
        import os, pathlib

        def pytest_collection_finish(session):
            if os.environ.get("PYTEST_XDIST_WORKER") == "gw2":
                pathlib.Path("replaced").touch()
        """
    )
    pytester.makepyfile(
        """
        import os, pathlib, time, pytest
        import simulated_devices as device

        def test_first():
            if os.environ["PYTEST_XDIST_WORKER"] == "gw1":
                deadline = time.monotonic() + 60
                while not pathlib.Path("replaced").exists() and time.monotonic() < deadline:
                    time.sleep(0.05)
                time.sleep(0.5)  # at work when the controller hears of the other's replacement

        @pytest.mark.parametrize("n", range(3))
        def test_between(n):
            pass

        @pytest.mark.cuda
        def test_last():
            device.compute()
            if os.environ["PYTEST_XDIST_WORKER"] == "gw0":
                device.lose()
        """
    )
    result = pytester.runpytest_subprocess("-n", "2", "--dist", "each")
    assert "INTERNALERROR" not in result.stdout.str()
    result.assert_outcomes(passed=9, failed=1)


def test_a_replacement_gets_the_same_gpu(
    pytester: pytest.Pytester, simulate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(gpus=2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    pytester.makepyfile(
        """
        import os, pytest, time
        import simulated_devices as device

        @pytest.mark.cuda
        @pytest.mark.parametrize("n", range(20))
        def test(n, worker_id):
            with open("used", "a") as file:
                file.write(f"{worker_id} {os.environ['CUDA_VISIBLE_DEVICES']}\\n")
            device.compute()
            if n == 2:  # the first of its worker's; the other one leaves the rest to its replacement
                device.lose()
            elif worker_id != "gw2":
                deadline = time.monotonic() + 120
                while "gw2" not in open("used").read() and time.monotonic() < deadline:
                    time.sleep(0.05)
        """
    )
    result = pytester.runpytest_subprocess("-n", "2", "--torchcheck-share=on", "--dist=load")
    result.assert_outcomes(passed=19, failed=1)
    used = Counter(
        line for line in (pytester.path / "used").read_text().splitlines() if not line.endswith(" ")
    )
    gpus = {line.split()[0]: line.split()[1] for line in used}
    assert {"gw0", "gw1", "gw2"} <= set(gpus)
    assert len(used) == len(gpus) == 3  # one GPU each, all the time
    first = next(line for line in result.outlines if line.startswith("torchcheck: gw0"))
    lost = re.search(r"replacing crashed worker (gw\d)", result.stdout.str())
    assert lost is not None
    assert f"{lost[1]} on {gpus['gw2']}" in first


def test_a_real_crash_is_still_one(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import os, pytest

        @pytest.mark.parametrize("n", range(6))
        def test(n):
            if n == 2:
                os._exit(1)
        """
    )
    result = pytester.runpytest_subprocess("-n", "2")
    result.assert_outcomes(passed=5, failed=1)
    result.stdout.fnmatch_lines(["*crashed while running*"])


def test_the_header_recommends_what_keeps_contracts_whole(
    pytester: pytest.Pytester, models: Any
) -> None:
    models("@contract(**FIELDS)\ndef net():\n    return Net()")
    arguments = ("--torchcheck", "--torchcheck-checks=backward", "-n", "1")
    result = pytester.runpytest_subprocess(*arguments)
    result.stdout.fnmatch_lines(
        [
            "torchcheck: --dist load prepares a contract on each worker; --dist loadscope keeps each contract on one"
        ]
    )
    result = pytester.runpytest_subprocess(*arguments, "--dist", "loadgroup")
    result.stdout.fnmatch_lines(["torchcheck: *; --dist loadscope keeps each contract on one"])
    result = pytester.runpytest_subprocess(*arguments, "--dist", "loadscope")
    result.stdout.no_fnmatch_line("torchcheck: *--dist*")


def test_workers_of_another_interpreter_and_a_socket(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    import subprocess
    import sys

    import execnet

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    pytester.makepyfile(SHARE)
    server = Path(execnet.__file__).parent / "script" / "socketserver.py"
    far = pytester.mkdir("far")
    process = subprocess.Popen(
        [sys.executable, "-u", str(server), "127.0.0.1:0"],
        cwd=far,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        listens = process.stdout.readline()  # it says where once it does
        port = re.findall(r"\d+", listens)[-1]
        result = pytester.runpytest_subprocess(
            "--dist=load",
            f"--tx=socket=127.0.0.1:{port}//chdir={pytester.path}",
            "--tx=popen//python=" + sys.executable,
            "--torchcheck-share=on",
            "-p",
            "no:cacheprovider",
        )
    finally:
        process.kill()
        process.communicate()
    result.assert_outcomes(passed=8)
