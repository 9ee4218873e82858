from __future__ import annotations

import pytest

from pytest_torchcheck.catalogue import catalogue
from pytest_torchcheck.codes.folding import RULES, fold
from pytest_torchcheck.findings import Culprit, Finding, Location, Report


def found(key, *names, line=1, status="violated", kind="parameter", **fields):
    check, code = key.split("/")
    place = None if line is None else Location(file="/net.py", line=line)
    return Finding(
        check=check,
        code=code,
        status=status,
        summary=f"{key} {names}",
        culprits=tuple(Culprit(kind=kind, name=name) for name in names),
        location=place,
        device=fields.pop("device", "cpu"),
        dtype=fields.pop("dtype", "float32"),
        contract=fields.pop("contract", "net"),
        **fields,
    )


def roots(*findings):
    return [f.root for f in fold(findings)]


def test_a_detached_backbone_is_one_cause():
    cut = found("gradients-exist/grad-none", "backbone.0.weight", "backbone.0.bias", line=9)
    report = Report(
        contract="net",
        findings=fold(
            [
                cut,
                found("weights-update/weight-static", "backbone.0.weight", "backbone.0.bias", line=3),
                found("input-influence/input-ignored", "x", kind="input", line=9),
                found("dead-modules/module-idle", "backbone.0", kind="module", line=4, status="suspicious",
                      evidence={"parameters": ["backbone.0.bias"]}),
                found("overfit/overfit-stuck", "loss", kind="loss", line=30),
            ]
        ),
    )  # fmt: skip
    assert report.causes == (cut,)
    assert [f.root for f in report.findings[1:]] == ["gradients-exist/grad-none"] * 4


def test_a_parameter_that_is_not_covered_stays_its_own_cause():
    cut = found("gradients-exist/grad-none", "backbone.weight")
    static = found("weights-update/weight-static", "backbone.weight", "head.weight")
    assert roots(cut, static) == [None, None]


def test_a_module_covers_its_parameters_but_not_a_namesake():
    dead = found("dead-modules/module-unused", "encoder", kind="module")
    inside = found("weights-update/weight-static", "encoder.proj.weight")
    beside = found("weights-update/weight-static", "encoder2.proj.weight")
    assert roots(dead, inside, beside) == [None, dead.key, None]


def test_the_cause_may_be_found_after_its_consequence():
    stuck = found("overfit/overfit-stuck", "loss", kind="loss")
    cut = found("gradients-exist/grad-none", "a.weight")
    assert roots(stuck, cut) == [cut.key, None]


def test_chains_lead_to_the_first_cause():
    missing = found("optimizer-coverage/optimizer-missing", "a.weight")
    static = found("weights-update/weight-static", "a.weight")
    stuck = found("overfit/overfit-stuck", "loss", kind="loss")
    assert roots(missing, static, stuck) == [None, missing.key, missing.key]


def test_a_measured_reason_of_overfit_is_not_folded_away():
    cut = found("gradients-exist/grad-none", "a.weight")
    assert roots(cut, found("overfit/overfit-blind", "output", kind="output", line=7)) == [
        None,
        None,
    ]


def test_dropout_in_eval_explains_what_compares_evaluations():
    random = found("eval-determinism/random-in-eval", "F.dropout", kind="call", line=5)
    others = [
        found("batch-independence/samples-mixed", "net", kind="module", line=6),
        found("state-dict-roundtrip/state-lost", "net", kind="module", line=None),
        found("causality/future-leak", "net", kind="module", line=8),
    ]
    assert roots(*others, random) == [random.key] * 3 + [None]
    assert roots(others[0], others[2]) == [None, None]


def test_non_finite_forward():
    nan = found("gradients-finite/non-finite-forward", "attn", kind="module")
    assert roots(nan, found("overfit/overfit-stuck", "loss", kind="loss"),
                 found("output-spec/output-range", "output", kind="output")) == [None, nan.key, nan.key]  # fmt: skip


