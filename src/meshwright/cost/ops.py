"""What a layer does, as a list of operations; and the time one operation takes on a chip.

Everything else about a layer (FLOPs, time, bytes kept for the backward pass, bytes sent) is summed from the
same list, so these cannot disagree. All fields broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import numpy as np

from meshwright.cost.numbers import numbers
from meshwright.hardware.records import Chip
from meshwright.profiles.records import MOST_OF_PEAK, Profile
from meshwright.strategy.records import Num


@dataclass(frozen=True, slots=True)
class Shape:
    """What one layer of one microbatch looks like to a rank: `tokens` = microbatch * seq_len / cp."""

    tokens: Num
    seq_len: Num
    microbatch_size: Num
    tp: Num
    cp: Num
    ep: Num
    etp: Num
    document_len: Num | None = None  # of packed documents, which attention stays inside

    @property
    def attended_len(self) -> Num:
        """The length that attention is causal over: a document's where several share a sequence."""
        return self.seq_len if self.document_len is None else np.minimum(self.document_len, self.seq_len)


@dataclass(frozen=True, slots=True)
class Words:
    """The words a layer's cost depends on."""

    sp: bool
    cp_method: str
    precision: str
    flash: bool  # attention scores never reach memory
    regathers_input: bool
    dispatcher: str
    imbalance: float  # busiest expert rank over the mean; of experts of a fixed capacity, that
    loss: str  # whole (fp32 copies of the logits), fused (in place), chunked (never whole)
    fused_experts: (
        bool  # activation and quantisation inside the grouped products, permutation inside dispatch
    )
    padded: bool = False  # experts are sent and compute rows up to their capacity, filled or not
    dropless: bool = True  # the host waits to hear how many tokens each expert got
    compiled: bool = False  # a compiler joins element-wise passes
    score_tile: float = 128.0  # queries and keys of a tile of attention scores
    # Products with adapters on frozen weights, and how many matrices each is; None: all train.
    adapted: frozenset[tuple[str, int]] | None = None
    plain_adapters: bool = False  # in plain tensor operations, with dropout, in fp32
    adapter_rank: int = 0
    base_bytes: float = 0.0  # of a quantised weight, which each pass makes 16 bits of; 0: it is kept in those


@dataclass(frozen=True, slots=True)
class Matmul:
    """[m, k] x [k, n], `groups` times. Backward: the same product twice more (input and weight gradients).

    `saved` bytes of its output (or of what only it needs) stay for the backward pass unless `module` is
    recomputed; `quantised`: follows the run's low precision. `parts`: widths of the matrices side by side
    in it, for programs that multiply by one after the other; `place`: of its first matrix among those of its
    layer, none where it is not a plain product.
    """

    name: str
    module: str
    m: Num
    k: Num
    n: Num
    groups: Num = 1
    quantised: bool = True
    saved: Num = 0.0
    fused: bool = False  # operands come quantised and activated out of the product before
    parts: tuple[Num, ...] = ()
    place: int | None = None
    calls: Num = 1.0  # library calls of one product: experts are taken one after another
    under_fp4: str = "nvfp4"  # what it runs in where the run asks for nvfp4
    kept_wide: float = 0.0  # share of the layers of its kind that a recipe for nvfp4 leaves in bf16
    vector: bool = False  # runs on the vector units: its operands are not laid as matrix units want them


@dataclass(frozen=True, slots=True)
class Core:
    """Attention core or another kernel bound by its FLOPs: `flops` forward, `backward` times that backward.

    `widths` are those of a head in its products (queries and keys, values): narrow heads reach a smaller
    share of the peak.
    """

    name: str
    module: str
    flops: Num
    backward: float
    widths: tuple[int, ...]
    saved: Num = 0.0
    kernels: Num = 1
    units: float = 1.0  # rate of the units it runs on over that of the matrix units
    tiled: Num = 1.0  # FLOPs it spends over `flops`, which leave out what is masked inside whole tiles

    @property
    def width(self) -> int:
        """The widest of `widths`."""
        return max(self.widths)


