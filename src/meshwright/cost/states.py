"""Bytes a trained parameter costs: itself, its gradient, what the optimizer keeps, what its step needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meshwright.hardware.records import Chip
from meshwright.profiles.records import Framework
from meshwright.strategy.offload import Offload
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.placement import Span
from meshwright.strategy.records import Strategy

# Moments a parameter by kind of optimizer, as (numbers kept, bytes of one where it is not the program's own
# width). Factored second moments (Adafactor, arXiv 1804.04235) are a row and a column of each matrix: nothing
# beside it. Momentum alone: Muon of the matrices inside layers, Lion (arXiv 2302.06675). 8-bit moments carry
# an fp32 scale for every 256 (arXiv 2110.02861).
_MOMENTS: dict[str, tuple[float, float | None]] = {
    "adamw": (2.0, None),
    "adamw-bf16": (2.0, 2.0),
    "adamw-8bit": (2.0, 1.0 + 4.0 / 256.0),
    "adafactor": (0.0, None),
    "muon": (1.0, None),
    "lion": (1.0, None),
    "sgd": (0.0, None),
}
_MUON_LEAVES_OUT = 2.0  # moments of embedding and head, which AdamW trains (arXiv 2502.16982, section 2.2)
# Optimizers whose step works on all of a rank's parameters at once and holds one more copy while it does.
_MULTI_TENSOR = ("adamw", "adamw-bf16", "lion")


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes a parameter. `step`: temporaries of the optimizer step, beside gradients and moments. `embedding`
    and `head`: what the optimizer keeps of a parameter there beyond `optimizer`."""

    weight: float
    grad: float
    optimizer: float
    step: float
    embedding: float = 0.0
    head: float = 0.0

    @property
    def trained(self) -> float:
        """Everything that stays between two steps, gradients included."""
        return self.weight + self.grad + self.optimizer


def state_copies(strategy: Strategy, spans: dict[str, Span], options: frozenset[str]) -> tuple[Any, Any]:
    """Ranks over which one copy of the optimizer state is sharded, of dense and of expert parameters.

    The ranks of the shard group, or under ZeRO-3 with `outer-optimizer` all that hold the parameter
    (outer_dp_sharding_strategy optim of Megatron FSDP).
    """
    if strategy.zero == 0:
        return 1.0, 1.0
    outer = strategy.zero == 3 and "outer-optimizer" in options
    dense, expert = (
        spans[group].degree * (spans[copies].degree if outer else 1.0)
        for group, copies in (("shard", "replica"), ("expert_shard", "expert_replica"))
    )
    return dense, expert


def own_precision(framework: Framework) -> bool:
    """Whether moments have the parameter's own type and there is no master copy (PyTorch, XLA programs)."""
    return framework.optimizer_bytes <= 2.0 * framework.weight_bytes


