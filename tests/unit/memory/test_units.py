from __future__ import annotations

import pytest

from pytest_torchcheck.text.units import (
    format_bytes,
    format_flops,
    parse_bytes,
    parse_flops,
    parse_share,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (0, 0),
        (4096, 4096),
        (64.0, 64),
        ("17", 17),
        ("17 B", 17),
        ("64 MiB", 64 * 1024**2),
        ("64mib", 64 * 1024**2),
        (" 96 kB ", 96_000),
        ("1.5GB", 1_500_000_000),
        ("1.3 KiB", 1331),
        ("8 GiB", 8 * 1024**3),
        ("1_000 bytes", 1000),
        ("2e3 B", 2000),
        ("9007199254740993 B", 9007199254740993),
    ],
)
def test_bytes_are_read(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "MiB", "64 MB/s", "64 Mb ytes", "-1 MiB", "a lot", -1, 1.5, "0.5 B", float("inf")]
)
def test_bytes_that_are_none_are_refused_with_the_value_and_the_forms_allowed(text):
    with pytest.raises(ValueError, match="memory must") as error:
        parse_bytes(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("value", [None, True, [1], (2, "MiB")])
def test_bytes_of_another_type_are_refused(value):
    with pytest.raises(TypeError, match=r"memory\.activations must be a number or text such as"):
        parse_bytes(value, what="memory.activations")


def test_flops_are_read():
    assert parse_flops("2 GFLOP") == 2 * 10**9
    assert parse_flops("1.5 TFLOPs") == 15 * 10**11
    assert parse_flops(12) == 12
    with pytest.raises(ValueError, match="GFLOP"):
        parse_flops("2 GiB")


def test_shares_are_read():
    assert parse_share("30%") == pytest.approx(0.3)
    assert parse_share(0.25) == 0.25
    for wrong in ("30", "x%", 30, -0.1, float("nan"), "130%"):
        with pytest.raises(ValueError, match="at_least must"):
            parse_share(wrong)
    with pytest.raises(TypeError):
        parse_share(None)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (96 * 1024**2, "96.0 MiB"),
        (-2048, "-2.0 KiB"),
        (108.3 * 1024**3, "108.3 GiB"),
        (3 * 1024**6, "3072.0 PiB"),
    ],
)
def test_bytes_are_written(count, text):
    assert format_bytes(count) == text


def test_what_is_written_can_be_read():
    for count in (1, 1000, 5 * 1024, 123_456_789, 10**12):
        assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.02)
        assert parse_flops(format_flops(count)) == pytest.approx(count, rel=0.02)
