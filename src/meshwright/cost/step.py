"""One optimizer step: time and memory of the worst rank."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from meshwright.cost import collectives, data_parallel, memory, schedule
from meshwright.cost.evaluation import MEMORY_KEYS, Evaluation
from meshwright.cost.flops import model_flops
from meshwright.cost.ops import stream_seconds
from meshwright.cost.stages import Stages, over_classes, stages
from meshwright.cost.tree import tree
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.placement import Span, spans
from meshwright.strategy.records import Strategy
from meshwright.work import Work


def size_of(work: Work, strategy: Strategy, profile: Profile) -> tuple[int, ...]:
    """Shape that all numbers of a request broadcast to."""
    numbers = [getattr(strategy, f.name) for f in fields(strategy)]
    numbers += [work.seq_len, work.global_batch_size, *(x.value for x in profile.numbers.values())]
    return np.broadcast_shapes(*(np.shape(x) for x in numbers if isinstance(x, np.ndarray)))


def optimizer_seconds(
    per_rank: Stages, strategy: Strategy, reach: dict[str, Span], cluster: Cluster, profile: Profile
) -> Any:
    """Seconds of the optimizer step, [n, C]: gradients, master weights and moments through HBM.

    Adam reads gradient, master and two moments and writes master, moments and the compute copy: with fp32
    moments 4 + 12 + 12 + 2 bytes a parameter of the shard; norms and clipping read the gradients once more.
    """
    whole = strategy.zero == 0
    shard = 1.0 if whole else over_classes(reach["shard"].degree)
    expert_shard = 1.0 if whole else over_classes(reach["expert_shard"].degree)
    owned = per_rank.dense / shard + per_rank.expert / expert_shard
    nbytes = 34.0 if strategy.optimizer == "adamw" else 26.0
    return stream_seconds(nbytes * owned, cluster.chip, profile)


def numbers_over_classes(profile: Profile) -> Profile:
    """The profile with an axis for stage classes on numbers that are arrays."""
    return replace(
        profile, numbers={k: replace(x, value=over_classes(x.value)) for k, x in profile.numbers.items()}
    )


def evaluate(
    model: Model, cluster: Cluster, work: Work, strategy: Strategy, profile: Profile, *, detail: bool = False
) -> Evaluation:
    """Step time and peak memory of `strategy`; arrays in its degrees give arrays out (see `Evaluation`).

    Words (schedule, recompute, zero, sp, ...) are single values: loop over them. `detail` builds the tree of
    terms and wants plain numbers. Assumes a legal strategy (see `checks`).

    Step = microbatches * slowest stage + bubble + exposed data-parallel traffic + optimizer. With stages of
    seconds t: m max(t) + (sum(t) - max(t)) / v for (interleaved) 1F1B. **Assumes** the slowest stage is the
    one whose microbatches, exchange and optimizer step last longest together.
    """
    outer = size_of(work, strategy, profile)
    n = int(np.prod(outer)) if outer else 1
    plan = schedule.load(strategy.schedule)
    by_class = numbers_over_classes(profile)
    per_rank = stages(model, cluster, work, strategy, profile, n)
    reach = spans(cluster, strategy)
    microbatches = np.broadcast_to(
        np.asarray(work.global_batch_size / (strategy.dp * strategy.microbatch_size), float), (n,)
    )
    cost, m = per_rank.cost, microbatches[:, None]
    vpp = over_classes(strategy.vpp)
    real = per_rank.multiplicity > 0

    forward = sum(cost[k] for k in ("forward", "tp_forward", "cp_forward", "ep_forward", "host_forward"))
    weight = cost["backward_weight"]
    backward = weight + sum(
        cost[k]
        for k in ("backward_input", "recompute", "tp_backward", "cp_backward", "ep_backward", "host_backward")
    )
    hop = collectives.send_recv_time(
        2.0 * model.d_model * work.seq_len * strategy.microbatch_size / (strategy.cp * strategy.tp),
        reach["pp"], profile["scale_up"], profile["scale_out"],
    )  # fmt: skip
    hop = np.where(np.asarray(strategy.pp) > 1, hop, 0.0)
    hops = 2.0 * over_classes(hop) * vpp * plan.P2P_EXPOSED * np.ones_like(forward)
    copied = per_rank.offloaded / cluster.chip.host_bytes_s
    waits = np.maximum(copied - forward, 0.0) + np.maximum(copied - backward, 0.0)  # on the host link
    busy = forward + backward + hops + waits

    sent = data_parallel.traffic(per_rank, strategy, reach, by_class, work.precision)
    dp = data_parallel.exposed(sent, forward, backward, m, by_class, work.options)
    optimizer = optimizer_seconds(per_rank, strategy, reach, cluster, by_class)
    last = np.where(real, m * busy + dp + optimizer, -1.0).argmax(-1)[:, None]

    def of(values: Any) -> Any:
        return np.take_along_axis(np.broadcast_to(values, real.shape), last, -1)[:, 0]

    slowest = np.where(real, busy, 0.0).max(-1)
    times = per_rank.multiplicity
    others = {
        k: (v * times).sum(-1) - of(v)
        for k, v in (("f", forward + hops / 2), ("b", backward + hops / 2), ("w", weight))
    }
    bubble = plan.bubble(others["f"], others["b"], others["w"], np.asarray(strategy.vpp)) + microbatches * (
        slowest - of(busy)
    )
    straggler = profile["straggler"] * np.log2(max(cluster.n_chips / 8.0, 1.0))
    parts = {
        "compute": microbatches * of(cost["forward"] + cost["backward_input"] + weight + cost["recompute"]),
        "tp": microbatches * of(cost["tp_forward"] + cost["tp_backward"]),
        "cp": microbatches * of(cost["cp_forward"] + cost["cp_backward"]),
        "ep": microbatches * of(cost["ep_forward"] + cost["ep_backward"]),
        "dp": of(dp),
        "pp": microbatches * of(hops),
        "bubble": np.maximum(bubble, 0.0),
        "optimizer": of(optimizer),
    }
    host = microbatches * of(cost["host_forward"] + cost["host_backward"] + waits)
    subtotal = host + sum(parts.values())
    parts["other"] = host + straggler * subtotal
    step_time: Any = (1.0 + straggler) * subtotal

    held = memory.categories(
        model,
        work,
        strategy,
        by_class,
        per_rank,
        reach,
        plan,
        microbatches,
        cluster.usable_bytes,
    )
    total = np.where(real, sum(held.values()), -1.0)
    fullest = total.argmax(-1)[:, None]
    by_category = {
        k: np.take_along_axis(np.broadcast_to(held[k], real.shape), fullest, -1)[:, 0] for k in MEMORY_KEYS
    }
    stage = np.take_along_axis(per_rank.first_rank, fullest, -1)[:, 0]

    flops = cost["flops_forward"] + cost["flops_backward"] + cost["flops_recompute"]
    all_ranks = microbatches * (flops * times).sum(-1) * (cluster.n_chips / np.asarray(strategy.pp))
    result = Evaluation(
        step_time_s=shaped(step_time, outer),
        time_s={k: shaped(v, outer) for k, v in parts.items()},
        recompute_s=shaped(microbatches * of(cost["recompute"]), outer),
        memory_bytes={k: shaped(v, outer) for k, v in by_category.items()},
        peak_bytes=shaped(sum(by_category.values()), outer),
        peak_stage=shaped(stage, outer),
        capacity_bytes=cluster.usable_bytes,
        model_flops=model_flops(model, work.seq_len) * work.tokens_per_step,
        hardware_flops=shaped(all_ranks, outer),
        floor_time_s=shaped(microbatches * np.where(real, cost["floor"], 0.0).max(-1), outer),
    )
    if not detail:
        return result
    return replace(result, terms=tree(result, per_rank, microbatches, strategy, work, host, straggler))


def shaped(values: Any, outer: tuple[int, ...]) -> Any:
    """A flat result as the request's shape; a plain number where the request held only plain numbers."""
    values = np.asarray(values, float)
    return np.broadcast_to(values, outer or (1,)).reshape(outer) if outer else float(values.ravel()[0])