def test_an_unregistered_tensor():
    plain = found("unregistered-tensors/tensor-unregistered", "head.grid", kind="tensor", line=4)
    stays = found("device-portability/cpu-tensor", "head.grid", kind="tensor", line=4)
    other = found("device-portability/cpu-factory", "Net.forward", kind="call", line=20)
    assert roots(plain, stays, other) == [None, plain.key, None]


def test_loss_and_labels():
    softmax = found("loss-input/double-softmax", "F.softmax", kind="call")
    labels = found("label-range/label-range", "targets", kind="target")
    stuck = found("overfit/overfit-stuck", "loss", kind="loss")
    start = found("loss-at-start/loss-at-start", "head.weight")
    assert roots(softmax, stuck, start) == [None, softmax.key, softmax.key]
    assert roots(labels, stuck) == [None, labels.key]
    assert roots(softmax, labels) == [None, None]
    visible = found("label-shift/visible-labels", "labels", kind="target")
    padded = found("padding-loss/padding-counted", "loss", line=2, kind="loss")
    assert roots(padded, visible) == [visible.key, None]


def test_the_same_fact_on_other_devices_and_from_other_checks():
    crash = found("backward/matmul-shapes", "fc", kind="module", line=12)
    again = found("backward/matmul-shapes", "fc", kind="module", line=12, dtype="float64")
    sizes = found("batch-sizes/matmul-shapes", "fc", kind="module", line=12)
    elsewhere = found("batch-sizes/matmul-shapes", "fc2", kind="module", line=13)
    assert roots(crash, again, sizes, elsewhere) == [None, crash.key, crash.key, None]


def test_an_exception_follows_from_no_difference():
    random = found("eval-determinism/random-in-eval", "F.dropout", kind="call", line=5)
    crash = found(
        "batch-independence/view-size", "net", kind="module", line=6, evidence={"traceback": []}
    )
    assert roots(random, crash) == [None, None]
    loss = found("loss-sound/loss-not-scalar", "loss", kind="loss", line=5)
    crash = found(
        "backward/loss-not-scalar", "loss", kind="loss", line=90, evidence={"traceback": []}
    )
    assert roots(loss, crash) == [None, loss.key]


def test_two_facts_of_one_check_stay_two():
    a = found("gradients-exist/grad-none", "a.weight", line=3)
    b = found("gradients-exist/grad-none", "b.weight", line=3)
    assert roots(a, b) == [None, None]


def test_the_same_line_alone_links_nothing():
    unused = found("gradients-exist/grad-none", "gate", line=5)
    init = found("initialisation/never-written", "gate", line=5)
    assert roots(unused, init) == [None, None]


def test_only_failures_are_causes_and_only_within_a_contract():
    maybe = found("loss-input/loss-stretched", "relu", kind="call", status="suspicious")
    stuck = found("overfit/overfit-stuck", "loss", kind="loss")
    assert roots(maybe, stuck) == [None, None]
    cut = found("gradients-exist/grad-none", "a.weight", contract="other")
    assert roots(cut, stuck) == [None, None]
    passed = found("weights-update/held", status="passed")
    blocked = found("overfit/blocked", status="inconclusive").replace(root="backward/crash")
    assert roots(found("gradients-exist/grad-none", "a"), passed, blocked) == [
        None,
        None,
        "backward/crash",
    ]


def test_a_root_given_by_a_check_stays_if_it_was_found():
    plain = found(
        "unregistered-tensors/tensor-unregistered", "grid", root="device-portability/cpu-tensor"
    )
    stays = found("device-portability/cpu-tensor", "grid")
    assert roots(plain, stays) == [stays.key, None]
    assert roots(plain) == [None]


def test_nothing_leads_in_a_circle():
    zero = found("gradients-exist/grad-zero", "a.weight", "b.weight")
    dead = found("dead-modules/module-unused", "a.weight", "b.weight")
    for order in ((zero, dead), (dead, zero)):
        result = [f.root for f in fold(order)]
        assert result.count(None) == 1
    both = fold([zero, dead, found("overfit/overfit-stuck", "loss", kind="loss")])
    cause = next(f for f in both if f.root is None)
    assert {f.root for f in both} == {None, cause.key}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.why.replace(" ", "-")[:40])
