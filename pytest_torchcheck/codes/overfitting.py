"""One batch that is not learnt."""

from __future__ import annotations

from .explainer import Explainer, Maybe, One

constant = One("diagnosis.overfitting:constant", "loss-constant")
crawling = One("diagnosis.overfitting:crawling", "optimizer-crawls", doubtful=True)
hindrance = Explainer[str | None]("diagnosis.overfitting:hindrance")
stuck = Maybe("diagnosis.overfitting:stuck", "overfit-blind overfit-stuck")
