"""Deriving what is left out: defaults with reasons, nothing given is changed, all faults at once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given as draw
from hypothesis import settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.hardware.cluster import parse
from meshwright.hardware.records import Cluster
from meshwright.model.records import Attention, Block, Mlp, Model, Moe
from meshwright.profiles.load import load
from meshwright.search.derive import complete
from meshwright.work import Work


def toy_cluster(n: int) -> Cluster:
    return parse(f"{n}xh100", {})


LOADED = load(None, toy_cluster(8).chip)
HABITS = replace(
    LOADED.framework, default_zero=1, default_recompute="selective", default_sp=True,
    default_dispatcher="all-to-all",
)  # fmt: skip
PROFILE = replace(LOADED, framework=HABITS)
HEADS = Attention(n_heads=16, n_kv_heads=4, head_dim=64)
DENSE = Model("toy", 1024, 32000, (Block(HEADS, Mlp(4096)),), (0,) * 12)
SPARSE = Model("toy-moe", 1024, 32000, (Block(HEADS, Moe(8, 2, 512)),), (0,) * 12)
WORK = Work(4096, 64)


def test_defaults_and_reasons():
    done = complete(DENSE, toy_cluster(64), WORK, {"tp": 4, "pp": 2}, PROFILE)
    s = done.strategy
    assert (s.dp, s.tp, s.pp, s.cp, s.vpp, s.ep, s.etp, s.microbatch_size) == (8, 4, 2, 1, 1, 1, 1, 1)
    assert (s.sp, s.schedule, s.zero, s.zero_group) == (True, "1f1b", 1, 8)
    assert s.recompute == "selective:core_attn"
    assert "64 chips / (tp 4 x pp 2 x cp 1)" in done.derived["dp"].because
    assert {"tp", "pp"}.isdisjoint(done.derived)
    assert all(getattr(s, name) == d.value for name, d in done.derived.items())


def test_interleaved_when_vpp():
    done = complete(DENSE, toy_cluster(8), WORK, {"pp": 2, "vpp": 3}, PROFILE)
    assert done.strategy.schedule == "interleaved-1f1b"


def test_layers_per_stage_sets_the_chunks():
    done = complete(DENSE, toy_cluster(8), WORK, {"pp": 2, "layers_per_stage": [3, 3, 3, 3]}, PROFILE)
    assert (done.strategy.vpp, done.strategy.layers_per_stage) == (2, (3, 3, 3, 3))


@pytest.mark.parametrize(("word", "group"), [("all", 32), ("domain", 4), (16, 16), ("node", 4)])
def test_zero_group_words(word, group):
    given = {"tp": 2, "zero": 3, "zero_group": word}
    assert complete(DENSE, toy_cluster(64), WORK, given, PROFILE).strategy.zero_group == group


def test_options_choose_dispatcher_and_optimizer():
    work = Work(4096, 64, options=frozenset({"deep-ep", "bf16-optimizer"}))
    s = complete(SPARSE, toy_cluster(8), work, {"ep": 8}, PROFILE).strategy
    assert (s.dispatcher, s.optimizer) == ("deep-ep", "adamw-bf16")


GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "tp": st.sampled_from([1, 2, 4, 8]), "pp": st.sampled_from([1, 2, 4]), "cp": st.sampled_from([1, 2]),
        "sp": st.booleans(), "zero": st.integers(0, 3), "recompute": st.sampled_from(["none", "full"]),
        "microbatch_size": st.sampled_from([1, 2]), "cp_method": st.sampled_from(["ring", "all-to-all"]),
    },
)  # fmt: skip


@draw(GIVEN)
@settings(max_examples=100, deadline=None)
def test_given_values_stay(given):
    try:
        done = complete(DENSE, toy_cluster(64), WORK, given, PROFILE)
    except InputError:
        return
    for name, value in given.items():
        assert getattr(done.strategy, name) == value
        assert name not in done.derived
    s = done.strategy
    assert s.dp * s.tp * s.pp * s.cp == 64


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tp": 4, "pp": 3}, ["tp 4 x pp 3 x cp 1 = 12 does not divide the 64 chips", "64 / 12 = 5.333"]),
        ({"dp": 8, "tp": 4, "pp": 3}, ["dp 8 x tp 4 x pp 3 x cp 1 = 96, but the cluster has 64", "5.333"]),
        ({"tp": 32}, ["16 heads, and 16 / tp 32 = 0.5"]),
        ({"tpp": 4}, ["no strategy field 'tpp'"]),
        ({"tp": 0, "zero": 7}, ["tp is 0", "zero is 7"]),
        ({"tp": "many", "schedule": "1f2b"}, ["'many'", "schedule is '1f2b'"]),
        ({"ep": 2}, ["toy has no experts"]),
        ({"dp": 3, "vpp": 4, "pp": 1}, ["dp 3", "no pipeline to interleave", "64 / (dp 3"]),
        ({"microbatch_size": float("nan")}, ["nan"]),
        ({"layers_per_stage": "4,4,5", "pp": 3}, ["4 + 4 + 5 = 13"]),
        ({"recompute": "selective:nrm"}, ["nrm is not among"]),
        ({"offload": "activation"}, ["offload is 'activation'"]),
        ({"placement": "tp,dp"}, ["placement tp,dp"]),
    ],
)
def test_all_faults_at_once(given, said):
    with pytest.raises(InputError) as raised:
        complete(DENSE, toy_cluster(64), WORK, given, PROFILE)
    text = str(raised.value)
    for part in said:
        assert part in text
    assert all(d.hint for d in raised.value.diagnostics)


@pytest.mark.parametrize(
    "given",
    [
        {"dp": 5}, {"dp": 4, "tp": 3}, {"dp": 4, "tp": 8, "pp": 4}, {"tp": 3}, {"tp": 16, "pp": 3},
        # What a plan file holds when a flag changes one degree of it: dp and the group stand in it too.
        {"dp": 16, "tp": 4, "pp": 2, "cp": 1, "zero": 1, "zero_group": 16, "vpp": 1},
        {"dp": 16, "tp": 2, "pp": 4, "cp": 1, "zero": 1, "zero_group": 8, "vpp": 1},
        {"dp": 32, "tp": 1, "pp": 1, "cp": 4, "zero": 1, "zero_group": 128, "vpp": 1},
    ],
)  # fmt: skip
def test_hints_of_degrees_work_when_followed(given):
    """Each way out that is named is taken, and nothing of the degrees is left to complain of."""
    with pytest.raises(InputError) as raised:
        complete(DENSE, toy_cluster(64), WORK, given, PROFILE)
    (fault,) = [d for d in raised.value.diagnostics if d.code == "MW101"]
    assert fault.hint.startswith("try ")
    for way in fault.hint.removeprefix("try ").split(", or "):
        parts = way.replace(" with ", ", ").split(", ")
        change = {name: int(value) for name, value in (part.split() for part in parts)}
        strategy = complete(DENSE, toy_cluster(64), WORK, {**given, **change}, PROFILE).strategy
        assert strategy.dp * strategy.tp * strategy.pp * strategy.cp == 64