@dataclass(frozen=True, slots=True)
class Stream:
    """A memory-bound operation: bytes through HBM forward and backward, in so many kernels each way."""

    name: str
    module: str
    forward: Num
    backward: Num
    kernels: tuple[Num, Num] = (1, 1)
    saved: Num = 0.0
    fusible: bool = True  # scaled by how well the framework fuses
    # Where it is written in plain tensor operations: bytes that stay as well, and bytes moved besides.
    eager: Num = 0.0
    plain: tuple[Num, Num] = (0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Message:
    """A collective over an axis inside the layer; `nbytes` as `cost.collectives` wants it, times a pass."""

    name: str
    module: str
    axis: Literal["tp", "cp", "ep", "etp"]
    collective: Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "experts", "ring"]
    nbytes: Num
    forward: float = 1.0
    backward: float = 1.0
    hider_flops: Num = 0.0  # ring attention: what runs beside it, and the widths of its heads
    hider_widths: tuple[int, ...] = (128,)
    tokens: Num = 0.0  # of `experts`: tokens of the rank, each sent to the ranks of its top_k experts
    top_k: int = 0
    n_experts: int = 0
    domains: int = 0  # most domains a token may reach (group-limited routing); 0: no limit
    level: Literal["all", "local", "remote"] = (
        "all"  # the ranks of the group in one fast domain, or one of each
    )
    buffer: Num = 0.0  # bytes it fills that a layer holds while it runs
    result: Num = 0.0  # bytes it leaves forward, which stay where recompute keeps results
    waits: bool = False  # the host reads from the device how much there is before it goes on


Operation = Matmul | Core | Stream | Message

# Output tiles a GEMM library chooses from (CUTLASS's list). The first reaches the whole rate, by definition.
_TILES = ((256, 128), (128, 128), (128, 64), (64, 64))


def matmul_efficiency(m: Num, k: Num, n: Num, groups: Num, compute_units: int, side: int = 0) -> Any:
    """Share of the sustained rate that a product of this shape reaches (0-1]: tiles, waves, depth.

    A tile is computed whole (m/ceil(m)), tiles run in waves over the compute units (the last may be partly
    empty), and short k does not amortise the start. A systolic array of `side` multipliers a side instead
    holds a square of one operand while rows of the other pass: k and one of m and n fill whole sides, the
    third whole registers of rows.

    >>> round(float(matmul_efficiency(8192, 8192, 8192, 1, 132)), 2)
    0.97
    """
    known = numbers()
    depth = k / (k + known["depth_half"])
    if side:
        passing = known["systolic_rows"]
        still = np.maximum(_filled(n, side) * _filled(m, passing), _filled(m, side) * _filled(n, passing))
        return depth * _filled(k, side) * still
    best: Any = 0.0
    idle = 1.0 - known["last_wave_back"]
    for tile_m, tile_n in _TILES:
        share = 1.0 if (tile_m, tile_n) == _TILES[0] else known[f"tile_{tile_m}x{tile_n}"]
        rows, columns = np.ceil(m / tile_m), np.ceil(n / tile_n)
        tiles = rows * columns * groups
        waves = tiles / (np.ceil(tiles / compute_units) * compute_units)
        filled = m * n / (rows * tile_m * columns * tile_n)
        # Persistent kernels split the last wave along k, which recovers part of what it leaves idle.
        busy = (1.0 - idle * (1.0 - waves)) * np.minimum(1.0, tiles / compute_units)
        best = np.maximum(best, share * filled * busy)
    # Split-k keeps the units busy when there are few tiles, at some cost.
    few = m * n * groups / (64.0 * 64.0 * compute_units)
    busy = np.minimum(1.0, few * np.minimum(k / known["split_k_depth"], known["split_k_most"]))
    return depth * np.maximum(best, known["split_k_rate"] * busy * m / (np.ceil(m / 64) * 64))


