"""The marker ``leak_free`` repeats a test's body and names what holds what grows."""

from __future__ import annotations

import pytest
import torch._dynamo  # noqa: F401 - runs in this process drop what they import, and it cannot be imported twice

from tests import forked

NET = """
    import gc
    import pytest
    import torch
    from torch import nn

    KEPT = []

    class Net(nn.Module):
        def __init__(self, keeps=True):
            super().__init__()
            self.body, self.history, self.keeps = nn.Linear(4, 4), [], keeps

        def forward(self, x):
            h = self.body(x)
            if self.keeps:
                self.history.append(h)
            return h

    @pytest.fixture
    def net():
        return Net()
"""


def run(pytester: pytest.Pytester, body: str, *arguments: str) -> pytest.RunResult:
    pytester.makepyfile(test_it=NET + body)
    return pytester.runpytest_inprocess("-p", "no:randomly", "--strict-markers", *arguments)


def test_what_grows_fails_with_its_holder_and_line(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    @pytest.mark.leak_free
    def test_a_global():
        KEPT.append(torch.ones(3) * 2)

    @pytest.mark.leak_free
    def test_a_model(net):
        net(torch.ones(2, 4))

    @pytest.fixture(scope="module")
    def cache():
        return {}

    @pytest.mark.leak_free(repeats=2, warmup=1)
    @pytest.mark.parametrize("width", [2])
    def test_a_fixture(cache, width):
        cache[len(cache)] = torch.ones(width) * 2

    @pytest.mark.leak_free
    class TestMethods:
        def test_the_instance(self):
            self.seen = [*getattr(self, "seen", ()), torch.ones(5) * 2]

    @pytest.mark.leak_free
    def test_hooks(net):
        net.keeps = False
        net.body.register_forward_hook(lambda *args: None)
        net(torch.ones(2, 4))
        """,
    )
    result.assert_outcomes(failed=5)
    result.stdout.fnmatch_lines(
        [
            "global KEPT of module test_it keeps 12 B per repetition alive [[]leak-tensors]",
            "where     test_a_global, test_it.py:*: KEPT.append(torch.ones(3) * 2)",
            "observed  live bytes after each repetition, from the first: 0, 12, 24, 36, 48, 60",
            "because   a float32 tensor [[]3] created on line * stays per repetition; float32 tensor*",
            "again     pytest \"test_it.py::test_a_global\"",
            "Net.history keeps 64 B per repetition alive [[]leak-graph]",
            "where     Net.forward, test_it.py:*: self.history.append(h)",
            "fixture cache keeps 8 B per repetition alive [[]leak-tensors]",
            "observed  live bytes after each repetition, from the first: 0, 8, 16",
            "again     pytest \"test_it.py::test_a_fixture[[]2]\"",
            "TestMethods.seen keeps 20 B per repetition alive [[]leak-tensors]",
            "body gets 1 more hook with every repetition [[]leak-hooks]",
        ]
    )  # fmt: skip
    assert "_pytest" not in "\n".join(result.outlines)  # no holder of pytest's own is named


def test_what_does_not_grow_passes(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    @pytest.mark.leak_free
    def test_nothing_is_kept(net):
        net.keeps = False
        optimizer = torch.optim.Adam(net.parameters())  # its state lives as long as the body
        net(torch.randn(torch.randint(1, 9, ()), 4)).sum().backward()  # the same number each time
        optimizer.step()

    @pytest.mark.leak_free
    def test_a_cycle():
        knot = [torch.ones(3) * 2]
        knot.append(knot)

    @pytest.mark.leak_free
    def test_a_patch(monkeypatch):
        monkeypatch.setattr(nn, "patched", torch.ones(3) * 2, raising=False)

    @pytest.mark.leak_free
    def test_a_full_cache():
        if len(KEPT) < 4:
            KEPT.append(torch.ones(3) * 2)

    @pytest.mark.leak_free(allow="1 KiB")
    def test_what_is_allowed():
        KEPT.append(torch.ones(3) * 2)

    @pytest.mark.leak_free
    def test_skips():
        pytest.skip("here")

    TOLD = []

    @pytest.mark.leak_free
    @pytest.mark.xfail(strict=True, raises=ZeroDivisionError)
    def test_xfails():
        torch.ones(1) + 1 / 0

    def test_is_not_repeated():
        TOLD.append(1)
        assert len(TOLD) == 1
        """,
    )
    result.assert_outcomes(passed=6, skipped=1, xfailed=1)


