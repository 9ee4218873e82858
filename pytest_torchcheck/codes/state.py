"""What a model registers, saves, copies and ties."""

from __future__ import annotations

from ..findings import Location
from .explainer import Each, Explainer, Maybe, One
from .rule import COMPARED, STUCK, rule

copied_after_training = Maybe("diagnosis.stored.leaks:copied_after_training", "copy-after-training")
held_by_cache = Maybe("diagnosis.stored.leaks:held_by_cache", "copy-held")

attribute_line = Explainer[Location | None]("diagnosis.entries.devices:attribute_line")

placed_by_hand = Explainer[Location | None]("diagnosis.outputs.placement:placed_by_hand")

made_in_forward = Each(
    "diagnosis.stored.registration:made_in_forward", "parameter-late", doubtful=True
)
repeated = Maybe("diagnosis.stored.registration:repeated", "module-repeated")
unregistered = One("diagnosis.stored.registration:unregistered", "module-hidden")

loads_nothing = One("diagnosis.stored.loads:loads_nothing", "loads-nothing")
explain_lost = One("diagnosis.stored.checkpoints:explain_lost", "state-lost", doubtful=True)

drawn_anew = Each("diagnosis.stored.unsaved:drawn_anew", "state-lost")
stale_after_load = One("diagnosis.outputs.kept:stale_after_load", "stale-after-load", doubtful=True)
lost_by_training = Maybe("diagnosis.stored.unsaved:lost_by_training", "state-unsaved")

softmax_axis = One("diagnosis.lines.axis_order:softmax_axis", "softmax-axis")
uncounted = One("diagnosis.lines.axis_order:uncounted", "weights-uncounted", doubtful=True)
regrouped = One("diagnosis.lines.axis_order:regrouped", "softmax-axis", doubtful=True)
axes_swapped = One("diagnosis.lines.axis_order:axes_swapped", "axes-swapped")
idle_choice = One("diagnosis.lines.unread_results:idle_choice", "result-unread")
uncalled_backward = One("diagnosis.stored.registration:uncalled_backward", "backward-uncalled")
overwriting = One("diagnosis.lines.replaced:overwriting", "result-unread")
replaced_sum = One("diagnosis.lines.replaced:replaced_sum", "result-unread")
only_last = One("diagnosis.lines.unread_results:only_last", "result-unread")
unread_result = One("diagnosis.lines.unread_results:result", "result-unread")
unread_part = One("diagnosis.lines.sliced:unread_part", "features-unread")
unread_rows = One("diagnosis.lines.unread_results:rows", "features-unread", doubtful=True)

ENTAILS = (
    rule(
        "registration/*",
        "optimizer-coverage/* gradients-exist/* weights-update/* dead-modules/* "
        "unregistered-tensors/* device-portability/* "
        "dtype-conversion/* state-dict-roundtrip/* tied-weights/* mode-flags/* eval-determinism/*",
        "overlap",
        "unregistered modules and tensors are not moved, saved, switched or trained",
    ),
    rule(
        "registration/module-made-in-forward",
        "eval-determinism/random-in-eval",
        "line",
        "a layer that each forward creates has random weights in evaluation too",
    ),
    rule(
        "registration/parameter-late",
        "*/state-dict-keys eval-purity/eval-remembers",
        "overlap",
        "a layer that the first forward creates is in no newly built model",
    ),
    rule("registration/module-hidden", STUCK, "model", "unregistered layers are not trained"),
    rule(
        "registration/module-hidden",
        COMPARED,
        "model",
        "unregistered layers stay in training mode in evaluation",
    ),
    rule(
        "unregistered-tensors/*",
        "device-portability/* dtype-conversion/* state-dict-roundtrip/*",
        "overlap",
        "a tensor that is not a buffer is not moved, converted or saved",
    ),
    rule(
        "dead-modules/*",
        "gradients-exist/* weights-update/*",
        "within",
        "a module that does not take part receives no gradient",
    ),
    rule(
        "weighted-means/softmax-axis",
        "causality/future-leak padding-invariance/padding-leak cached-steps/cache-differs",
        "model",
        "a softmax over the queries makes each position depend on the others",
    ),
    rule(
        "axis-order/axes-swapped",
        f"{COMPARED} target-alignment/* cached-steps/cache-differs",
        "model",
        "a view in place of a transpose mixes what stood apart: samples, positions, features",
    ),
    rule(
        "state-dict-roundtrip/state-grows",
        "eval-purity/eval-writes",
        "overlap",
        "a state_dict entry that changed its shape during a forward was written by the forward",
    ),
    rule(
        "*/state-dict-keys",
        "state-dict-roundtrip/state-grows",
        "overlap",
        "a key that a forward adds is missing in a newly built model",
    ),
)
"""What follows from findings of this family."""
