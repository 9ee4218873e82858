"""What tests ask for: the fixture, instances per device, and properties over batches."""

from __future__ import annotations

from typing import Any

import hypothesis
import pytest


def test_the_fixture_knows_its_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest, torch

        def test_default(torchcheck):
            assert (torchcheck.device, torchcheck.dtype, torchcheck.seed) == (torch.device("cpu"), torch.float32, 7)
            assert torchcheck.examples is None

        @pytest.mark.torchcheck(seed=3, examples=4)
        def test_marked(torchcheck):
            assert (torchcheck.seed, torchcheck.examples) == (3, 4)

        @pytest.mark.torchcheck(dtypes=(torch.float64, "bfloat16"))
        class TestGroup:
            def test_instances(self, torchcheck, request):
                assert str(torchcheck.dtype).removeprefix("torch.") in request.node.name
                assert torchcheck.batch(x="B 3").x.dtype == torchcheck.dtype

        @pytest.mark.torchcheck(devices=("cpu",))
        @pytest.mark.parametrize("n", [1, 2])
        def test_both(torchcheck, n):
            assert torchcheck.device.type == "cpu"

        def test_wrong(torchcheck):
            with pytest.raises(AttributeError, match="it has device, dtype, seed"):
                torchcheck.asert_updates
        """
    )
    result = pytester.runpytest_inprocess("-v", "--torchcheck-seed=7", "--strict-markers")
    result.assert_outcomes(passed=7)
    result.stdout.fnmatch_lines(
        [
            "*test_instances[[]cpu-float64[]] PASSED*",
            "*test_instances[[]cpu-bfloat16[]] PASSED*",
            "*test_both[[]cpu-1[]] PASSED*",
        ]
    )


def test_instances_of_absent_devices_stay_as_skips(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=0)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.torchcheck(devices=("cpu", "cuda"))
        def test(torchcheck):
            assert torchcheck.device.type == "cpu"
        """
    )
    result = pytester.runpytest_inprocess("-v")
    result.assert_outcomes(passed=1, skipped=1)
    result.stdout.fnmatch_lines(["*test[[]cpu[]] PASSED*", "*test[[]cuda[]] SKIPPED*"])
    pytester.runpytest_inprocess("--torchcheck-devices=cpu").assert_outcomes(passed=1)


def test_a_batch_is_drawn_from_the_seed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        from pytest_torchcheck import Labels

        def test(torchcheck):
            made = torchcheck.batch(x="B T 4", targets=Labels("B", classes=3), sizes={"T": (2, 9)})
            again = torchcheck.batch(x="B T 4", targets=Labels("B", classes=3), sizes={"T": (2, 9)})
            other = torchcheck.batch(x="B T 4", targets=Labels("B", classes=3), sizes={"T": (2, 9)}, seed=1)
            assert torch.equal(made.x, again.x)
            assert made.x.shape != other.x.shape or not torch.equal(made.x, other.x)
            assert made.x.shape[0] == made.targets.shape[0] == made.sizes["B"]
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_assertions_get_the_runs_device_and_seed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_torchcheck import assertions

    asked: list[dict[str, Any]] = []

    def assert_updates(
        model: Any, batch: Any, *, seed: int = 0, device: str | None = None, **fields: Any
    ) -> None:
        asked.append({"seed": seed, "device": device, **fields})

    monkeypatch.setattr(assertions, "assert_updates", assert_updates)
    pytester.makepyfile(
        """
        import pytest

        def test_plain(torchcheck):
            torchcheck.assert_updates(None, None)
            torchcheck.assert_updates(None, None, seed=1, device="meta")

        @pytest.mark.torchcheck(dtypes="float64", seed=5)
        def test_instance(torchcheck):
            torchcheck.assert_updates(None, None)
        """
    )
    pytester.runpytest_inprocess("--torchcheck-seed=9").assert_outcomes(passed=2)
    assert asked == [
        {"seed": 9, "device": "cpu"},
        {"seed": 1, "device": "meta"},
        {"seed": 5, "device": "cpu", "dtypes": ("float64",)},
    ]


def test_a_real_assertion_fails_with_its_diagnosis(pytester: pytest.Pytester, models: Any) -> None:
    models(
        """
        def test_cut(torchcheck):
            batch = (torch.randn(8, 4), torch.randint(3, (8,)))
            torchcheck.assert_gradients(Net(cut=True), batch, loss=F.cross_entropy)

        def test_sound(torchcheck):
            batch = (torch.randn(8, 4), torch.randint(3, (8,)))
            torchcheck.assert_gradients(Net(), batch, loss=F.cross_entropy)
        """
    )
    result = pytester.runpytest_inprocess("--torchcheck-json=found.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*torchcheck.assert_gradients(Net(cut=True)*",
            "E*first.weight*[[]grad-none[]]*",
            'E *again *pytest "test_models.py::test_cut"',
        ]
    )
    assert "def _hold" not in result.stdout.str()
    import json

    document = json.loads((pytester.path / "found.json").read_text())
    [contract] = document["contracts"]
    assert contract["node"] == "test_models.py::test_cut"
    assert contract["findings"][0]["code"] == "grad-none"


