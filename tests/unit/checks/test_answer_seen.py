"""A model that is trained on the next token and reads it is found without a promise; what is meant to read ahead is not."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_torchcheck import Contract, Finding

WORDS = 23
TEXT = torch.randint(0, WORDS, (5, 10), generator=torch.Generator().manual_seed(4))


class Tagger(nn.Module):
    """Predicts words from those before them; ``both`` reads the text backwards too."""

    def __init__(self, *, both: bool = False, channels_last: bool = True) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 12)
        self.read = nn.GRU(12, 12, batch_first=True, bidirectional=both)
        self.head = nn.Linear(24 if both else 12, WORDS)
        self.channels_last = channels_last

    def forward(self, words: Tensor) -> Any:
        logits = self.head(self.read(self.words(words))[0])
        return {"logits": logits} if self.channels_last else logits.mT


class Corrector(Tagger):
    """Reads a whole source, and the words before; attends from these to the source."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.GRU(12, 6, batch_first=True, bidirectional=True)

    def forward(self, source: Tensor, words: Tensor) -> Any:
        seen = self.source(self.words(source))[0]
        said = self.read(self.words(words))[0]
        return {"logits": self.head(F.scaled_dot_product_attention(said, seen, seen) + said)}


class Prefixed(Tagger):
    """Reads its first four words in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix = nn.GRU(12, 12, batch_first=True)

    def forward(self, words: Tensor) -> Any:
        known = self.words(words)
        ahead = self.prefix(known[:, :4].flip(1))[0].flip(1)
        return {
            "logits": self.head(self.read(torch.cat([known[:, :4] + ahead, known[:, 4:]], 1))[0])
        }


def entropy(o: Any, y: Tensor) -> Tensor:
    logits = o["logits"].mT if isinstance(o, dict) else o
    return F.cross_entropy(logits, y, ignore_index=-100)


def judged(model: Any, inputs: Any, targets: Tensor, **declared: Any) -> Finding:
    contract = Contract(model=model, batch=(inputs, targets), loss=entropy, **declared)
    (found,) = contract.check(["label-shift"]).findings
    return found


def test_a_text_that_is_read_backwards_holds_the_answer() -> None:
    for form in (True, False):
        model = Tagger(both=True, channels_last=form)
        found = judged(model, (TEXT[:, :-1],), TEXT[:, 1:].contiguous())
        assert (found.status, found.code) == ("violated", "future-leak")
        assert "reads it" in found.summary
        assert found.location is not None
        assert "self.read(" in found.location.text


def test_a_text_that_is_read_forwards_does_not() -> None:
    found = judged(Tagger(), (TEXT[:, :-1],), TEXT[:, 1:].contiguous())
    assert found.status == "passed"


def test_a_source_that_has_the_answer_is_meant_to_be_read() -> None:
    found = judged(Corrector(), (TEXT[:, :-1].clone(), TEXT[:, :-1]), TEXT[:, 1:].contiguous())
    assert found.status == "passed"


def test_a_prefix_that_is_not_trained_may_be_read_in_both_directions() -> None:
    targets = TEXT[:, 1:].clone()
    targets[:, :4] = -100
    assert judged(Prefixed(), (TEXT[:, :-1],), targets).status == "passed"


def test_a_model_that_fills_in_words_reads_both_sides() -> None:
    masked = TEXT.clone()
    masked[:, ::4] = 0
    found = judged(Tagger(both=True), (masked,), TEXT)
    assert found.status in ("passed", "not-applicable")