def _filled(length: Num, whole: float) -> Any:
    """Share that `length` is of itself rounded up to multiples of `whole`."""
    return length / (np.ceil(length / whole) * whole)


def element_bytes(precision: str) -> float:
    """Bytes of one operand element of a matrix product at `precision`, with its share of a block's scale.

    A byte for 32 elements of MXFP8 (OCP Microscaling Formats 1.0), one for 16 of NVFP4 (arXiv 2509.25149),
    four for a whole tensor.

    >>> [element_bytes(p) for p in ("bf16", "fp8", "mxfp8", "nvfp4")]
    [2.0, 1.0, 1.03125, 0.5625]
    """
    return {"nvfp4": 0.5 + 1.0 / 16.0, "fp8": 1.0, "mxfp8": 1.0 + 1.0 / 32.0}.get(precision, 2.0)


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of one operation by pass, the FLOPs it really does, and the seconds it may not beat."""

    forward: Any = 0.0
    backward_input: Any = 0.0
    backward_weight: Any = 0.0
    flops_forward: Any = 0.0
    flops_backward: Any = 0.0
    floor_forward: Any = 0.0
    floor_backward: Any = 0.0
    kernels_forward: Any = 0.0
    kernels_backward: Any = 0.0
    kernels_weight: Any = 0.0  # of those of the backward


def stream_seconds(nbytes: Num, chip: Chip, profile: Profile) -> Any:
    """Seconds to move `nbytes` through HBM at the chip's sustained share of its bandwidth."""
    return nbytes / (chip.hbm_bytes_s * np.minimum(profile["memory"], MOST_OF_PEAK))


def matmul_passes(op: Matmul, words: Words, chip: Chip, profile: Profile) -> Passes:
    """Seconds of the three products of a linear layer: FLOPs over the sustained peak, or operand bytes.

    t = max(2 m k n g / (peak * share * efficiency(m, k, n)), bytes / bandwidth). Low precision adds the
    passes that quantise its operands, adapters on frozen weights their thin products. **Source**: roofline;
    shares from profiles.
    """
    precision = words.precision if op.quantised else "bf16"
    if precision == "nvfp4":
        if op.kept_wide:
            few = replace(op, kept_wide=0.0)
            wide = matmul_passes(replace(few, quantised=False), words, chip, profile)
            return _blended(matmul_passes(few, words, chip, profile), wide, op.kept_wide)
        precision = op.under_fp4
    low = precision in ("fp8", "mxfp8", "nvfp4") and chip.fp8_flops is not None
    product = _products(op, precision, low, chip, profile)
    if low:
        layouts = 2 if words.adapted is None else 1
        product = _quantising(product, op, precision, layouts, chip, profile)
    return product if words.adapted is None else _adapted(product, op, words, chip, profile)


