"""Two training scripts under contract, unchanged: a few lines beside each.

Run with ``pytest --torchcheck examples``.
"""

from __future__ import annotations

import train_digits as digits
import train_sonnets as sonnets

from pytest_torchcheck import Contract, promises

digits_script = Contract(
    model=digits.make_model,
    batch=digits.load(train=True),
    loss=digits.F.cross_entropy,
    optimizer=digits.make_optimizer,
    train_step=digits.train_step,
    dataset={"train": digits.load(train=True), "eval": digits.load(train=False)},
)

sonnets_script = Contract(
    model=sonnets.CharacterModel,
    batch=sonnets.sample,
    loss=sonnets.loss_of,
    optimizer=sonnets.make_optimizer,
    train_step=sonnets.train_step,
    promises=(promises.Causal(), promises.ClipsGradients(1.0)),
)