def test_failures_of_the_body_are_its_own(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
    @pytest.mark.leak_free
    def test_fails():
        assert torch.ones(3).sum() == 2

    @pytest.mark.leak_free
    def test_fails_when_repeated():
        KEPT.append(1)
        assert torch.ones(1) and len(KEPT) < 4

    @pytest.mark.leak_free
    def test_makes_no_tensor():
        pass
        """,
        "-W",
        "default",
    )
    result.assert_outcomes(failed=2, passed=1, warnings=1)
    result.stdout.fnmatch_lines(
        [
            ">       assert torch.ones(3).sum() == 2",
            "E       leak_free: repetition 4 of this body, with the same fixtures, raised this; the first did not",
            "*TorchcheckWarning: leak_free: the test creates no tensor*",
        ]
    )
    shown = "\n".join(result.outlines)
    assert "find_leak" not in shown
    assert "in repeating" not in shown


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("@M\nasync def test(): pass", "a coroutine cannot be repeated here; call asyncio.run"),
        (
            "import unittest\nclass TestIt(unittest.TestCase):\n    @M\n    def test(self): pass",
            "a unittest.TestCase runs its tests by itself",
        ),
        (
            "@M\n@pytest.mark.batches(x='B 3')\ndef test(batch): pass",
            "a property runs over many examples",
        ),
        ("@M(repeats=1)\ndef test(): pass", "repeats must be a whole number of at least 2; got 1"),
        ("@M(allow='1 apple')\ndef test(): pass", "apple"),
        ("@M(steps=3)\ndef test(): pass", "the signature is leak_free(repeats=5, warmup=2, allow=0)"),
    ],
)  # fmt: skip
def test_what_cannot_be_repeated_is_a_usage_error(
    pytester: pytest.Pytester, test: str, told: str
) -> None:
    pytester.makepyfile(test_it=f"import pytest\nM = pytest.mark.leak_free\n{test}\n")
    result = pytester.runpytest_inprocess("--strict-markers")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py*@pytest.mark.leak_free: *"])
    assert told in "\n".join(result.errlines)


def test_workers_tell_the_same(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(
        test_it=NET
        + """
    @pytest.mark.leak_free
    @pytest.mark.parametrize("size", [1, 2])
    def test_kept(size):
        KEPT.append(torch.ones(size) * 2)

    @pytest.mark.leak_free
    def test_fine():
        torch.ones(3) * 2
        """
    )
    result = forked.pytest_run(pytester, "-n", "2", "--strict-markers")
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(["*global KEPT of module test_it keeps * B per repetition alive*"])


def test_without_the_plugin_a_declared_marker_is_inert(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmarkers =\n    leak_free: see pytest-torchcheck\n")
    pytester.makepyfile(
        test_it=NET
        + """
    @pytest.mark.leak_free
    def test_kept():
        KEPT.append(torch.ones(3) * 2)
        assert len(KEPT) == 1
        """
    )
    for arguments in (["-p", "no:torchcheck"], ["-p", "no:torchcheck", "-n", "1"]):
        result = forked.pytest_run(pytester, "--strict-markers", *arguments)
        result.assert_outcomes(passed=1)
    result = forked.pytest_run(pytester, "--strict-markers")
    result.assert_outcomes(failed=1)  # declared twice is no conflict
