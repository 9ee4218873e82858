"""One batch that is not learnt."""

from __future__ import annotations

from .explainer import Explainer, Maybe, One

constant = One("diagnosis.training.overfitting:constant", "loss-constant")
crawling = One("diagnosis.training.overfitting:crawling", "optimizer-crawls", doubtful=True)
climbing = One("diagnosis.training.overfitting:climbing", "optimizer-climbs")
hindrance = Explainer[str | None]("diagnosis.training.overfitting:hindrance")
stuck = Maybe("diagnosis.training.overfitting:stuck", "overfit-blind overfit-stuck")
