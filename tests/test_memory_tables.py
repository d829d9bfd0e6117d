"""Peaks and fit verdicts of the shipped tables: what was reached may not get worse unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import median

import pytest

from meshwright.calibrate.cases import Case
from meshwright.calibrate.conventions import reading
from meshwright.calibrate.predict import predict
from meshwright.calibrate.rows import Shipped, shipped
from meshwright.calibrate.statistics import fit_verdict
from meshwright.calibrate.validate import Outcome, judge
from meshwright.errors import InputError
from meshwright.units import GIB

# Out of memory though predicted to fit; see `test_what_the_accepted_failure_would_take`.
UNEXPLAINED = {"bloom-206b-384-tp4pp12dp8-mbs2-gbs2048"}


@cache
def outcomes(table: Shipped) -> tuple[Outcome, ...]:
    """Rows with a peak or a verdict; of the training table all (every one that ran is a verdict)."""
    return tuple(judge(run) for run in shipped(table) if not run.suspect)


def errors(table: Shipped, compare: Callable[[float, float], float]) -> list[float]:
    return [
        abs(compare(o.prediction.peak_as(reading(o.run).kind) / reading(o.run).unit, o.run.peak_memory_gib))
        for o in outcomes(table)
        if o.prediction is not None and o.run.peak_memory_gib is not None
    ]


def share(table: Shipped, *, ran: bool) -> float:
    """Of runs that ran, the share refused; of the others, the share accepted."""
    fits = [
        o.prediction.fits
        for o in outcomes(table)
        if o.prediction is not None and (o.run.out_of_memory != 1) == ran
    ]
    return sum(f != ran for f in fits) / len(fits)


def percent(said: float, measured: float) -> float:
    return 100.0 * (said / measured - 1.0)


def test_tiny_models_in_gib() -> None:
    """Allocated peaks of Megatron's own tests: dense, experts, context and pipeline parallel."""
    found = errors("memory-small", lambda said, measured: said - measured)
    assert len(found) > 130
    assert median(found) < 0.15


def test_fine_tuning_peaks() -> None:
    found = errors("memory", percent)
    assert len(found) > 310
    assert median(found) < 6.0
    assert share("memory", ran=True) < 0.05
    assert share("memory", ran=False) < 0.13


def test_rungs_of_saved_memory() -> None:
    """torchtune's ladder on one card (Llama-3.2-3B): compile, a loss in chunks that are cut from 16-bit
    logits, checkpoints, the step inside backward, checkpoints on the host, adapters, a 4-bit base.
    """
    rung = "mem-torchtune-llama-3.2-3b-1xa100-sxm-80gb-s4096-b2-"
    found = {
        o.run.id.removeprefix(rung): (o.prediction.peak_as("active") / GIB, o.run.peak_memory_gib)
        for o in outcomes("memory")
        if o.run.id.startswith(rung) and o.prediction is not None and o.run.peak_memory_gib is not None
    }
    rungs = ["sft-2", "sft-3", "sft-4", "sft-5", "sft-6", "sft-7", "lora", "qlora"]
    for name in rungs:
        said, measured = found[name]
        assert abs(percent(said, measured)) < 9, name
    peaks = [found[name][0] for name in rungs]
    assert peaks == sorted(peaks, reverse=True)


def test_verdicts_of_fine_tuning_where_recompute_is_stated() -> None:
    """At most 5 % of the runs that ran are refused, at most 8 % of those out of memory accepted."""
    verdict = fit_verdict(
        (o.run.out_of_memory != 1, o.prediction.fits, o.run.recompute_stated)
        for o in outcomes("memory")
        if o.prediction is not None
    )
    assert verdict.ran > 310
    assert verdict.refused <= 0.05 * verdict.ran
    assert verdict.oom > 70
    assert verdict.accepted <= 0.08 * verdict.oom


def test_peaks_are_read_as_their_source_prints_them() -> None:
    """Megatron-Bridge counts in 1e9 bytes; a reading that no table knows is in GiB of its own kind."""
    bridge = next(r for r in shipped("training") if r.id == "mbskill-moonlight16b-recompute")
    assert (reading(bridge).kind, reading(bridge).unit) == ("allocated", 1e9)
    paper = next(r for r in shipped("training") if r.id == "zb-6.2b-1f1b-m24")
    assert reading(paper).kind == "allocated"
    elsewhere = next(r for r in shipped("training") if r.id == "titan-b200-8b-bf16")
    assert (reading(elsewhere).kind, reading(elsewhere).unit) == ("reserved", GIB)


def test_training_peaks() -> None:
    found = errors("training", percent)
    assert len(found) >= 80
    assert median(found) < 4.0
    assert share("training", ran=True) <= 0.012


def test_out_of_memory_in_the_training_table() -> None:
    accepted = {
        o.run.id
        for o in outcomes("training")
        if o.prediction is not None and o.run.out_of_memory == 1 and o.prediction.fits
    }
    assert accepted <= UNEXPLAINED


