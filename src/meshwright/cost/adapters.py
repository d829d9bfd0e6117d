"""Low-rank adapters on a frozen model: what trains, what the rest weighs, what is kept for backward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from meshwright.cost.layers import operations
from meshwright.cost.ops import Matmul, Shape, Stream, Words
from meshwright.cost.states import Widths, adapter_widths, widths
from meshwright.model.params import embedding_params, head_params, total_params
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.strategy.finetune import BASE_BYTES, Finetune, parse
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.records import Strategy

# Linear layers of the attention block and of the feed-forward block, by the names of their operations, and
# how many matrices each product stands for.
_ATTENTION = {"qkv": 3, "q": 1, "kv": 2, "q_down": 1, "q_up": 1, "kv_down": 1, "kv_up": 1, "proj": 1,
              "in_proj": 1, "out_proj": 1}  # fmt: skip
_MLP = {"up": 2, "down": 1, "experts_up": 2, "experts_down": 1, "shared_up": 2, "shared_down": 1}
_PLAIN = Words(
    sp=False, cp_method="ring", precision="bf16", flash=True, regathers_input=True, dispatcher="all-to-all",
    imbalance=1.0, loss="whole", fused_experts=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Adapted:
    """Sums over a model's layers, no parallelism. `saved` and `live` are bytes a token, against a model whose
    own parameters train: what the frozen layers need not keep (below 0) and what the adapters keep (above).
    """

    params: float  # adapters
    quantised: float  # parameters that a quantised base holds in few bits
    wide: float  # the others, in 16 bits
    saved: float
    live: float  # of the layer with most


@lru_cache(maxsize=256)
def adapted(model: Model, finetune: Finetune, adapter_bytes: float, keeps_inputs: bool = False) -> Adapted:
    """Adapters of `finetune` on `model`; each adapted layer keeps `adapter_bytes` an element of its input.

    A adapter of rank r on a matrix [k, n] has r (k + n) parameters (LoRA, arXiv 2106.09685, section 4.1). A
    frozen matrix needs no input for a weight gradient; only an adapter on it does (and, `keeps_inputs`, some
    kernels of quantised products).
    """
    shape = Shape(tokens=1.0, seq_len=1.0, microbatch_size=1.0, tp=1, cp=1, ep=1, etp=1)
    per_block = []
    for block in model.blocks:
        params, kept = 0.0, 0.0
        gated = 2 if getattr(block.ffn, "gated", True) else 1
        for op in operations(block, model, shape, _PLAIN):
            if isinstance(op, Matmul):
                wanted = _adapted_matrices(op.name, finetune, gated)
                params += (
                    finetune.rank * (wanted * float(op.k) + float(op.n)) * float(op.groups) * (wanted > 0)
                )
                kept += adapter_bytes * wanted * float(op.m) * float(op.k) * float(op.groups)
            elif isinstance(op, Stream) and not finetune.adapts_mlp and not keeps_inputs:
                kept -= _unneeded(op)
        per_block.append((params, kept))
    pattern = [per_block[i] for i in model.pattern]
    ends = embedding_params(model) + head_params(model)
    total = float(total_params(model))
    return Adapted(
        params=sum(p for p, _ in pattern),
        quantised=total - ends,
        wide=ends,
        saved=sum(k for _, k in pattern),
        live=max(k for _, k in per_block),
    )


def _adapted_matrices(name: str, finetune: Finetune, gated: int) -> int:
    """How many adapters sit on the product called `name`."""
    if finetune.targets == "qv":
        return {"qkv": 2, "q": 1, "kv": 1}.get(name, 0)
    if finetune.targets == "qkv" and name in ("proj", "out_proj"):
        return 0
    many = _ATTENTION.get(name, 0)
    if many == 0 and finetune.adapts_mlp:
        many = _MLP.get(name, 0)
        if many == 2:
            many = gated
    return many


def _unneeded(op: Stream) -> float:
    """Bytes of `op` that only the weight gradient of a feed-forward matrix needs."""
    inputs = ("up_in", "shared_up_in", "permute", "act", "shared_act")
    return float(op.saved) if op.name in inputs else 0.0


def frozen_bytes(model: Model, finetune: Finetune, width: float) -> float:
    """Mean bytes a parameter of the frozen model: matrices as quantised, embedding and head as they are."""
    if not finetune.base:
        return width
    base = adapted(model, finetune, 0.0)
    return (BASE_BYTES[finetune.base] * base.quantised + width * base.wide) / (base.quantised + base.wide)


def trained_share(model: Model, word: str) -> float:
    """Parameters that train for each parameter of the model: 1 where nothing is frozen."""
    finetune = parse(word)
    if not finetune.frozen:
        return 1.0
    added = adapted(model, finetune, 0.0)
    return added.params / (added.quantised + added.wide)


def state_widths(model: Model, profile: Profile, strategy: Strategy, options: frozenset[str]) -> Widths:
    """Bytes of weights, gradients, optimizer state and step for each parameter of the model.

    Adapters train in fp32 beside a frozen model; a preference run that trains every parameter keeps a frozen
    reference in 16 bits.
    """
    finetune, offload = parse(strategy.finetune), parse_offload(strategy.offload)
    width = widths(profile.framework, strategy, options, offload)
    if not finetune.frozen:
        reference = 2.0 if finetune.pairs and not offload.params else 0.0
        return replace(width, weight=width.weight + reference)
    # Nothing makes frozen weights wider.
    frozen = 0.0 if offload.params else frozen_bytes(model, finetune, profile.framework.weight_bytes)
    share = trained_share(model, strategy.finetune)
    moments, step = (0.0, 0.0) if offload.optimizer else adapter_widths(strategy)
    return Widths(frozen + 4.0 * share, 4.0 * share, moments * share, step * share)


@lru_cache(maxsize=64)
def adapted_products(word: str) -> frozenset[tuple[str, int]] | None:
    """Names of the products that carry adapters, and on how many matrices; None where all trains."""
    finetune = parse(word)
    if not finetune.frozen:
        return None
    found = ((name, _adapted_matrices(name, finetune, 2)) for name in (*_ATTENTION, *_MLP))
    return frozenset((name, matrices) for name, matrices in found if matrices)


def plain_adapters(profile: Profile, word: str, options: frozenset[str]) -> bool:
    """Whether adapters run as the tensor operations they are written in; `fused-kernels` hold those of
    quantised bases (fms-acceleration's fused_lora), `unsloth` all."""
    fused = "unsloth" in options or ("fused-kernels" in options and parse(word).base)
    return profile.framework.eager and not fused