def test_batches_makes_a_property_of_a_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from pytest_torchcheck import Labels

        seen = []

        @pytest.fixture(scope="module")
        def scale():
            return 2

        @pytest.mark.batches(x="B T", y=Labels("B", classes=3), sizes={"T": (1, 64)})
        @pytest.mark.parametrize("n", [1, 2])
        def test_any_length(batch, scale, n, torchcheck):
            seen.append(tuple(batch.x.shape))
            assert batch.x.shape == (batch.sizes["B"], batch.sizes["T"])
            assert batch.y.shape == (batch.sizes["B"],) and int(batch.y.max()) < 3
            assert scale == 2 and torchcheck.device == batch.x.device

        def test_many():
            assert len(seen) == 40 and len(set(seen)) > 10

        @pytest.mark.batches(x="B 4")
        class TestGroup:
            def test_inherits(self, batch):
                assert batch.x.shape[1] == 4

            def test_needs_none(self):
                pass
        """
    )
    result = pytester.runpytest_inprocess(
        "--torchcheck-examples=20", "--strict-markers", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=5)


def test_a_failure_tells_seed_and_sizes_of_its_batch(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_one(torchcheck):
            torchcheck.batch(x="B T", sizes={"B": 3, "T": 2}, seed=4)
            torchcheck.batch(x="B T", sizes={"B": 3, "T": 7})
            assert False

        @pytest.fixture
        def prepared(torchcheck):
            torchcheck.batch(x="B T", sizes={"B": 2, "T": 2})
            raise RuntimeError

        def test_prepared(prepared):
            pass

        @pytest.mark.torchcheck(seed=8)
        @pytest.mark.batches(x="B T", sizes={"B": (1, 16), "T": (1, 64)})
        def test_many(batch):
            assert batch.sizes["T"] < 10

        def test_none(torchcheck):
            assert False

        def test_passes(torchcheck):
            torchcheck.batch(x="B T")
        """
    )
    result = pytester.runpytest_inprocess("--torchcheck-seed=5", "-p", "no:randomly")
    result.assert_outcomes(failed=3, errors=1, passed=1)
    assert [line for line in result.outlines if line.startswith("the last batch")] == [
        "the last batch: seed 5, sizes B=2, T=2",
        "the last batch: seed 5, sizes B=3, T=7",
        "the last batch: seed 8, sizes B=1, T=10",  # the one that Hypothesis shows
    ]


def test_a_failing_batch_is_shrunk_and_the_seed_repeats_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import hypothesis

        hypothesis.settings.register_profile("fresh", database=None)
        hypothesis.settings.load_profile("fresh")
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.batches(x="B T", sizes={"B": (1, 16), "T": (1, 64)}, edges=False)
        def test(batch):
            print("drawn", tuple(batch.x.shape))
            assert batch.sizes["T"] < 10
        """
    )
    first = pytester.runpytest_inprocess("--torchcheck-seed=5")
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(
        ["*assert 10 < 10*", "*batch=Batch(x: float32[[]1, 10[]], all zero)*"]
    )

    def drawn(seed: int) -> list[str]:
        result = pytester.runpytest_inprocess(f"--torchcheck-seed={seed}")
        return [line for line in result.outlines if line.startswith("drawn")]

    assert drawn(5) == drawn(5) != drawn(6)
    hypothesis.settings.load_profile("default")


@pytest.mark.parametrize(
    ("test", "told"),
    [
        (
            "@pytest.mark.batches(x='B T')\ndef test(x): pass",
            "test_it.py:3: test: @pytest.mark.batches: the test takes no argument `batch`",
        ),
        (
            "@pytest.mark.batches\ndef test(batch): pass",
            "test_it.py:3: test: @pytest.mark.batches: names no spec",
        ),
        ("@pytest.mark.batches(x='B (')\ndef test(batch): pass", "test_it.py:3: test: *"),
        (
            "@pytest.mark.batches(x='B T', sizes={'T': (5, 1)})\ndef test(batch): pass",
            "test_it.py:3: test: *T*5*",
        ),
        (
            (
                "import hypothesis.strategies as st\nfrom hypothesis import given\n"
                "@pytest.mark.batches(x='B T')\n@given(batch=st.none())\ndef test(batch): pass"
            ),
            "*test: @pytest.mark.batches and @given both generate the arguments of the test; use one of them",
        ),
    ],
)
def test_a_wrong_property_is_a_collection_error_with_its_place(
    pytester: pytest.Pytester, test: str, told: str
) -> None:
    pytester.makepyfile(test_it=f"import pytest\n\n{test}\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"*{told}*"])


def test_given_beside_the_fixture(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from hypothesis import given, settings
        from pytest_torchcheck.strategies import batches

        @settings(max_examples=5)
        @given(batch=batches(x="B 3"))
        def test_by_hand(torchcheck, batch):
            assert torchcheck.place(batch).x.shape[1] == 3
        """
    )
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_a_tests_own_settings_of_hypothesis_count(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest
        from hypothesis import settings

        seen = []

        @pytest.mark.batches(x="B 3")
        @settings(max_examples=3)
        def test_own(batch):
            seen.append(1)

        def test_count():
            assert len(seen) == 3
        """
    )
    pytester.runpytest_inprocess("-p", "no:randomly").assert_outcomes(passed=2)