def test_every_rule_reads_well(rule):
    assert rule.why[0].islower() or rule.why.startswith("NaN")
    assert all(pattern.count("/") == 1 for pattern in (*rule.causes, *rule.follows))


def test_rules_name_checks_that_exist():
    names = {
        pattern.partition("/")[0] for rule in RULES for pattern in (*rule.causes, *rule.follows)
    }
    assert names - set(catalogue()) == {"*"}


def test_zeros_behind_nan_and_a_round_trip_through_numpy():
    nan = found("gradients-finite/non-finite-forward", "scores", kind="module", line=4)
    zero = found("gradients-exist/grad-zero", "query.weight", line=9)
    blind = found("input-influence/input-ignored", "x", kind="input", line=2)
    assert roots(zero, nan, blind) == [nan.key, None, nan.key]
    overflow = found("gradients-finite/non-finite-gradient", "scores", kind="module", line=4)
    assert roots(zero, overflow) == [None, None]
    cut = found("gradients-exist/grad-none", "query.weight", line=7)
    host = found("device-portability/numpy-on-device", "Net.forward", kind="call", line=7)
    other = found("device-portability/numpy-on-device", "Net.forward", kind="call", line=8)
    assert roots(host, other, cut) == [cut.key, None, None]


def test_two_functions_with_an_input_of_the_same_name_are_two_causes():
    def wrong(key, name):
        culprits = (Culprit(kind="function", name=name), Culprit(kind="input", name="x"))
        return found(key).replace(culprits=culprits)

    first = wrong("gradcheck/gradcheck-scale", "Square")
    assert roots(first, wrong("custom-ops/gradcheck-sign", "my::op")) == [None, None]
    assert roots(first, wrong("double-backward/double-backward-wrong", "Cube")) == [None, None]
    same = wrong("double-backward/double-backward-wrong", "Square")
    assert roots(first, same) == [None, "gradcheck/gradcheck-scale"]


def test_what_is_suspicious_follows_from_what_is_suspicious():
    """A violation does not: it is a fact of its own, whatever else looks odd."""
    meant = found("gradients-exist/grad-none", "table.weight", status="suspicious")
    static = found("weights-update/weight-static", "table.weight", status="suspicious")
    assert roots(meant, static) == [None, meant.key]
    assert roots(static, meant) == [meant.key, None]
    assert roots(meant, static.replace(status="violated")) == [None, None]


def test_a_forward_that_changes_its_answers_is_one_cause():
    keeps = found("eval-purity/eval-not-repeatable", "seen", kind="tensor", line=7)
    others = (
        found("batch-sizes/batch-size-dependent", "output", kind="output", line=7),
        found("padding-invariance/padding-leak", "ids", kind="input", line=7),
        found("state-dict-roundtrip/state-unsaved", "seen", kind="tensor", line=7),
    )
    assert roots(keeps, *others) == [None, *[keeps.key] * 3]
    elsewhere = found("state-dict-roundtrip/state-unsaved", "steps", kind="tensor", line=31)
    assert roots(keeps, elsewhere) == [None, None]


def test_one_wrong_number_or_layer_is_one_cause():
    hidden = found("registration/module-hidden", "blocks", kind="module", line=19)
    mixed = found("batch-independence/samples-mixed", "output", kind="output", line=12)
    stuck = found("overfit/overfit-stuck", "loss", kind="loss", line=30)
    assert roots(hidden, mixed) == [None, hidden.key]
    assert roots(mixed, stuck) == [None, mixed.key]
    sizes = found("batch-sizes/view-size", "output", kind="output", line=26)
    shape = found("output-spec/output-shape", "output", kind="output", line=26)
    assert roots(sizes, shape) == [None, sizes.key]
    assert roots(sizes, shape.replace(location=None)) == [None, None]
    head = found("label-range/label-classes", "head", kind="module", line=21)
    assert roots(head, shape) == [None, head.key]
