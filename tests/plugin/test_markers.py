"""Markers: what they accept, and how a mistake is told."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_torchcheck.plugin import markers
from pytest_torchcheck.plugin.markers import MarkerError


def bound(name: str, *arguments: Any, **keywords: Any) -> Any:
    return markers.bind(getattr(pytest.mark, name)(*arguments, **keywords).mark)


def test_cuda_binds_what_it_needs() -> None:
    need = bound("cuda", min_gpus=2, memory="8 GiB", capability="9.0", isolated=True)
    assert (need.kind, need.min_gpus, need.memory) == ("cuda", 2, 8 * 2**30)
    assert (need.capability, need.isolated, need.exclusive) == ((9, 0), True, True)
    assert str(need) == "2 cuda devices, 8.0 GiB free, capability 9.0"
    assert bound("cuda").exclusive is False
    assert bound("xpu", 1, 1024).kind == "xpu"
    assert (
        bound("cuda", capability=(8, 0)).capability
        == bound("cuda", capability=8.0).capability
        == (8, 0)
    )


@pytest.mark.parametrize(
    ("name", "keywords", "told"),
    [
        (
            "cuda",
            {"min_gpu": 2},
            "unexpected keyword argument 'min_gpu'; the signature is cuda(min_gpus=1, memory=None",
        ),
        ("cuda", {"min_gpus": 0}, "min_gpus must be a whole number of at least 1; got 0"),
        ("cuda", {"min_gpus": True}, "min_gpus must be a whole number of at least 1; got True"),
        ("cuda", {"memory": "8 GiX"}, "memory must look like"),
        ("cuda", {"memory": [8]}, "memory must be a number or text"),
        ("cuda", {"capability": 8}, 'capability must be (8, 0), "8.0" or 8.0; got 8'),
        ("cuda", {"capability": "new"}, "capability must be"),
        ("cuda", {"isolated": "yes"}, "isolated must be True or False; got 'yes'"),
        ("mps", {"gpus": 1}, "the signature is mps(min_gpus=1"),
        ("batches", {}, "names no spec"),
        ("batches", {"x": "B", "sizes": [1]}, "sizes must map symbols to ranges"),
        (
            "torchcheck",
            {"device": "cpu"},
            "unexpected keyword argument 'device'; the signature is torchcheck(*, devices=()",
        ),
        ("torchcheck", {"devices": ["gpu"]}, "'gpu' is not a device"),
        ("torchcheck", {"dtypes": ["int8"]}, "'int8' is not a valid dtype; choose from float64"),
        ("torchcheck", {"seed": -1}, "seed must be a whole number of at least 0"),
        ("torchcheck", {"examples": 0}, "examples must be a whole number of at least 1"),
    ],
)
def test_a_wrong_argument_says_what_is_allowed(
    name: str, keywords: dict[str, Any], told: str
) -> None:
    with pytest.raises(MarkerError) as caught:
        bound(name, **keywords)
    assert str(caught.value).startswith(f"@pytest.mark.{name}: ")
    assert told in str(caught.value)


def test_a_mistake_is_a_usage_error_that_names_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda(min_gpu=2)
        def test_first():
            pass

        class TestGroup:
            @pytest.mark.torchcheck(devices="gpu")
            @pytest.mark.parametrize("x", [1])
            def test_second(self, x):
                pass

        def test_third():
            pass
        """
    )
    for arguments in ([], ["--co"]):
        result = pytester.runpytest_inprocess(*arguments)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines(
            [
                "ERROR: test_a_mistake*.py:3: test_a_mistake*.py::test_first: @pytest.mark.cuda: *",
                "test_a_mistake*.py:8: test_a_mistake*.py::TestGroup::test_second[[]1[]]: @pytest.mark.torchcheck: *",
            ]
        )
    pytester.runpytest_inprocess("-k", "third").assert_outcomes(passed=1, deselected=2)


def test_marks_of_a_class_and_a_module_count(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=0)
    pytester.makepyfile(
        test_a="""
        import pytest
        pytestmark = pytest.mark.cuda
        def test_module(): pass
        """,
        test_b="""
        import pytest
        @pytest.mark.cuda(min_gpus=2)
        class TestGroup:
            def test_class(self): pass
            @pytest.mark.cuda
            def test_closest(self): pass
        """,
    )
    result = pytester.runpytest_inprocess("-rs")
    result.assert_outcomes(skipped=3)
    result.stdout.fnmatch_lines(
        [
            "SKIPPED [[]1[]] test_a.py:3: needs 1 cuda device; there is no cuda device",
            "SKIPPED [[]1[]] test_b.py:4: needs 2 cuda devices; there is no cuda device",
            "SKIPPED [[]1[]] test_b.py:5: needs 1 cuda device; there is no cuda device",
        ],
    )


def test_cuda_and_not_cuda_split_a_suite(pytester: pytest.Pytester, simulate: Any) -> None:
    simulate(gpus=1)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.cuda
        def test_gpu(): pass

        def test_cpu(): pass

        @pytest.mark.torchcheck(devices=("cpu", "cuda"))
        def test_both(torchcheck):
            assert torchcheck.device.type in ("cpu", "cuda")
        """
    )
    whole = pytester.runpytest_inprocess("--strict-markers")
    whole.assert_outcomes(passed=4)
    pytester.runpytest_inprocess("-m", "cuda").assert_outcomes(passed=2, deselected=2)
    pytester.runpytest_inprocess("-m", "not cuda").assert_outcomes(passed=2, deselected=2)


def test_a_test_marked_skip_is_skipped_for_its_own_reason(
    pytester: pytest.Pytester, simulate: Any
) -> None:
    simulate(gpus=0)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.skip(reason="our own")
        @pytest.mark.cuda
        def test(): pass
        """
    )
    result = pytester.runpytest_inprocess("-rs")
    result.stdout.fnmatch_lines(["SKIPPED*: our own"])
