"""Explanations: what a sentence cites is in the tree, crossings are where they are said to be, and an input
that changes changes what binds."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

import meshwright
from meshwright import units
from meshwright.cli.main import run
from meshwright.cost.numbers import changed, numbers, records
from meshwright.report.explanation import Explanation, request_of
from meshwright.report.plain import story
from meshwright.search import probe
from meshwright.search.probe import HIDES, RESOURCES, Crossing, again

DENSE: dict[str, Any] = {
    "model": "llama-3.1-70b", "cluster": "256xh100", "seq_len": 8192, "global_batch_size": 512,
    "tp": 8, "pp": 4, "recompute": "full",
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "model": "mixtral-8x7b", "cluster": "64xh100", "seq_len": 4096, "global_batch_size": 256,
    "ep": 8, "zero": 1, "recompute": "full",
}  # fmt: skip


@pytest.fixture(scope="module", params=[DENSE, SPARSE], ids=["dense", "sparse"])
def asked(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


@pytest.fixture(scope="module")
def found(asked: dict[str, Any]) -> Explanation:
    return meshwright.explain(**asked)


def test_every_sentence_cites_terms_of_the_tree_with_their_values(found: Explanation) -> None:
    root = found.estimate.evaluation.terms
    assert root is not None
    tree = {path: float(term.value) for path, term in root.walk()}
    for said in found.sentences:
        assert said.text.endswith(".")
        assert said.values
        assert set(said.terms) <= set(tree)
        for name, value in said.values.items():
            if name in tree:
                assert value == pytest.approx(tree[name])


def test_what_binds_is_the_largest_part(found: Explanation) -> None:
    seconds = found.estimate.evaluation.time_s
    assert found.binds[0] == max(seconds, key=lambda name: seconds[name])
    assert found.sentences[0].terms[0] == f"step.time.{found.binds[0]}"


@pytest.mark.parametrize(
    ("change", "term", "resource"),
    [
        ({}, "compute", "flops"),
        ({"overrides": {"scale_out_gbits_s": 4}}, "dp", "scale_out"),
        ({"overrides": {"scale_up_gbytes_s": 4}}, "tp", "scale_up"),
        ({"global_batch_size": 16, "pp": 16}, "bubble", "flops"),
    ],
)
def test_one_input_changes_what_binds(change: dict[str, Any], term: str, resource: str) -> None:
    found = meshwright.explain(**(DENSE | change))
    assert found.binds == (term, resource)
    assert found.sentences[0].terms[0] == f"step.time.{term}"


def test_shares_that_follow_a_speed_are_within_the_step(found: Explanation) -> None:
    assert set(found.leans_on) == set(RESOURCES)
    shares = [moves["step"] / found.estimate.step_time_s for moves in found.leans_on.values()]
    assert all(share > -1e-9 for share in shares)
    assert 0.5 < sum(shares) < 1.001  # overlap makes it less, nothing makes it more


def at(asked: dict[str, Any], field: str, value: float) -> meshwright.Estimate:
    """The plan of `asked` with one field changed, through the public face."""
    changed = dict(asked)
    if field == "global_batch_size":
        changed[field] = int(value)
    else:
        changed["overrides"] = {field.removeprefix("cluster."): value}
    return meshwright.estimate(**changed, nearest=0)


def share(estimate: meshwright.Estimate, part: str) -> float:
    # Crossings are looked for by closed forms, hundreds of them at once.
    return float(estimate.closed_form.time_s[part]) / float(estimate.closed_form.step_time_s)


def turns(found: Explanation) -> list[Crossing]:
    return [one for one in found.crossings if one.at is not None]


def test_communication_hides_from_the_crossing_on(asked: dict[str, Any], found: Explanation) -> None:
    assert turns(found)
    for one in turns(found):
        assert one.at is not None
        assert share(at(asked, one.field, one.at), one.communication) <= HIDES
        if one.field.startswith("cluster.scale_up_size"):
            continue
        step = found.estimate.strategy.dp * found.estimate.strategy.microbatch_size
        before = one.at - max(step, 0.02 * one.at) if one.field == "global_batch_size" else 0.99 * one.at
        if before >= one.low:
            before = before // step * step if one.field == "global_batch_size" else before
            assert share(at(asked, one.field, before), one.communication) > 0.95 * HIDES


def test_crossings_without_a_turn_say_what_holds_everywhere(
    asked: dict[str, Any], found: Explanation
) -> None:
    for one in found.crossings:
        if one.at is None and one.field != "global_batch_size":
            for value in (max(one.low, 0.2), one.high):
                hides = share(at(asked, one.field, value), one.communication) <= HIDES
                assert hides == one.always


def test_bandwidth_batch_and_domain_of_every_communication(found: Explanation) -> None:
    fields: dict[str, set[str]] = {}
    for one in found.crossings:
        fields.setdefault(one.communication, set()).add(one.field)
    for own in fields.values():
        assert {"global_batch_size", "cluster.scale_up_size"} < own


def test_assumed_numbers_are_weighed() -> None:
    slices = meshwright.explain(
        "llama-3.1-8b", "2*tpu-v5p:4x4x4", seq_len=4096, global_batch_size=128, zero=1, recompute="full",
        overrides={"scale_out_gbits_s": 2},
    )  # fmt: skip
    assumed = [n for n in slices.numbers if n.provenance == "assumed" and n.seconds > 0]
    assert "profile.scale_out" in [n.name for n in assumed]
    (said,) = [s for s in slices.sentences if s.text.startswith(("Assumed", "No assumed"))]
    assert said.text.startswith("Assumed numbers move")
    assert said.values["profile.scale_out"] > 0.01 * slices.estimate.step_time_s


def test_constants_of_the_formulas_are_weighed(found: Explanation) -> None:
    """Each moves the step as the cost model says when it is changed alone; what is not read is not told."""
    told = {n.name.removeprefix("constant."): n for n in found.numbers if n.name.startswith("constant.")}
    assert {"kernel_s", "depth_half", "nvlink.exponent"} < set(told)
    assert not any(name.startswith(("ici.", "xgmi.")) for name in told)  # links of other chips
    assert "pair_logit_bytes" not in told  # of preference training
    assert not {"count_bytes", "loss_forward_bytes"} & set(told)  # definitions
    request, before = request_of(found.estimate), found.estimate.closed_form
    for name in ("depth_half", "nvlink.half_time_s"):
        one = told[name]
        assert (one.value, one.source) == (numbers()[name], records()[name].source)
        assert one.seconds > 0
        with changed(name, 2.0):
            after = again(request, found.estimate.strategy)
        gained = float(after.step_time_s) - float(before.step_time_s)
        assert gained == pytest.approx(one.seconds, rel=0.2)  # half_time and k_0 add to what they slow


def test_what_of_the_peak_is_assumed_is_told(found: Explanation) -> None:
    by_name = {n.name: n for n in found.numbers}
    habits = found.estimate.profile.framework
    assert by_name["habit.context_gib"].nbytes + by_name["habit.alone_gib"].nbytes == pytest.approx(
        habits.context_gib * units.GIB, rel=0.02
    )
    assert by_name["habit.context_gib"].seconds == 0
    assert by_name["profile.matrix"].nbytes == 0
    (said,) = [s for s in found.sentences if s.text.startswith("Of that peak assumed numbers move")]
    peak = float(found.estimate.closed_form.peak_bytes)
    told = [n for n in found.numbers if n.provenance == "assumed" and n.nbytes >= 0.001 * peak]
    share = units.percent_text(sum(n.nbytes for n in told) / peak)
    assert f"assumed numbers move {share}:" in said.text
    assert all(said.values[n.name] == n.nbytes for n in told)


def test_a_constant_counts_by_how_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"seq_len": 4096, "global_batch_size": 256}
    before = meshwright.explain("llama-3.1-8b", "64xh100", **asked)
    of_links = {n.name: n for n in before.numbers}["constant.nvlink.exponent"]
    assert of_links.provenance == "fitted"

    def share(name: str) -> float:
        guess = replace(records()[name], provenance="assumed")
        monkeypatch.setattr(probe, "records", lambda: {**records(), name: guess})
        rests: dict[str, float] = meshwright.explain("llama-3.1-8b", "64xh100", **asked).json()["rests_on"]
        return rests["assumed"]

    rests_on = before.json()["rests_on"]["assumed"]
    assert share("nvlink.exponent") == pytest.approx(rests_on + of_links.seconds, rel=1e-3)
    assert share("pair_logit_bytes") == rests_on  # which nothing here reads


def test_the_best_plan_has_the_runner_up_of_plan() -> None:
    work: dict[str, Any] = {"seq_len": 8192, "global_batch_size": 64}
    planned = meshwright.plan("llama-3.1-8b", "8xh100", top=2, **work)
    best = planned.plans[0]
    found = meshwright.explain(best, runner_up=True)
    other = planned.plans[1].step_time_s
    assert found.sentences[-1].text.startswith("The runner-up")
    assert found.sentences[-1].values["step.time.other"] == pytest.approx(other)


def test_a_worse_plan_is_told_of_the_best_with_the_same_flags() -> None:
    work: dict[str, Any] = {"seq_len": 8192, "global_batch_size": 64, "tp": 4}
    best = meshwright.plan("llama-3.1-8b", "8xh100", top=1, **work).plans[0]
    found = meshwright.explain("llama-3.1-8b", "8xh100", runner_up=True, recompute=None, pp=None, **work)
    said = found.sentences[-1]
    if found.estimate.strategy != best.strategy:
        assert said.text.startswith("The best plan that fits")
        assert said.values["step.time.other"] == pytest.approx(best.step_time_s)


JARGON = re.compile(
    r"\b(TP|PP|DP|CP|EP|VPP|SP|ZeRO|FSDP|MFU|HFU|HBM|NVLink|InfiniBand|GPUs?|TPUs?|GiB|TiB|GB|FLOPs?|TFLOP"
    r"|all-?reduce|all-?gather|reduce-?scatter|all-?to-?all|bubble|shard\w*|micro-?batch\w*|tensor\w*|pipeline\w*"
    r"|parallel\w*|collective\w*|latency|throughput|bandwidth|optimi[sz]er|gradient\w*|activation\w*|recompute\w*"
    r"|checkpoint\w*|tokens?|ranks?|degree|overlap\w*|interconnect|topology|node|domain|scale-?(up|out)"
    r"|step|ms|µs|kWh|schedule|1f1b|mbs|bf16|dispatch\w*|logits|kernel\w*|profile\.\w+|stage)\b",
    re.IGNORECASE,
)  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"cp": 2, "pp": 1, "zero": 3, "total_tokens": "15T", "price_per_chip_hour": 2.0},
        {"tp": 1, "pp": 1},
        {"global_batch_size": 16, "pp": 16},
    ],
)
def test_the_plain_story_has_no_word_of_the_trade(change: dict[str, Any]) -> None:
    found = meshwright.explain(**(DENSE | change))
    text = "\n".join(story(found))
    bare = text.replace(found.estimate.model.name, "").replace(found.estimate.cluster.chip.name, "")
    assert JARGON.findall(bare) == []
    assert 100 < len(text.split()) < 450  # a page


def test_the_plain_story_says_how_work_is_split_and_what_roads_change(found: Explanation) -> None:
    text = " ".join(story(found))
    e = found.estimate
    assert f"{e.cluster.n_chips:,} {e.cluster.chip.name} chips" in text
    assert f"{e.strategy.dp:,} teams" in text
    assert ("assembly line" in text) == (e.strategy.pp > 1)
    assert ("specialists" in text) == (e.strategy.ep > 1)
    assert text.count("twice as wide") == 2


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    args = [
        "explain",
        "llama-3.1-8b",
        "--on",
        "16xh100",
        "--seq-len",
        "8k",
        "--global-batch",
        "64",
        "--tp",
        "2",
    ]
    assert run([*args, "--json", "--plain", "--depth", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["binds"] == {"term": "step.time.compute", "resource": "flops"}
    assert all(set(said) == {"text", "terms", "values"} for said in found["sentences"])
    assert {"communication", "field", "now", "share", "at", "always", "low", "high"} == set(
        found["crossings"][0]
    )
    assert set(found["scales_with"]) == set(RESOURCES)
    assert len(found["plain"]) >= 5
    assert run(args) == 0
    said = capsys.readouterr().out
    assert 0 < said.index("binds") < said.index("Data-parallel traffic") < said.index("step  ")
    assert "3 levels of terms; --depth N shows more" in said
    assert "backward_input" not in said
    assert run([*args, "--depth", "9"]) == 0
    said = capsys.readouterr().out
    assert "levels of terms" not in said
    assert "backward_input" in said
    assert run([*args, "--term", "memory"]) == 0
    said = capsys.readouterr().out
    assert "binds" not in said
    assert "memory" in said


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("pp", [1, 4])
def test_data_parallel_traffic_follows_from_its_operands(zero: int, pp: int) -> None:
    asked = {**DENSE, "zero": zero, "pp": pp, "tp": 4}
    root = meshwright.estimate(**asked).evaluation.terms
    assert root is not None
    term = dict(root.walk())["step.time.dp"]
    given = {name: float(value) for name, value in term.inputs.items()}
    forward, backward = given["forward_s"], given["backward_s"]
    gathers, once = given.get("gathers_s", 0.0), given["dp_exposed"]
    spare = min(forward, max(forward + backward - gathers, 0.0)) if gathers else forward

    def left(seconds: float, hider: float, share: float) -> float:
        return max(share * seconds, seconds - hider)

    by_hand = left(given.get("gradients_s", 0.0), backward, once)
    by_hand += left(given.get("weights_s", 0.0), spare, once)
    if gathers:
        by_hand += given["microbatches"] * left(gathers, forward + backward, given["gather_exposed"])
    assert term.value == pytest.approx(by_hand, rel=1e-9)
    assert term.value > 0.0


def test_a_share_that_nothing_hides_is_named() -> None:
    """Data-parallel traffic of which the framework leaves a share bare, beside sends that it need not."""
    found = meshwright.explain(**DENSE)
    share = found.estimate.profile.numbers["dp_exposed"]
    (dp,) = [s for s in found.sentences if s.terms == ("step.time.dp",)]
    assert f"(profile.dp_exposed {share.value:.3g}, {share.provenance})" in dp.text
    assert dp.values["profile.dp_exposed"] == share.value
    (pp,) = [s for s in found.sentences if s.terms == ("step.time.pp",)]
    assert "habit of the framework" not in pp.text


def test_the_plain_story_measures_memory_in_the_unit_of_the_tables() -> None:
    found = meshwright.explain("llama-3.1-8b", "64xh100", seq_len=4096, global_batch_size=256)
    (room,) = (p for p in story(found) if "fullest chip" in p)
    for size in (found.estimate.evaluation.peak_bytes, found.estimate.evaluation.capacity_bytes):
        assert units.bytes_text(float(size)).replace("GiB", "gibibytes") in room


def test_what_a_step_rests_on_is_told_by_tag_and_stands_in_the_tree() -> None:
    """A chip that no run was measured on rests on assumed shares, whatever is known of the framework."""
    asked = {"seq_len": 4096, "global_batch_size": 256, "framework": "megatron-core"}
    for cluster, tag in (("64xtrn2", "assumed"), ("64xh100", "fitted")):
        found = meshwright.explain("llama-3.1-8b", cluster, **asked)
        shown = found.json()
        step = shown["plan"]["step_time_s"]
        rests = shown["rests_on"]
        assert set(rests) == {"assumed", "fitted", "measured", "datasheet"}
        assert sum(rests.values()) == pytest.approx(step)
        assert all(0 <= seconds <= step * (1 + 1e-9) for seconds in rests.values())
        assert (rests["assumed"] > 0.5 * step) == (tag == "assumed")
        (time,) = (c for c in shown["plan"]["terms"]["children"] if c["name"] == "time")
        tags = {part["name"]: part["provenance"] for part in time["children"]}
        assert tags["compute"] == tag
        assert tags["bubble"] == "derived"  # nothing there
        (number,) = (n for n in shown["numbers"] if n["name"] == "profile.matrix")
        assert number["parts"]["compute"] > 0