def _products(op: Matmul, precision: str, low: bool, chip: Chip, profile: Profile) -> Passes:
    """The three products alone; `low`: the chip has units for `precision`, no slower than those for bf16."""
    peak = chip.peak_flops(precision)
    share = profile["matrix"] * (profile["low_precision"] if low else 1.0)
    if precision == "nvfp4" and chip.fp4_flops:
        share = share * profile["fp4"]
    rate = peak * np.minimum(share, MOST_OF_PEAK)
    if low:
        rate = np.maximum(rate, chip.bf16_flops * np.minimum(profile["matrix"], MOST_OF_PEAK))
    size = element_bytes(precision)
    on_vector = op.vector and chip.compute_units > 0

    def efficiency(m: Num, k: Num, n: Num) -> Any:
        """Share of `rate` that one of the three products reaches."""
        share = matmul_efficiency(m, k, n, op.groups, chip.compute_units, chip.systolic_side)
        # Systolic arrays pad whatever they are given.
        return np.minimum(share, numbers()["vector_rate"] * peak / rate) if on_vector else share

    flops = 2.0 * op.m * op.k * op.n * op.groups
    operands = (op.m * op.k + op.k * op.n) * size * op.groups + 2.0 * op.m * op.n * op.groups
    traffic = stream_seconds(operands, chip, profile)
    # The weight gradient is added to what earlier microbatches left: read and written once more.
    accumulated = operands + (2.0 * profile.framework.grad_bytes - size) * op.k * op.n * op.groups
    floor = np.maximum(flops / peak, operands / chip.hbm_bytes_s)
    each = 1.0 + numbers()["call_share"] * (op.calls - 1.0)
    return Passes(
        forward=np.maximum(flops / (rate * efficiency(op.m, op.k, op.n)), traffic),
        backward_input=np.maximum(flops / (rate * efficiency(op.m, op.n, op.k)), traffic),
        backward_weight=np.maximum(
            flops / (rate * efficiency(op.k, op.m, op.n)), stream_seconds(accumulated, chip, profile)
        ),
        flops_forward=flops,
        flops_backward=2.0 * flops,
        floor_forward=floor,
        floor_backward=2.0 * floor,
        kernels_forward=each,
        kernels_backward=2.0 * each,
        kernels_weight=each,
    )


def _quantising(
    product: Passes, op: Matmul, precision: str, layouts: int, chip: Chip, profile: Profile
) -> Passes:
    """`product` with what quantises its operands.

    x is read in 16 bits and written in so many `layouts` forward, its gradient in as many backward: two, but
    one where the weights are frozen, for the weight gradient alone wants the second. Weights are quantised
    once a step, and a fused program quantises on the way out of the product before. Four bits need the
    largest value of the whole tensor first: one more reading (arXiv 2509.25149, appendix).
    """
    size = element_bytes(precision)
    copies = 0.0 if op.fused else (4.0 if precision == "nvfp4" else 2.0) + layouts * size
    x, dy = op.m * op.k * op.groups, op.m * op.n * op.groups
    return replace(
        product,
        forward=product.forward + stream_seconds(copies * x, chip, profile),
        backward_input=product.backward_input + stream_seconds(copies * dy, chip, profile),
        kernels_forward=2.0 * product.kernels_weight,
        kernels_backward=3.0 * product.kernels_weight,
    )


def _adapted(product: Passes, op: Matmul, words: Words, chip: Chip, profile: Profile) -> Passes:
    """`product` with frozen weights, which get no gradient, and what its adapters move beside it."""
    each = product.kernels_weight
    frozen = replace(
        product,
        backward_weight=0.0,
        flops_backward=product.flops_forward,
        floor_backward=product.floor_forward,
        kernels_backward=product.kernels_backward - each,
        kernels_weight=0.0,
    )
    if words.base_bytes and op.name != "head":
        frozen = _widened(frozen, op, words.base_bytes, chip, profile)
    matrices = dict(words.adapted or ()).get(op.name, 0)
    if not matrices:
        return frozen
    if not words.plain_adapters:
        matrices = 1  # one adapter on the product of all
    x, y = float(matrices) * op.m * op.k * op.groups, op.m * op.n * op.groups
    kind, known = "plain_adapter" if words.plain_adapters else "adapter", numbers()

    def moved(way: str) -> Any:
        """Bytes beside the frozen product."""
        return known[f"{kind}_{way}_input_bytes"] * x + known[f"{kind}_{way}_output_bytes"] * y

    # Two thin products forward, twice as many backward; wide ranks compute longer than they move bytes.
    flops = 2.0 * words.adapter_rank * (x + y)
    rate = chip.bf16_flops * np.minimum(profile["matrix"], MOST_OF_PEAK)
    forward = np.maximum(stream_seconds(moved("forward"), chip, profile), flops / rate)
    backward = np.maximum(stream_seconds(moved("backward"), chip, profile), 2.0 * flops / rate)
    return replace(
        frozen,
        forward=frozen.forward + forward,
        backward_input=frozen.backward_input + backward,
        flops_forward=frozen.flops_forward + flops,
        flops_backward=frozen.flops_backward + 2.0 * flops,
        floor_forward=frozen.floor_forward + flops / chip.bf16_flops,
        floor_backward=frozen.floor_backward + 2.0 * flops / chip.bf16_flops,
        kernels_forward=frozen.kernels_forward + 2.0 * matrices * each,
        kernels_backward=frozen.kernels_backward + 4.0 * matrices * each,
    )


