"""What data parallelism sends once a step or once a microbatch, and how much of it nothing hides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.cost import collectives, schedule
from meshwright.cost.arrays import with_arrays
from meshwright.cost.ops import element_bytes
from meshwright.cost.stages import Stages, over_classes
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import BASE_BYTES
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.placement import Span
from meshwright.strategy.records import Strategy


@dataclass(frozen=True, slots=True)
class Traffic:
    """Seconds, nothing hidden: `gradients` and `weights` once a step, `gathers` a microbatch; `fetch`, what
    comes over the host link for one read of a rank's weights, where it is read for each microbatch."""

    gradients: Any
    weights: Any
    gathers: Any
    fetch: Any = 0.0


def bytes_a_weight(precision: str, profile: Profile) -> float:
    """Bytes of a weight on the wire when it is gathered: already quantised where the program gathers so."""
    return min(2.0, element_bytes(precision)) if profile.framework.gathers_quantised else 2.0


def traffic(
    stages: Stages, strategy: Strategy, spans: dict[str, Span], profile: Profile, precision: str,
    host_bytes_s: float, trained: float = 1.0,
) -> Traffic:  # fmt: skip
    """Seconds of each exchange per stage class, [n, C].

    ZeRO-0 all-reduces gradients. ZeRO-1 scatters gradients and gathers weights over the shard group, and
    all-reduces the shard over its replicas. ZeRO-2 scatters every microbatch. ZeRO-3 gathers weights forward
    and again backward and scatters gradients, every microbatch. A pipeline has several microbatches under
    way, so programs keep a stage's gathered weights and summed gradients whole (`memory` counts them) and
    exchange once a step. Dense and expert parameters have groups of their own. Of a frozen model only the
    share `trained` is exchanged, but for the gathers of ZeRO-3; a reference model is gathered for its
    forward. Weights that wait on the host come over its link: all that a rank keeps for each pass, or once
    a step where they then stay gathered. Where two ranks hold the same stages (DualPipe) and each takes half
    of the microbatches, they add up their gradients, sharded or whole, as replicas do. Replicas of ZeRO-3
    all-reduce with every scatter, the default of PyTorch (`FSDPModule.set_requires_all_reduce`).

    **Source**: ZeRO (arXiv 1910.02054), section 7; FSDP paper; torch's pipelining with FSDP2.
    """
    habits = profile.framework
    fast, slow = profile["scale_up"], profile["scale_out"] * habits.network_share
    sent = trained * min(habits.grad_bytes, habits.grad_sent_bytes)
    weight = (trained if strategy.zero < 3 else 1.0) * bytes_a_weight(precision, profile)
    finetune, zero = parse_finetune(strategy.finetune), 0.0
    reads = (2.0 if habits.reshards else 1.0) + finetune.pairs
    several = over_classes(np.asarray(strategy.pp) == 1) * 1.0  # exchanges a microbatch, not once a step
    fetched = BASE_BYTES[finetune.base] if finetune.frozen else habits.weight_bytes
    fetch = fetched / host_bytes_s if parse_offload(strategy.offload).params else 0.0
    held_twice = schedule.load(strategy.schedule).PARAMETERS_HELD > 1.0
    twins = _twins(_column(spans["pp"]))
    gradients: Any = zero
    weights: Any = zero
    gathers: Any = zero
    fetches: Any = zero
    for parameters, shard, replica, data in (
        (stages.dense, "shard", "replica", "data"),
        (stages.expert, "expert_shard", "expert_replica", "edp"),
    ):
        if fetch:
            from_host = fetch * parameters / (_column(spans[shard]).degree if strategy.zero == 3 else 1.0)
            whole = several if strategy.zero == 3 else 1.0  # sharded weights stay gathered under a pipeline
            fetches = fetches + whole * from_host
            weights = weights + (1.0 - whole) * from_host
        if strategy.zero == 0:
            gradients = gradients + collectives.all_reduce_time(
                parameters * sent, _column(spans[data]), fast, slow
            )
            if held_twice:
                gradients = gradients + collectives.all_reduce_time(parameters * sent, twins, fast, slow)
            continue
        group, rest = _column(spans[shard]), _column(spans[replica])
        scatter = collectives.reduce_scatter_time(parameters * sent, group, fast, slow)
        scatter = scatter + collectives.all_reduce_time(parameters * sent / group.degree, rest, fast, slow)
        if held_twice:
            scatter = scatter + collectives.all_reduce_time(
                parameters * sent / group.degree, twins, fast, slow
            )
        gather = collectives.all_gather_time(parameters * weight, group, fast, slow)
        once = 1.0 - several if strategy.zero > 1 else 1.0
        gradients = gradients + once * scatter
        weights = weights + (once if strategy.zero == 3 else 1.0) * gather
        if strategy.zero == 2:
            gathers = gathers + (1.0 - once) * scatter
        elif strategy.zero == 3:
            gathers = gathers + (1.0 - once) * (scatter + reads * gather)
        if habits.broadcast_s and strategy.zero < 3:  # owners broadcast their shards, one after another
            weights = weights + habits.broadcast_s * (group.degree - 1) * (parameters > 0)
    shape = stages.dense * 0.0
    return Traffic(gradients + shape, weights + shape, gathers + shape, fetches + shape)


def last_passes(strategy: Strategy, backward: Any, weight: Any) -> Any:
    """Seconds of the passes that make gradients whole, `last` of `exposed`, where backward may be split.

    Where a pipeline's schedule splits backward, the last weight part of a chunk: input parts are over then.
    """
    return np.where(over_classes(np.asarray(strategy.pp) > 1), weight / over_classes(strategy.vpp), backward)


def exposed(
    sent: Traffic, forward: Any, backward: Any, last: Any, microbatches: Any, profile: Profile,
    options: frozenset[str],
) -> Any:  # fmt: skip
    """Seconds a step of `sent` that stand in the way, [n, C]; the overlap table of data parallelism.

    Gradients hide behind the passes that make them whole (`last`, see `last_passes`), gathered weights behind
    the next forward, ZeRO-3 traffic behind its own microbatch; of the first two the profile's `dp_exposed`
    share never hides, of what every layer and microbatch sends `gather_exposed`. A run that says `no-overlap`
    hides nothing. What hides a microbatch's own traffic (ZeRO-2 scatters) hides no weights besides.
    """
    if "no-overlap" in options:
        return sent.gradients + sent.weights + microbatches * sent.gathers
    once, always = (np.minimum(profile[kind], 1.0) for kind in ("dp_exposed", "gather_exposed"))

    def left(seconds: Any, hider: Any, share: Any) -> Any:
        return np.maximum(share * seconds, seconds - hider)

    if not np.ndim(sent.gathers) and sent.gathers == 0.0:
        return left(sent.gradients, last, once) + left(sent.weights, forward, once)
    spare = np.minimum(np.maximum(forward + backward - sent.gathers, 0.0), forward)
    return (
        left(sent.gradients, last, once)
        + left(sent.weights, spare, once)
        + microbatches * left(sent.gathers, forward + backward, always)
    )


def _twins(pipeline: Span) -> Span:
    """A rank of a pipeline and its mirror image, in another domain where the pipeline reaches several."""
    far = np.asarray(pipeline.remote) > 1
    return replace(
        pipeline, degree=2 + 0 * far, local=np.where(far, 1, 2), remote=np.where(far, 2, 1), hops=1.0
    )


def _column(span: Span) -> Span:
    """The span with an axis for stage classes."""
    return with_arrays(span, over_classes)
