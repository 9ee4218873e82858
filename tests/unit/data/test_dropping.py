"""Fields that a collate function cuts off where another is long; gates, tails, options and crops are sound."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_torchcheck import Contract, Finding

MOST = 20


class Rows(torch.utils.data.Dataset[Any]):
    """Questions of 4 to 37 tokens, answers of 3 to 5, and whether the answer is to be used."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, place: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(place)
        question = torch.randint(1, 50, (4 + 3 * place,), generator=generator).tolist()
        answer = torch.randint(1, 50, (3 + place % 3,), generator=generator).tolist()
        return {"question": question, "answer": answer, "used": place < 8}


def joined(rows: list[list[int]], labels: list[list[int]]) -> dict[str, torch.Tensor]:
    def padded(values: list[list[int]], pad: int) -> torch.Tensor:
        width = max(map(len, values))
        return torch.tensor([v + [pad] * (width - len(v)) for v in values])

    return {"ids": padded(rows, 0), "labels": padded(labels, -100)}


def encoded(row: dict[str, Any]) -> tuple[list[int], list[int]]:
    question, answer = row["question"], row["answer"]
    return question + answer, [-100] * len(question) + answer


def right(rows: list[Any]) -> Any:
    made = [encoded(row) for row in rows]
    return joined([ids[:MOST] for ids, _ in made], [labels[:MOST] for _, labels in made])


def left(rows: list[Any]) -> Any:
    made = [encoded(row) for row in rows]
    return joined([ids[-MOST:] for ids, _ in made], [labels[-MOST:] for _, labels in made])


def whole(rows: list[Any]) -> Any:
    made = [encoded(row) for row in rows]
    return joined([ids for ids, _ in made], [labels for _, labels in made])


def gated(rows: list[Any]) -> Any:
    answers = [row["answer"] if row["used"] else [1] for row in rows]
    return joined([row["question"][:MOST] for row in rows], answers)


def optional(rows: list[Any]) -> Any:
    """The answer is a hint here, which is given where there is room; the question is learned."""
    ids = [(row["question"] + row["answer"])[:MOST] for row in rows]
    return joined(ids, ids)


def unread(rows: list[Any]) -> Any:
    ids = [row["question"][:MOST] for row in rows]
    return joined(ids, ids)


def random(rows: list[Any]) -> Any:
    made = [encoded(row) for row in rows]
    starts = [int(torch.randint(0, max(len(ids) - MOST, 0) + 1, ())) for ids, _ in made]
    cuts = [slice(start, start + MOST) for start in starts]
    ids = [ids[cut] for (ids, _), cut in zip(made, cuts, strict=True)]
    return joined(ids, [labels[cut] for (_, labels), cut in zip(made, cuts, strict=True)])


def judged(collate: Any) -> Finding:
    contract = Contract(dataset=Rows(), loader={"batch_size": 4, "collate_fn": collate})
    (found,) = contract.check(["collate-pairing"]).findings
    return found


def test_answers_that_long_questions_push_out_are_found_with_the_line() -> None:
    found = judged(right)
    assert (found.status, found.code) == ("violated", "collate-drops-field")
    assert found.location is not None
    assert "ids[:MOST]" in found.location.text
    assert "'question' cut to its first entry" in found.because


def test_a_hint_that_does_not_fit_is_at_most_suspicious() -> None:
    assert judged(optional).status == "suspicious"


@pytest.mark.parametrize("collate", [left, whole, gated, unread, random])
def test_sound_collate_functions_pass(collate: Any) -> None:
    assert judged(collate).status in ("passed", "not-applicable")