def _widened(frozen: Passes, op: Matmul, nbytes: float, chip: Chip, profile: Profile) -> Passes:
    """`frozen` with what makes 16 bits of quantised weights before each of its products: `nbytes` a weight
    are read and two written (QLoRA, arXiv 2305.14314, equation 5)."""
    seconds = stream_seconds((nbytes + 2.0) * op.k * op.n * op.groups, chip, profile)
    return replace(
        frozen,
        forward=frozen.forward + seconds,
        backward_input=frozen.backward_input + seconds,
        kernels_forward=frozen.kernels_forward + 1.0,
        kernels_backward=frozen.kernels_backward + 1.0,
    )


def _blended(most: Passes, rest: Passes, share: float) -> Passes:
    """The mean over layers of which `share` are as `rest`."""
    mean = {
        f.name: (1.0 - share) * getattr(most, f.name) + share * getattr(rest, f.name) for f in fields(most)
    }
    return Passes(**mean)


def _head_filled(widths: tuple[int, ...], side: int) -> float:
    """Share of a systolic array that products of heads so wide fill."""
    return sum(widths) / sum(-(-width // side) * side for width in widths)


def core_passes(op: Core, chip: Chip, profile: Profile) -> Passes:
    """Seconds of an attention core: FLOPs over the peak's share that such kernels sustain.

    The share is one of heads 128 wide. Narrower ones leave the matrix units waiting, in proportion. A
    systolic array is filled by a head's width in both products (as k, then as n), whatever the tokens. What
    is masked inside a tile takes time and does not count as FLOPs. The backward kernel is slower.
    """
    lost = (1.0 - numbers()["narrow_head_rate"]) * (128.0 - op.width) / 64.0
    narrow = min(1.0, 1.0 - lost)
    if chip.systolic_side and op.units == 1.0:
        narrow = _head_filled(op.widths, chip.systolic_side) / _head_filled((128,), chip.systolic_side)
    rate = chip.bf16_flops * op.units * np.minimum(profile["attention"] * narrow, MOST_OF_PEAK)
    seconds = op.flops * op.tiled / rate
    floor = op.flops / chip.bf16_flops
    return Passes(
        forward=seconds,
        backward_input=op.backward * seconds / numbers()["attention_backward_rate"],
        flops_forward=op.flops,
        flops_backward=op.backward * op.flops,
        floor_forward=floor,
        floor_backward=op.backward * floor,
        kernels_forward=1.0 * op.kernels,
        kernels_backward=1.0 * op.kernels,
    )


def stream_passes(op: Stream, chip: Chip, profile: Profile) -> Passes:
    """Seconds of a memory-bound operation."""
    factor = profile["traffic"] if op.fusible else 1.0
    return Passes(
        forward=stream_seconds(op.forward * factor, chip, profile),
        backward_input=stream_seconds(op.backward * factor, chip, profile),
        floor_forward=op.forward * 0.0,
        kernels_forward=1.0 * op.kernels[0],
        kernels_backward=1.0 * op.kernels[1],
    )


def passes(op: Matmul | Core | Stream, words: Words, chip: Chip, profile: Profile) -> Passes:
    """Seconds of one operation by pass."""
    if isinstance(op, Matmul):
        return matmul_passes(op, words, chip, profile)
    if isinstance(op, Core):
        return core_passes(op, chip, profile)
    return stream_passes(op, chip, profile)
