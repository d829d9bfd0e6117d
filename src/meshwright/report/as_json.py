"""Results as plain JSON objects: no NumPy type, no NaN, the keys that docs/json.md lists."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from meshwright import __version__, units
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS
from meshwright.report.error_json import diagnostics_json
from meshwright.strategy.records import AXES
from meshwright.units import GIB

if TYPE_CHECKING:
    from meshwright.cost.evaluation import StageMemory
    from meshwright.cost.terms import Term
    from meshwright.hardware.records import Cluster
    from meshwright.model.records import Model
    from meshwright.report.records import Checked, Choice, Estimate, Plan, Point
    from meshwright.strategy.records import Strategy
    from meshwright.work import Work


def plain(value: Any) -> Any:
    """`value` as JSON types: NumPy scalars and arrays unpacked, infinities and NaN as null."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, set | frozenset):
        return sorted(plain(v) for v in value)
    if hasattr(value, "tolist") and not isinstance(value, Iterable | int | float):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int):
        return int(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, Iterable):
        return [plain(v) for v in value]
    return str(value)


def envelope(
    verb: str, model: Model | None = None, cluster: Cluster | None = None, work: Work | None = None
) -> dict[str, Any]:
    """The keys that every object starts with; null where a verb has no such thing."""
    return {
        "schema": f"meshwright.{verb}/1",
        "version": __version__,
        "model": None if model is None else model_json(model),
        "cluster": None if cluster is None else cluster_json(cluster),
        "work": None if work is None else work_json(work),
    }


def model_json(model: Model) -> dict[str, Any]:
    """A model by name, size and depth."""
    from meshwright.model import params

    return {
        "name": model.name,
        "params_total": int(params.total_params(model)),
        "params_active": int(params.active_params(model)),
        "n_layers": model.n_layers,
        "d_model": model.d_model,
        "vocab": model.vocab,
    }


def cluster_json(cluster: Cluster) -> dict[str, Any]:
    """A cluster with every figure the estimate used, per chip and direction."""
    out = cluster.scale_out_bytes_s
    shown: dict[str, Any] = plain(
        {
            "name": cluster.name,
            "chip": cluster.chip.name,
            "n_chips": cluster.n_chips,
            "scale_up_size": cluster.scale_up_size,
            "scale_up_gbytes_s": cluster.scale_up_bytes_s / 1e9,
            "scale_out_gbits_s": None if out is None else out * 8 / 1e9,
            "oversubscription": cluster.oversubscription,
            "usable_gib": cluster.usable_bytes / GIB,
            "torus": list(cluster.torus),
            "wraps": list(cluster.wraps),
            "n_slices": cluster.n_slices,
        }
    )
    return shown


def work_json(work: Work) -> dict[str, Any]:
    """What was asked."""
    shown: dict[str, Any] = plain(
        {
            "seq_len": work.seq_len,
            "global_batch_size": work.global_batch_size,
            "tokens_per_step": work.tokens_per_step,
            "precision": work.precision,
            "total_tokens": work.total_tokens,
            "options": work.options,
        }
    )
    return shown


def strategy_json(strategy: Strategy, stages: Sequence[int]) -> dict[str, Any]:
    """Every field of the strategy, and the decoder layers of each virtual `stages` in order."""
    return {**plain(strategy), "stages": list(stages)}


def strategy_of(estimate: Estimate) -> dict[str, Any]:
    """`strategy_json` of what was estimated."""
    from meshwright.cost.stages import layers_per_stage

    e = estimate
    return strategy_json(e.strategy, layers_per_stage(e.model, e.cluster, e.work, e.strategy, e.profile))


def strategy_line(strategy: Strategy) -> str:
    """The strategy in one line, without what is off.

    >>> from meshwright.strategy.records import AXES, Strategy
    >>> strategy_line(Strategy(dp=128, tp=8, sp=True, pp=16, zero=1))
    'dp128 tp8+sp pp16 1f1b mbs1 zero1 recompute none'
    """
    s = strategy
    words = [f"dp{s.dp}", f"tp{s.tp}" + ("+sp" if s.sp else "")]
    words += [f"{name}{value}" for name, value in (("pp", s.pp), ("vpp", s.vpp)) if value != 1]
    if s.cp != 1:
        words.append(f"cp{s.cp} {s.cp_method}")
    words += [f"{name}{value}" for name, value in (("ep", s.ep), ("etp", s.etp)) if value != 1]
    if s.pp != 1:
        words.append(s.schedule)
    words.append(f"mbs{s.microbatch_size}")
    group = f"/{s.zero_group}" if s.zero and s.zero_group != s.dp * s.cp and s.zero_group != 1 else ""
    words.append(f"zero{s.zero}{group}")
    words.append(f"recompute {s.recompute}")
    if s.offload != "none":
        words.append(f"offload {s.offload}")
    if s.moe_balance != "microbatch":
        words.append(f"balance {s.moe_balance}")
    if s.finetune != "none":
        words.append(f"finetune {s.finetune}")
    if s.placement != AXES:
        words.append(f"placement {','.join(s.placement)}")
    return " ".join(words)


