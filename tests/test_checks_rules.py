"""Each rule: a plan that breaks it, its arithmetic, a hint that works, and masks equal to single findings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright import checks
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS, Evaluation
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.model.records import Attention, Block, Mlp, Model, Moe
from meshwright.profiles import load as profiles
from meshwright.strategy.records import Strategy
from meshwright.units import GIB
from meshwright.work import Work

HEADS = Attention(n_heads=16, n_kv_heads=4, head_dim=64)
DENSE = Model("toy", 1024, 32001, (Block(HEADS, Mlp(4096)),), (0,) * 12)
SPARSE = Model("toy-moe", 1024, 32000, (Block(HEADS, Moe(8, 2, 96)),), (0,) * 12)
H100 = parse("64xh100", {})
WORK = Work(4096, 64)
GOOD = Strategy(dp=8, tp=4, sp=True, pp=2, zero=1, zero_group=8)


def codes(model, cluster, work, strategy):
    return {d.code for d in checks.run(model, cluster, work, strategy)}


def test_a_good_plan_breaks_nothing():
    assert not [d for d in checks.run(DENSE, H100, WORK, GOOD) if d.severity != "note"]


BROKEN = [
    ("MW101", DENSE, WORK, replace(GOOD, pp=3),
     ["8 x tp 4 x pp 3 x cp 1 = 96", "64 / 12 = 5.333"], "pp 2 or pp 4"),
    ("MW101", DENSE, WORK, replace(GOOD, dp=4), ["= 32, but the cluster has 64"], "dp 8"),
    ("MW110", DENSE, WORK, replace(GOOD, tp=32, dp=1, zero_group=1),
     ["16 heads", "16 / tp 32 = 0.5"], "tp 16"),
    ("MW111", replace(DENSE, blocks=(Block(replace(HEADS, n_heads=18, n_kv_heads=6), Mlp(4096)),)), WORK,
     replace(GOOD), ["6 key/value heads", "6 / 4 = 1.5"], "tp 2"),
    ("MW112", replace(DENSE, blocks=(Block(HEADS, Mlp(4098)),)), WORK, GOOD,
     ["4098 / tp 4 = 1024.5"], "tp 2"),
    ("MW112", SPARSE, WORK, replace(GOOD, etp=64, dp=32, pp=1, tp=2, zero_group=32),
     ["96 / etp 64"], "etp 32"),
    ("MW113", SPARSE, WORK, replace(GOOD, ep=16), ["8 experts", "8 / ep 16 = 0.5"], "ep 8"),
    ("MW114", SPARSE, WORK, replace(GOOD, ep=8, etp=8), ["ep 8 x etp 8 = 64", "= 32"], "ep 4"),
    ("MW115", DENSE, WORK, replace(GOOD, ep=2), ["toy has no experts"], "ep 1"),
    ("MW116", SPARSE, WORK, replace(GOOD, dp=24, etp=3, zero_group=1, placement=("tp", "pp", "cp", "dp")),
     ["etp 3 x ep 1 = 3 ranks", "the 4 that lie together inside pp (tp 4)"], "placement tp,cp,dp,pp"),
    ("MW120", DENSE, Work(4096, 60), GOOD,
     ["60 / (dp 8 x microbatch_size 1) = 60 / 8 = 7.5"], "global batch 64"),
    ("MW121", DENSE, Work(4096, 40), replace(GOOD, vpp=2, schedule="interleaved-1f1b"),
     ["5 microbatches, not a multiple of pp 2"], "global batch 48"),
    ("MW122", DENSE, Work(4096, 24), replace(GOOD, schedule="dualpipe"),
     ["each of 2 streams", "3 / 2 is not whole", "needs 2 x pp 2 = 4 microbatches", "24 / (dp 8"],
     "global batch 32"),
    ("MW122", DENSE, Work(4096, 24), replace(GOOD, vpp=2, schedule="dualpipev"),
     ["needs 2 x pp 2 = 4 microbatches or more, but there are 3"], "global batch 32"),
    ("MW134", DENSE, WORK, replace(GOOD, dp=1, tp=1, pp=3, zero_group=1, schedule="dualpipe"),
     ["pp 3 / 2 is not whole"], "pp 2 or pp 4"),
    ("MW130", DENSE, WORK, replace(GOOD, vpp=8, schedule="interleaved-1f1b"), ["pp 2 x vpp 8 = 16"], "<= 14"),
    ("MW131", DENSE, WORK, replace(GOOD, layers_per_stage=(6, 5)), ["6 + 5 = 11", "(+1)"], "sum to 12"),
    ("MW131", DENSE, WORK, replace(GOOD, layers_per_stage=(4, 4, 4)), ["lists 3 virtual stages"], "list 2"),
    ("MW132", DENSE, WORK, replace(GOOD, vpp=2), ["1f1b runs 1 chunk a rank, but vpp is 2"], "interleaved"),
    ("MW132", DENSE, WORK, replace(GOOD, schedule="interleaved-1f1b"), ["needs 2 chunks"], "1f1b"),
    ("MW133", DENSE, WORK, replace(GOOD, dp=16, pp=1, vpp=2, zero_group=16, schedule="interleaved-1f1b"),
     ["no pipeline to interleave"], "vpp 1"),
    ("MW150", DENSE, Work(4100, 64), replace(GOOD, dp=2, cp=4), ["2 x cp 4", "4100 / 8 = 512.5"], "cp 2"),
    ("MW151", DENSE, Work(4098, 64), GOOD, ["4098 / 4 = 1024.5"], "--no-sp"),
    ("MW152", DENSE, WORK, replace(GOOD, dp=1, cp=8, cp_method="all-to-all"),
     ["= 32 ranks", "16 heads"], "ring"),
    ("MW160", DENSE, WORK, replace(GOOD, zero_group=3), ["8 / 3 = 2.667"], "zero_group 2 or zero_group 4"),
    ("MW410", DENSE, WORK, replace(GOOD, tp=8, dp=4, zero_group=4), ["each is held by 2 ranks"], "tp 4"),
    ("MW413", DENSE, WORK, replace(GOOD, dp=1, tp=2, cp=8, cp_method="all-to-all", zero_group=1),
     ["= 16 ranks", "4 key/value heads to 4 of them", "refuse it"], "cp 2 and below"),
    ("MW411", DENSE, WORK, GOOD, ["32001 / tp 4", "32004"], "padding"),
    ("MW412", DENSE, WORK, replace(GOOD, tp=1, dp=32, zero_group=32), ["sp is on, but tp is 1"], "--no-sp"),
    ("MW420", DENSE, WORK, replace(GOOD, zero=3), ["no more than zero 1"], "zero 1"),
    ("MW421", DENSE, WORK, replace(GOOD, tp=16, dp=2), ["tp 16 is above the 8 chips"], "tp 8"),
    ("MW430", DENSE, WORK, replace(GOOD, recompute="selective:ssm"), ["names ssm"], "leave"),
    ("MW102", DENSE, WORK, replace(GOOD, tp=0), ["tp is 0"], "1 or more"),
    ("MW102", DENSE, WORK, replace(GOOD, dp=float("inf")), ["dp is inf"], "1 or more"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "model", "work", "strategy", "said", "hint"), BROKEN)
def test_broken_rule_shows_its_arithmetic(code, model, work, strategy, said, hint):
    found = [d for d in checks.run(model, H100, work, strategy) if d.code == code]
    assert len(found) == 1
    for part in said:
        assert part in found[0].message
    assert hint in found[0].hint


def test_precision():
    a100 = parse("64xa100", {})
    found = [d for d in checks.run(DENSE, a100, Work(4096, 64, "fp8"), GOOD) if d.code == "MW170"]
    assert "has no fp8 units" in found[0].message
    assert "bf16" in found[0].hint
    assert "MW170" not in codes(DENSE, H100, Work(4096, 64, "fp8"), GOOD)
    assert "MW170" in codes(DENSE, H100, Work(4096, 64, "nvfp4"), GOOD)


@pytest.mark.parametrize(
    ("on", "precision", "instead"),
    [("64xh100", "mxfp8", "fp8"), ("64xmi300x", "mxfp8", "fp8"), ("tpu-v7:4x4x4", "mxfp8", "fp8"),
     ("64xmi355x", "nvfp4", "mxfp8"), ("8xv100-sxm2-32gb", "bf16", "fp16"), ("tpu-v4:4x4x4", "fp16", "bf16")],
)  # fmt: skip
def test_formats_that_units_of_that_width_do_not_take(on, precision, instead):
    """Blocks of eight bits came with Blackwell and CDNA 4, NVFP4 with the first alone; Volta has no bf16 and
    TPUs no fp16."""
    (found,) = [d for d in checks.run(DENSE, parse(on), Work(4096, 64, precision), GOOD) if d.code == "MW170"]
    assert f"has no {precision} units" in found.message
    assert found.hint == f"use --precision {instead}"
    assert "MW170" not in codes(DENSE, parse(on), Work(4096, 64, instead), GOOD)


def test_blackwell_takes_every_format():
    for precision in ("fp16", "bf16", "fp8", "mxfp8", "nvfp4"):
        assert "MW170" not in codes(DENSE, parse("64xb200"), Work(4096, 64, precision), GOOD)


def test_low_precision_that_is_no_faster_is_told():
    (found,) = [
        d for d in checks.run(DENSE, parse("tpu-v5p:4x4x4"), Work(4096, 64, "fp8"), GOOD) if d.code == "MW440"
    ]
    assert "fp8 at 459 TFLOP/s dense and bf16 at 459 TFLOP/s" in found.message
    assert "MW440" not in codes(DENSE, H100, Work(4096, 64, "fp8"), GOOD)


def evaluation(peak_gib: float, capacity_gib: float) -> Evaluation:
    held = dict.fromkeys(MEMORY_KEYS, 0.0)
    held |= {"params": 0.25 * peak_gib * GIB, "activations": 0.75 * peak_gib * GIB}
    return Evaluation(
        1.0, dict.fromkeys(TIME_KEYS, 0.0), 0.0, held, peak_gib * GIB, 1, capacity_gib * GIB, 1.0, 1.0, 1.0
    )


def test_memory():
    over = checks.run(DENSE, H100, WORK, GOOD, evaluation(100, 80))
    error = next(d for d in over if d.code == "MW301")
    assert "activations 75.00 + params 25.00 = 100.00 GiB" in error.message
    assert "20.00 GiB too much" in error.message
    assert "recompute" in error.hint
    assert "MW302" in {d.code for d in checks.run(DENSE, H100, WORK, GOOD, evaluation(79, 80))}
    assert not {"MW301", "MW302"} & {d.code for d in checks.run(DENSE, H100, WORK, GOOD, evaluation(40, 80))}


def test_a_peak_that_reaches_beyond_the_chip_is_told():
    """Where it fits, and once: a narrow fit says it too."""

    def found(peak: float, reach: float) -> dict[str, str]:
        run = checks.run(DENSE, H100, WORK, GOOD, evaluation(peak, 79), None, reach * GIB)
        return {d.code: d.message for d in run if d.code.startswith("MW3")}

    assert "up to 81.00 GiB" in found(74, 81)["MW303"]
    assert found(74, 79) == {}
    assert list(found(78, 83)) == ["MW302"]
    assert list(found(80, 90)) == ["MW301"]


def test_room_that_someone_leaves_is_no_narrow_fit():
    """So the hint at less usable memory ends: what fits there has room."""
    less = parse("64xh100", {"usable_gib": 75})
    assert "MW302" not in {d.code for d in checks.run(DENSE, less, WORK, GOOD, evaluation(74.9, 75))}
    assert "MW301" in {d.code for d in checks.run(DENSE, less, WORK, GOOD, evaluation(75.1, 75))}


@pytest.mark.parametrize(
    ("usable", "hint"), [(79.0, "try zero 1"), (None, "keep zero 3"), (0.1, "no ZeRO stage alone")]
)
def test_zero_1_is_only_named_where_it_fits(usable, hint):
    profile = profiles.load(None, H100.chip)
    plan = replace(GOOD, dp=16, tp=2, zero=3, zero_group=16)
    work = replace(WORK, options=frozenset({"fp32-accumulation"}))  # which zero 1 holds and zero 3 sends
    one, own = (
        float(evaluate(DENSE, H100, work, replace(plan, zero=zero), profile).peak_bytes) for zero in (1, 3)
    )
    usable = (one + own) / 2 / GIB if usable is None else usable
    machine = parse("64xh100", {"usable_gib": usable})
    found = checks.run(DENSE, machine, work, plan, evaluate(DENSE, machine, work, plan, profile), profile)
    (said,) = (d for d in found if d.code == "MW420")
    assert said.hint.startswith(hint)
    assert f"zero 1 needs {one / GIB:.2f} of {usable:.2f} GiB and zero 3 {own / GIB:.2f}" in said.hint
    assert "no more than zero 1" not in said.message  # which these figures contradict


DEGREE = st.sampled_from([1, 2, 3, 4, 6, 8, 16])


@given(
    rows=st.lists(st.tuples(*[DEGREE] * 8), min_size=2, max_size=6), sp=st.booleans(), sparse=st.booleans(),
    method=st.sampled_from(["ring", "all-to-all"]), zero=st.integers(0, 3), group=DEGREE,
    schedule=st.sampled_from(["1f1b", "interleaved-1f1b", "zb-v", "gpipe"]),
    seq=st.sampled_from([4096, 4100, 5000]), batch=st.sampled_from([48, 64, 90]),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_masks_equal_single_findings(rows, sp, sparse, method, zero, group, schedule, seq, batch):
    model, work = (SPARSE if sparse else DENSE), Work(seq, batch)
    table = np.array(rows)
    names = ("dp", "tp", "pp", "vpp", "cp", "ep", "etp", "microbatch_size")
    words = {"sp": sp, "cp_method": method, "zero": zero, "zero_group": group, "schedule": schedule}
    masks = checks.illegal(model, H100, work, Strategy(**dict(zip(names, table.T)), **words))
    for i, row in enumerate(table):
        single = Strategy(**{n: int(v) for n, v in zip(names, row)}, **words)
        found = checks.run(model, H100, work, single)
        assert all(d.hint and d.message for d in found)
        errors = {d.code for d in found if d.severity == "error"}
        assert errors == {code for code, m in masks.items() if np.broadcast_to(m, len(table))[i]}
