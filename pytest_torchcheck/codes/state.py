"""What a model registers, saves, copies and ties."""

from __future__ import annotations

from ..findings import Location
from .explainer import Each, Explainer, Maybe, One

check_copy = Each("diagnosis.copies:check_copy", "copy-depends copy-differs copy-shares not-copied")
check_pickle = Each("diagnosis.copies:check_pickle", "not-picklable pickle-differs")

attribute_line = Explainer[Location | None]("diagnosis.entries.devices:attribute_line")

placed_by_hand = Explainer[Location | None]("diagnosis.placement:placed_by_hand")

made_in_forward = Each("diagnosis.registration:made_in_forward", "parameter-late", doubtful=True)
repeated = Each("diagnosis.registration:repeated", "module-repeated")
unregistered = One("diagnosis.registration:unregistered", "module-hidden")

explain_lost = One("diagnosis.state:explain_lost", "state-lost", doubtful=True)

check_ties = Each("diagnosis.ties:check_ties", "tie-missing tie-unknown")

drawn_anew = Each("diagnosis.unsaved:drawn_anew", "state-lost")
lost_by_training = Maybe("diagnosis.unsaved:lost_by_training", "state-unsaved")