def widths(
    framework: Framework, strategy: Strategy, options: frozenset[str], offload: Offload | None = None
) -> Widths:
    """Widths of a parameter that trains, by the program's habits, the optimizer and the run's words.

    A torch optimizer keeps its state in the parameter's own type: 16-bit weights mean 16-bit moments, 8 bytes
    in all, and its multi-tensor step holds one more copy: 10. Programs that flatten sharded parameters in
    fp32 (`upcasts_sharded`) cost twice that whatever the flag for 16 bits says. **Source**: peaks of full
    fine-tuning in the fms-acceleration table, 10.0 and 20.0 bytes a parameter.
    """
    weight, grad, step = framework.weight_bytes, framework.grad_bytes, framework.step_bytes
    own = own_precision(framework)
    if own:
        width = weight
        if "bf16-weights" in options:
            width = 2.0
        elif "fp32-weights" in options or (framework.upcasts_sharded and strategy.zero >= 3):
            width = 4.0
        grad, step, weight = grad * width / weight, step * width / weight, width
    count, _ = _MOMENTS[strategy.optimizer]
    # ZeRO-1 and 2 of such programs are DeepSpeed's: 16-bit weights, and an fp32 master beside fp32 moments.
    mixed = own and framework.upcasts_sharded and 1 <= strategy.zero <= 2
    one = moment_bytes(strategy.optimizer, weight if own and not mixed else 4.0)
    master = (4.0 if mixed else 0.0) if own else framework.optimizer_bytes - 8.0
    if "fp32-gradients" in options:  # gradients add up and are reduced in fp32 buffers
        grad = max(grad, 4.0)
    if "fp32-accumulation" in options:  # DeepSpeed's 16-bit optimizer adds gradients up in whole fp32 buffers
        grad += 4.0
    optimizer = master + count * one
    embedding, head = 0.0, 0.0
    if strategy.optimizer == "muon":
        embedding = head = (_MUON_LEAVES_OUT - count) * one
    elif strategy.optimizer == "adamw-8bit" and framework.wide_embedding_moments:
        embedding = count * (4.0 - one)
    if strategy.optimizer not in _MULTI_TENSOR or "fused-optimizer" in options:
        step = 0.0
    if offload is not None and offload.optimizer:
        optimizer, step, embedding, head = 0.0, 0.0, 0.0, 0.0  # the host steps
    if offload is not None and offload.params:
        weight = 0.0
    if "opt-in-bwd" in options:  # each layer steps as soon as its gradient is there
        grad, step = 0.0, 0.0
    return Widths(weight, grad, optimizer, step, embedding, head)


def grads_leave(framework: Framework, strategy: Strategy) -> bool:
    """Whether gradients go to the host as they are made: its optimizer steps there, and no buffer keeps
    them."""
    return parse_offload(strategy.offload).optimizer and not framework.keeps_grads


def moment_bytes(optimizer: str, own: float) -> float:
    """Bytes of one moment, of parameters whose moments are `own` bytes wide unless the optimizer says."""
    width = _MOMENTS[optimizer][1]
    return own if width is None else width


def adapter_widths(strategy: Strategy) -> tuple[float, float]:
    """Bytes of moments and of the step's temporaries a parameter of an adapter, which trains in fp32.

    >>> adapter_widths(Strategy(dp=1)), adapter_widths(Strategy(dp=1, optimizer="adamw-8bit"))
    ((8.0, 4.0), (2.03125, 0.0))
    """
    moments = _MOMENTS[strategy.optimizer][0] * moment_bytes(strategy.optimizer, 4.0)
    return moments, 4.0 if strategy.optimizer in _MULTI_TENSOR else 0.0


def host_step_seconds(framework: Framework, strategy: Strategy, options: frozenset[str], chip: Chip) -> float:
    """Seconds of an offloaded optimizer's step for a trained parameter, through one chip's share of the host.

    max(gradient / link, (gradient + 2 state + weight) / memory, weight / link): buckets flow down, through
    the update and up again, so the slowest of the three sets the pace. Nothing hides behind the passes: the
    norm of all gradients comes first.
    **Source**: ZeRO-Offload (arXiv 2101.06840), section 4; the host's figures from `host_links.csv`.
    """
    kept = widths(framework, strategy, options)
    link, memory = chip.host_bytes_s, chip.host_memory_bytes_s
    moved = kept.grad + 2.0 * kept.optimizer + kept.weight
    return max(kept.grad / link, moved / memory, kept.weight / link)


def update_bytes(framework: Framework, strategy: Strategy, options: frozenset[str]) -> float:
    """Bytes through HBM that the optimizer's step costs a trained parameter.

    Gradients are read twice (norms and clipping, then the update), state is read and written, weights are
    written, and read too where they are their own master copy: for Adam with fp32 state beside 16-bit weights
    2 x 4 + 2 x 12 + 2 = 34.
    """
    width = widths(framework, strategy, options)
    passes = 2.0 if own_precision(framework) else 1.0
    return 2.0 * width.grad + 2.0 * width.optimizer + passes * width.weight