def term_json(term: Term, depth: int | None = None) -> dict[str, Any]:
    """A tree of terms, or `depth` levels of it."""
    below = None if depth is None else depth - 1
    return {
        "name": term.name,
        "value": plain(term.value),
        "unit": term.unit,
        "combine": term.combine,
        "formula": term.formula,
        "provenance": term.provenance,
        "inputs": plain(term.inputs),
        "children": [] if below == 0 else [term_json(c, below) for c in term.children],
    }


def conventions(estimate: Estimate) -> dict[str, str]:
    """What the figures mean, where people count differently."""
    chip, precision = estimate.cluster.chip, estimate.work.precision
    peak = units.flops_text(estimate.peak_flops)
    return {
        "mfu": f"model FLOPs over {peak}, the dense {precision} peak of {chip.name}",
        "hfu": "over the same peak, with the products and attention cores that recompute does again",
        "floor_time": "the arithmetic of the busiest rank alone at that peak, recompute included",
        "model_flops": "causal attention counted half, recompute not counted, output projection counted",
        "memory": "GiB of 1024^3 bytes on the rank with the highest peak",
        "time": "exposed seconds on the slowest rank",
        "bandwidth": "one direction, per chip",
    }


def plan_json(estimate: Estimate, *, terms: bool = False) -> dict[str, Any]:
    """One strategy with its estimate: the `plan` of an estimate, one of the `plans` of a plan."""
    e = estimate.evaluation
    by_category = {k: float(e.memory_bytes.get(k, 0.0)) / GIB for k in MEMORY_KEYS}
    plan: dict[str, Any] = {
        "strategy": strategy_of(estimate),
        "derived": {k: {"value": plain(d.value), "because": d.because} for k, d in estimate.derived.items()},
        "fits": estimate.fits,
        "step_time_s": estimate.step_time_s,
        "closed_form_step_time_s": float(estimate.closed_form.step_time_s),
        "step_time_interval_s": None if estimate.interval_s is None else list(estimate.interval_s),
        "step_time_interval_because": estimate.interval_because,
        "tokens_per_s_per_chip": estimate.tokens_per_s_per_chip,
        "model_tflops_per_chip": estimate.model_flops_per_s_per_chip / 1e12,
        "mfu": estimate.mfu,
        "hfu": estimate.hfu,
        "conventions": conventions(estimate),
        "profile": profile_name(estimate),
        "memory": {
            "peak_gib": float(e.peak_bytes) / GIB,
            "peak_interval_gib": None
            if estimate.interval_bytes is None
            else [nbytes / GIB for nbytes in estimate.interval_bytes],
            "may_not_fit": estimate.may_not_fit,
            "capacity_gib": float(e.capacity_bytes) / GIB,
            "by_category_gib": by_category,
            "kept_gib": float(e.kept_bytes) / GIB,
            "rank": {"stage": int(e.peak_stage)},
            "by_stage": [stage_json(held) for held in e.by_stage],
        },
        "time_s": {k: float(e.time_s.get(k, 0.0)) for k in TIME_KEYS},
        "recompute_s": float(e.recompute_s),
        "floor_time_s": float(e.floor_time_s),
        "diagnostics": diagnostics_json(estimate.diagnostics),
        "nearest": [plain(n) for n in estimate.nearest],
        "expressed_by": list(expressed_by(estimate)),
        **run_json(estimate),
    }
    if estimate.moe_balance:
        plan["moe_balance"] = {
            word: {
                "time_s": b.time_s,
                "memory_gib": None if b.memory_bytes is None else b.memory_bytes / GIB,
                "traffic_bytes": b.traffic_bytes,
            }
            for word, b in estimate.moe_balance.items()
        }
    if estimate.simulated is not None:
        from meshwright.report.simulated import simulated_json

        plan["simulated"] = simulated_json(estimate.simulated, estimate.closed_form)
    if terms:
        plan["terms"] = None if e.terms is None else term_json(e.terms)
    shown: dict[str, Any] = plain(plan)
    return shown


def expressed_by(estimate: Estimate) -> tuple[str, ...]:
    """The frameworks that can be told this strategy."""
    from meshwright.checks.pieces import CopiedKeyValues
    from meshwright.strategy import targets

    e = estimate
    copied = bool(CopiedKeyValues().violated(e.model, e.cluster, e.work, e.strategy).any())
    every = (targets.load(name) for name in targets.names())
    able = [t for t in every if e.work.precision in t.precisions and (t.copies_kv or not copied)]
    return tuple(t.name for t in able if not t.lacks(e.strategy))


