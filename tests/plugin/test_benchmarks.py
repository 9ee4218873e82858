"""``--torchcheck-benchmark``: the contract's own items, measured and compared by pytest-benchmark."""

from __future__ import annotations

import json

import pytest

from tests import forked

NET = """
import time
import torch
from torch import nn
from pytest_torchcheck import Contract, Labels

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(5, 3)
    def forward(self, x):
        time.sleep(PAUSE)
        return self.head(x)

net = Contract(model=Net, inputs="B 5", targets=Labels("B", classes=3), loss=nn.functional.cross_entropy)
"""


def test_benchmarks_are_stored_and_a_slower_model_fails_the_comparison(
    pytester: pytest.Pytester,
) -> None:
    given = (
        "-p", "benchmark", "--torchcheck", "--torchcheck-benchmark", "--benchmark-only", "--benchmark-max-time=0.2",
        "--benchmark-autosave",
    )  # fmt: skip
    pytester.makepyfile(test_net=NET.replace("PAUSE", "0.002"))
    first = forked.pytest_run(pytester, *given, "--benchmark-json=out.json")
    first.assert_outcomes(passed=3, skipped=first.parseoutcomes().get("skipped", 0))
    stored = json.loads((pytester.path / "out.json").read_text(encoding="utf-8"))["benchmarks"]
    assert [one["name"] for one in stored] == [
        "benchmark[forward]", "benchmark[inference]", "benchmark[training-step]",
    ]  # fmt: skip
    facts = stored[0]["extra_info"]
    assert facts["parameters"] == 18
    assert facts["samples_per_second"] == pytest.approx(
        facts["samples"] / stored[0]["stats"]["mean"]
    )
    assert facts["flops"] == 2 * facts["samples"] * 5 * 3
    assert facts["flops_per_second"] == pytest.approx(facts["flops"] / stored[0]["stats"]["mean"])
    assert {"peak_bytes", "threads", "torch", "python"} <= set(facts)
    assert "tokens_per_second" not in facts  # it takes no tokens
    pytester.makepyfile(test_net=NET.replace("PAUSE", "0.02"))
    second = forked.pytest_run(
        pytester,
        *given,
        "-k",
        "forward",
        "--benchmark-compare",
        "--benchmark-compare-fail=mean:50%",
    )
    second.stderr.fnmatch_lines(["*Performance has regressed*"])
    assert second.ret != 0


SORTED = """
import torch
from torch import nn
from pytest_torchcheck import Contract

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 3)
    def forward(self, x):
        x = torch.sort(x).values
        return self.head(x)

net = Contract(model=Net, inputs="B 64", sizes={"B": 512})
"""


def test_a_profile_names_the_line_that_takes_most(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_net=SORTED)
    given = (
        "-p", "benchmark", "--torchcheck", "--torchcheck-benchmark", "--benchmark-only", "-k", "inference",
        "--benchmark-max-time=0.05", "--torchcheck-profile", "--torchcheck-html=out.html",
    )  # fmt: skip
    result = forked.pytest_run(pytester, *given)
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["*time of test_net.py::net::benchmark*", "share*line*", "*%*test_net.py:10*torch*"]
    )
    page = (pytester.path / "out.html").read_text(encoding="utf-8")
    assert "test_net.py:10: x = torch.sort(x).values: " in page  # a frame's tooltip
    assert "time by phase, module, line and kernel" in page
    lone = forked.pytest_run(pytester, "--torchcheck", "--torchcheck-profile")
    lone.stderr.fnmatch_lines(["*give --torchcheck-benchmark as well*"])


def test_the_fixture_times_a_contract_in_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_net=SORTED
        + """
import pytest

@pytest.mark.benchmark(group="mine")
def test_speed(torchcheck, benchmark):
    torchcheck.benchmark(benchmark, net, "inference")
    assert benchmark.extra_info["samples_per_second"] > 0

def test_wrong(torchcheck, benchmark):
    with pytest.raises(ValueError, match="forwards"):
        torchcheck.benchmark(benchmark, net, "forwards")
    benchmark(int)
"""
    )
    result = forked.pytest_run(pytester, "-p", "benchmark", "--benchmark-max-time=0.05")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["*benchmark 'mine'*"])