def test_what_the_accepted_failure_would_take() -> None:
    """BLOOM's 206B (82 layers of 14336) ran out of 80 GB where its 203B (94 of 13312) held 67 GB.

    Same chips, batch and degrees, one day, 128 heads each. Parameters of the first stage, an embedding and 6
    or 7 layers over tp 4: (250k x 14336 + 6 x 12 x 14336^2) / 4 = 4.60e9 against 4.55e9, so 1 % more state;
    one boundary fewer a microbatch in flight, so fewer activations. No arithmetic of the two can need 80 GB
    of one and 67 of the other: 12 GiB would have to come from elsewhere. The page shows no trace of it.
    """
    ids = ("bloom-206b-384-tp4pp12dp8-mbs2-gbs2048", "bloom-203b-384-tp4pp12dp8-mbs2-gbs2048")
    failed, ran = (next(o.prediction for o in outcomes("training") if o.run.id == i) for i in ids)
    assert failed is not None
    assert ran is not None
    state = [sum(p.memory_bytes[k] for k in ("params", "grads", "optimizer")) for p in (failed, ran)]
    assert 1.0 < state[0] / state[1] < 1.02
    assert failed.memory_bytes["activations"] < ran.memory_bytes["activations"]
    assert abs(failed.peak_bytes - ran.peak_bytes) < 1.0 * GIB


def test_what_a_layer_more_a_stage_took_on_the_same_day() -> None:
    """The same page held 60 with 70 layers of that width (6 a stage), and 60 and 67 with 82 and 94 layers of
    13312 (7 and 8 a stage), at 128 heads; snapshots of one shape differ by 3. So a layer of 13312 is 7, and
    the failure's seventh layer of 14336 makes 60 + 7 (14336 / 13312)^2 = 68 of 80. The model has 5 to 7 %
    less in all, and 6.6 and 7.5 a layer.
    """
    page, spread = {(14336, 70): 60.0, (13312, 82): 60.0, (13312, 94): 67.0}, 3.0
    run = next(o.run for o in outcomes("training") if o.run.id in UNEXPLAINED)

    def peak(width: int, layers: int) -> float:
        found = judge(replace(run, d_model=width, n_layers=layers)).prediction
        assert found is not None
        return found.peak_as(reading(run).kind) / reading(run).unit

    layer = page[13312, 94] - page[13312, 82]
    assert page[14336, 70] + layer * (14336 / 13312) ** 2 < 70.0
    assert peak(13312, 94) - peak(13312, 82) == pytest.approx(layer, abs=spread)
    seventh = peak(14336, 82) - peak(14336, 70)
    assert seventh == pytest.approx(layer * (14336 / 13312) ** 2, abs=spread)
    for (width, layers), held in page.items():
        assert 0.9 * held < peak(width, layers) < 1.05 * held


def test_failures_by_stranded_memory_are_told_from_runs_that_passed() -> None:
    """One 70B, six layouts and recompute sets, graphs without growing segments (Megatron-Bridge's memory
    page): the baseline and recomputed norms fail at 58.8 and 59.6 GB in use, the other four pass."""
    fits = {
        o.run.id.removeprefix("mbskill-l70b-sft-"): o.prediction.fits
        for o in outcomes("training")
        if o.prediction is not None and o.run.id.startswith("mbskill-l70b-sft-")
    }
    assert fits == {
        "base": False, "morepp": True, "moretp": True, "recompute": True, "recompute~2": True,
        "recompute~3": False,
    }  # fmt: skip


def neighbours(found: Case) -> list[Case]:
    """The same run asking less of a chip: half the microbatch, twice tp or stages, full recompute."""
    given, n = dict(found.given), found.cluster.n_chips
    smaller = []
    if given.get("microbatch_size", 1) > 1:
        smaller.append(given | {"microbatch_size": given["microbatch_size"] // 2})
    for axis in ("tp", "pp"):
        more = given | {axis: 2 * given[axis]}
        more.pop("layers_per_stage", None)
        if "dp" in more and n % (more["tp"] * more["pp"]) == 0:
            more["dp"] = n // (more["tp"] * more["pp"] * more.get("cp", 1))
        smaller.append(more)
    smaller.append(given | {"recompute": "full"})
    return [replace(found, given=g) for g in smaller]


@pytest.mark.parametrize("table", ["training", "memory"])
def test_a_smaller_neighbour_of_what_fails_fits(table: Shipped) -> None:
    """A verdict is of use only if it lets less demanding plans pass."""
    tried, passed = 0, 0
    for o in outcomes(table):
        wrong = o.prediction is None or o.run.out_of_memory != 1 or o.prediction.fits
        if wrong or not isinstance(o.case, Case) or o.case.cluster.n_chips < 8:
            continue
        verdicts = []
        for smaller in neighbours(o.case):
            try:
                verdicts.append(predict(smaller))
            except InputError:
                continue
        if not verdicts:
            continue
        tried += 1
        assert min(v.peak_bytes for v in verdicts) <= o.prediction.peak_bytes  # type: ignore[union-attr]
        passed += any(v.fits for v in verdicts)
    assert tried >= 3
    assert passed >= (tried if table == "training" else tried / 5)