def stage_json(held: StageMemory) -> dict[str, Any]:
    """What a rank of one pipeline stage holds at its fullest moment, and which moment that is."""
    return {
        "stage": held.stage,
        "moment": held.moment,
        "peak_gib": held.peak_bytes / GIB,
        "kept_gib": held.kept_bytes / GIB,
        "by_category_gib": {k: held.memory_bytes.get(k, 0.0) / GIB for k in MEMORY_KEYS},
    }


def profile_name(estimate: Estimate) -> str:
    """The efficiency profile: framework, generation and chip family."""
    f = estimate.profile.framework
    return f"{f.name}@{f.generation} on {estimate.profile.chip_family}"


def run_json(estimate: Estimate) -> dict[str, Any]:
    """Days, chip-hours, cost and energy of a whole run; nothing where its length is not known."""
    run = estimate.run
    if run is None:
        return {}
    return {
        "steps": run.n_steps,
        "days": run.days,
        "chip_hours": run.chip_hours,
        "price_per_chip_hour": run.price_per_chip_hour,
        "cost_usd": run.cost_usd,
        "energy_kwh": None if run.energy_j is None else run.energy_j / 3.6e6,
        "energy_basis": None if run.tdp_w is None else f"chips alone at TDP, {run.tdp_w:g} W each",
    }


def estimate_object(estimate: Estimate, *, terms: bool = False, verb: str = "estimate") -> dict[str, Any]:
    """The object of `estimate` and `explain`."""
    head = envelope(verb, estimate.model, estimate.cluster, estimate.work)
    return head | {"plan": plan_json(estimate, terms=terms)}


def choice_json(choice: Choice) -> dict[str, Any]:
    """One of several searches, by its best plan."""
    best = choice.best
    found: dict[str, Any] = {"n_chips": choice.n_chips, "global_batch_size": choice.global_batch_size,
                             "fits": best is not None, "meets_deadline": choice.meets}  # fmt: skip
    if best is None:
        return found
    return found | {
        "step_time_s": best.step_time_s,
        "simulated_step_time_s": best.simulated_step_time_s,
        "tokens_per_s": best.tokens_per_s_per_chip * choice.n_chips,
        "tokens_per_s_per_chip": best.tokens_per_s_per_chip,
        "strategy": strategy_line(best.strategy),
        **run_json(best),
    }


def point_json(point: Point) -> dict[str, Any]:
    """A point of the Pareto front."""
    return {
        "n_chips": point.n_chips,
        "global_batch_size": point.global_batch_size,
        "step_time_s": point.step_time_s,
        "simulated_step_time_s": point.simulated_step_time_s,
        "tokens_per_s": 1.0 / point.seconds_per_token,
        "chip_seconds_per_million_tokens": 1e6 * point.n_chips * point.seconds_per_token,
        "peak_gib": point.peak_bytes / GIB,
        "strategy": strategy_line(point.strategy),
    }


def plan_object(plan: Plan, *, terms: bool = False) -> dict[str, Any]:
    """The object of `plan`."""
    body: dict[str, Any] = {
        "searched": plan.searched,
        "bounded": plan.bounded,
        "feasible": plan.feasible,
        "search_seconds": plan.search_seconds,
        "rejected": plan.rejected,
        "untried": plan.untried,
        "objective": plan.objective,
        "target": plan.target,
        "reranked": plan.reranked,
        "plans": [
            plan_json(p, terms=terms)
            | {"tied": plan.tied(p), "simulated_step_time_s": p.simulated_step_time_s}
            for p in plan.plans
        ],
        "necessity": [dataclasses.asdict(n) for n in plan.necessity],
        "why": [said.text for said in plan.why],
        "sentences": [said.json() for said in plan.why],
        "nearest": None if plan.nearest is None else {"plan": plan_json(plan.nearest), "needs": plan.needs},
        "ways_out": list(plan.ways_out),
        "choices": [choice_json(c) for c in plan.choices],
        "pareto": [point_json(p) for p in plan.pareto],
    }
    if plan.best is not None:
        body |= run_json(plan.best)
    if plan.space is not None:
        body |= {"space": plan.space, "left_alone": plan.left}
    shown: dict[str, Any] = plain(body)
    return envelope("plan", plan.model, plan.cluster, plan.work) | shown


def check_object(checked: Checked) -> dict[str, Any]:
    """The object of `check`."""
    head = envelope("check", checked.model, checked.cluster, checked.work)
    return head | {
        "ok": checked.ok,
        "strategy": None if checked.strategy is None else strategy_json(checked.strategy, checked.stages),
        "given": plain(checked.given),
        "diagnostics": diagnostics_json(checked.diagnostics),
    }
