"""One layer of one microbatch on one rank: its operations summed into a row of numbers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.cost import collectives
from meshwright.cost.numbers import numbers
from meshwright.cost.ops import (
    Core,
    Matmul,
    Message,
    Operation,
    Passes,
    Shape,
    Stream,
    Words,
    core_passes,
    passes,
    stream_seconds,
)
from meshwright.cost.repeated import repeated, stays
from meshwright.hardware.records import Chip
from meshwright.profiles.load import when_compiled
from meshwright.profiles.records import Profile
from meshwright.strategy.offload import Offload
from meshwright.strategy.placement import Span
from meshwright.strategy.recompute import Recompute

Price = tuple[Operation, Any]  # with exposed seconds of a message, or `Passes`
NO_OFFLOAD = Offload("none")
COMPILED = frozenset({"compile", "unsloth"})  # switches that replace plain tensor operations by fused kernels
FUSED_NORMS = frozenset({"fused-kernels"})  # switches that fuse norms and rotations alone
FUSED = COMPILED | {"liger"}  # switches under which no plain tensor operations are left


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Seconds, bytes and FLOPs of one layer and microbatch on one rank; every field broadcasts.

    Compute seconds leave communication out; the axes' seconds are the exposed ones. `host_*` is how
    much longer launching the pass takes than the pass itself. `recompute` is the second forward.
    """

    forward: Any = 0.0
    backward_input: Any = 0.0
    backward_weight: Any = 0.0
    recompute: Any = 0.0
    tp_forward: Any = 0.0
    tp_backward: Any = 0.0  # with what recomputation sends again
    cp_forward: Any = 0.0
    cp_backward: Any = 0.0
    ep_forward: Any = 0.0
    ep_backward: Any = 0.0
    host_forward: Any = 0.0  # exposed beyond the device's own time
    host_backward: Any = 0.0
    host_weight: Any = 0.0  # where the weight part is a pass of its own
    host_split: Any = 0.0  # how much longer both parts of such a backward are waited for than a whole one
    alone: Any = 0.0  # a forward pass with its launches, where nothing is sent
    saved: Any = 0.0  # bytes kept from forward to backward
    offloaded: Any = 0.0  # of them, what waits in host memory
    live: Any = 0.0  # bytes its backward holds while it runs, beyond `saved`
    flops_forward: Any = 0.0
    flops_backward: Any = 0.0
    flops_recompute: Any = 0.0
    floor: Any = 0.0  # FLOPs over peak, all passes
    floor_forward: Any = 0.0  # of the forward pass alone

    @property
    def time_forward(self) -> Any:
        """Seconds of the forward pass."""
        return self.forward + self.tp_forward + self.cp_forward + self.ep_forward + self.host_forward

    def with_reference(self) -> LayerCost:
        """The same with a second forward pass before it, of a model as large that keeps nothing: the frozen
        reference of preference training (arXiv 2305.18290, equation 7)."""
        passes = ("forward", "tp_forward", "cp_forward", "ep_forward", "host_forward")
        twice = (*passes, "alone", "flops_forward")
        doubled: dict[str, Any] = {name: 2.0 * getattr(self, name) for name in twice}
        return replace(self, floor=self.floor + self.floor_forward, **doubled)


FIELDS = tuple(LayerCost.__dataclass_fields__)


def message_seconds(op: Message, spans: dict[str, Span], chip: Chip, profile: Profile) -> Any:
    """Seconds of one collective, nothing hidden."""
    span = at_level(spans[op.axis], op.level)
    fast, slow = profile["scale_up"], profile["scale_out"]
    if op.collective == "all_gather":
        return collectives.all_gather_time(op.nbytes, span, fast, slow)
    if op.collective == "reduce_scatter":
        return collectives.reduce_scatter_time(op.nbytes, span, fast, slow)
    if op.collective == "all_reduce":
        return collectives.all_reduce_time(op.nbytes, span, fast, slow)
    if op.collective == "all_to_all":
        return collectives.all_to_all_time(op.nbytes, span, fast, slow)
    if op.collective == "ring":  # (cp - 1) blocks, each the size of the rank's own keys and values
        return (span.degree - 1.0) * collectives.send_recv_time(op.nbytes, span, fast, slow)
    return collectives.expert_all_to_all_time(
        op.tokens, op.nbytes, op.top_k, op.n_experts, span, fast, slow, op.domains or None
    )


def at_level(span: Span, level: str) -> Span:
    """The part of a group that lies in one fast domain, or the group of one rank of each domain."""
    if level == "local":
        return replace(span, degree=span.local, remote=np.ones_like(span.remote)[()])
    if level == "remote":
        return replace(span, degree=span.remote, local=np.ones_like(span.local)[()])
    return span


def exposed(
    op: Message, spans: dict[str, Span], chip: Chip, profile: Profile, options: frozenset[str]
) -> Any:
    """Seconds of the collective that no compute hides. The one table of what hides what inside a layer.

    tp: the profile's share, half of it where a compiler sends beside pieces of its products (`async-tp`), all
    of it when the run says no overlap. cp ring: what its own attention blocks do not cover (backward sends
    twice the bytes beside 2.5 times the FLOPs: the same share or less). ep: the profile's share, a smaller
    one where another microbatch's compute runs beside it.
    """
    seconds = message_seconds(op, spans, chip, profile)
    if op.axis in ("tp", "etp"):
        share = np.minimum(profile["tp_exposed"], 1.0)
        share = share * (numbers()["async_share"] if "async-tp" in options else 1.0)
        return seconds if "no-overlap" in options else seconds * share
    if op.axis == "ep":
        hidden = "ep-overlap" in options and "no-overlap" not in options
        return seconds * np.minimum(profile["ep_overlapped" if hidden else "ep_exposed"], 1.0)
    if op.collective == "ring" and "no-overlap" not in options:
        beside = core_passes(Core("", "", op.hider_flops, 1.0, op.hider_widths), chip, profile).forward
        return np.maximum(seconds - beside, 0.0)
    return seconds


def launched(op: Operation, options: frozenset[str], chip: Chip) -> float:
    """Share of an operation's kernels that the host launches one by one; captured graphs and XLA launch none.

    Partial graphs capture attention, state-space layers and routing, and leave out experts (another size each
    time) and dense feed-forward; some capture routing alone. Graphs of layers capture all of each.
    """
    if chip.is_tpu or "cuda-graphs-full" in options:
        return 0.0
    if "cuda-graphs-router" in options:
        return 0.0 if op.name in ("router", "routing") else 1.0
    if "cuda-graphs-partial" in options:
        outside = op.module in ("mlp", "moe", "moe_act") and op.name not in ("router", "routing")
        return 1.0 if outside else 0.0
    return 0.0 if "cuda-graphs" in options else 1.0


def layer_cost(
    ops: tuple[Operation, ...],
    words: Words,
    spans: dict[str, Span],
    chip: Chip,
    profile: Profile,
    recompute: Recompute,
    options: frozenset[str] = frozenset(),
    offload: Offload = NO_OFFLOAD,
    *,
    whole: bool = False,
) -> LayerCost:
    """Sum `ops` under a recompute word; `whole`: the layer keeps only its boundary and runs forward twice."""
    prices = priced(ops, words, spans, chip, profile, options)
    return summed(prices, chip, profile, recompute, options, offload, whole=whole)


def priced(
    ops: tuple[Operation, ...],
    words: Words,
    spans: dict[str, Span],
    chip: Chip,
    profile: Profile,
    options: frozenset[str],
) -> Iterator[Price]:
    """Each operation with what it takes: the exposed seconds of a message, the passes of any other."""
    profile = _of_run(profile, options)
    for op in ops:
        if isinstance(op, Message):
            yield op, exposed(op, spans, chip, profile, options)
            continue
        cost = passes(op, words, chip, profile)
        if isinstance(op, Stream) and written_plainly(op, profile, options):
            forward, backward = (stream_seconds(nbytes, chip, profile) for nbytes in op.plain)
            cost = replace(
                cost, forward=cost.forward + forward, backward_input=cost.backward_input + backward
            )
        yield op, started(cost, chip)


def sent_anew(
    prices: Iterable[Price], spans: dict[str, Span], chip: Chip, profile: Profile, options: frozenset[str]
) -> Iterator[Price]:
    """The same operations with ranks placed otherwise: only messages take another time."""
    profile = _of_run(profile, options)
    for op, price in prices:
        yield op, exposed(op, spans, chip, profile, options) if isinstance(op, Message) else price


def _of_run(profile: Profile, options: frozenset[str]) -> Profile:
    """The profile, with what traffic a compiler leaves where a run compiles and the framework does not."""
    if not options & COMPILED or profile.framework.compiled:
        return profile
    numbers = {**profile.numbers, "traffic": when_compiled(profile.numbers["traffic"])}
    return replace(profile, numbers=numbers)


def written_plainly(op: Stream, profile: Profile, options: frozenset[str]) -> bool:
    """Whether an operation runs as the plain tensor operations it is written in."""
    by_hand = op.module == "norm" or op.name in ("qk_norm", "rope")
    return profile.framework.eager and not (options & FUSED or (by_hand and options & FUSED_NORMS))


class Common:
    """What operations of a layer take whatever is recomputed or offloaded, added up by the first sum of them
    (see `summed`): sums under other words need only what these change."""

    def __init__(self) -> None:
        self.done = False
        self.totals = _Totals()
        self.boundary: Any = None  # bytes that the layer begins with
        self.widest: Any = 0.0  # of the largest product's output, whose gradient stands beside what is saved
        self.buffers: Any = 0.0  # bytes of the largest message's
        self.waits = False

    def add(self, op: Operation, price: Any, kept: Any, by_host: float) -> None:
        """Add an operation that keeps so many bytes for backward, and of whose kernels the host launches a
        share."""
        if isinstance(op, Message):
            self.waits = self.waits or op.waits
            self.buffers = np.maximum(self.buffers, op.buffer)
            self.totals.add(f"{_axis(op)}_forward", op.forward * price)
            self.totals.add(f"{_axis(op)}_backward", op.backward * price)
            return
        self.totals.add_passes(price, by_host)
        self.totals.add("everything", kept)
        if isinstance(op, Matmul) and op.name != "head":  # what the logits' gradient takes is the loss's
            self.widest = np.maximum(self.widest, 2.0 * op.m * op.n * op.groups)
        if op.module == "boundary" and self.boundary is None:
            self.boundary = kept


def summed(
    prices: Iterable[Price],
    chip: Chip,
    profile: Profile,
    recompute: Recompute,
    options: frozenset[str],
    offload: Offload = NO_OFFLOAD,
    *,
    whole: bool = False,
    common: Common | None = None,
) -> LayerCost:
    """`layer_cost` of operations that are priced already: no price depends on recompute or offload.

    `common` is filled for these operations by the first call, and spares the next ones most of the sums.
    """
    common = common or Common()
    words = _Totals()
    if not common.done or not whole:
        _add(prices, chip, profile, recompute, options, offload, common, words, whole=whole)
        common.done = True
    if whole:
        words = common.totals.again()
        boundary = 0.0 if common.boundary is None else common.boundary
        words.add("saved", boundary)
        words.add("offloaded", boundary if offload.any and offload.operations is None else 0.0)

    def total(name: str) -> Any:
        return common.totals.of(name) + words.of(name)

    row: dict[str, Any] = {name: total(name) for name in FIELDS}
    beside = common.widest + common.buffers
    row["live"] = np.maximum(common.totals.of("everything") - row["saved"], 0.0) + beside
    return LayerCost(**(row | _by_host(row, total, profile["host"], waits=common.waits)))


def _add(
    prices: Iterable[Price],
    chip: Chip,
    profile: Profile,
    recompute: Recompute,
    options: frozenset[str],
    offload: Offload,
    common: Common,
    words: _Totals,
    *,
    whole: bool,
) -> None:
    """Add up operations: to `common`, unless that is done, what they take in any case, and to `words` what is
    recomputed, saved and offloaded where not the `whole` layer is run again."""
    habits = profile.framework
    compiled = bool(options & COMPILED)
    eager = habits.eager and not compiled
    first = True
    for op, price in prices:
        kept: Any = 0.0
        by_host = launched(op, options, chip)
        if not isinstance(op, Message):
            kept = op.saved
            if eager and isinstance(op, Stream) and not (op.module == "norm" and options & FUSED_NORMS):
                kept = kept + op.eager
        if not common.done:
            common.add(op, price, kept, by_host)
        if whole:
            continue
        again = repeated(op, recompute)
        if isinstance(op, Message):
            if np.ndim(again) or again:
                words.add(f"{_axis(op)}_backward", op.forward * again * price)
            if recompute.products:
                words.add("saved", op.result)
            continue
        if np.ndim(again) or again:
            words.add_again(price, again, by_host)
        if op.module == "boundary" and first:
            first = False
        else:
            kept = stays(op, kept, again, recompute, named=habits.keeps_named, compiled=compiled)
        words.add("saved", kept)
        if offload.takes(op.name):
            words.add("offloaded", kept)


def _axis(op: Message) -> str:
    return "tp" if op.axis == "etp" else op.axis


def _by_host(row: dict[str, Any], total: Callable[[str], Any], launch: Any, *, waits: bool) -> dict[str, Any]:
    """Seconds of launches beyond what the device of a `row` of sums takes, by pass; `launch` s a kernel."""
    device_forward = row["forward"] + row["tp_forward"] + row["cp_forward"] + row["ep_forward"]
    device_backward = (
        row["backward_input"] + row["backward_weight"] + row["recompute"]
        + row["tp_backward"] + row["cp_backward"] + row["ep_backward"]
    )  # fmt: skip
    forward, backward, weight = (total(f"kernels_{way}") for way in ("forward", "backward", "weight"))
    found = {
        "host_forward": beyond(launch * forward, device_forward, waits=waits),
        "host_backward": beyond(launch * backward, device_backward),
        "alone": row["forward"] + beyond(launch * forward, row["forward"], waits=waits),
    }
    if np.ndim(weight) or weight > 0.0:
        of_input = beyond(launch * (backward - weight), device_backward - row["backward_weight"])
        found["host_weight"] = beyond(launch * weight, row["backward_weight"])
        found["host_split"] = of_input + found["host_weight"] - found["host_backward"]
    return found


# What a forward that runs again adds to, and what it adds.
_AGAIN = {
    "recompute": "forward",
    "flops_recompute": "flops_forward",
    "floor": "floor_forward",
    "kernels_backward": "kernels_forward",
} | {f"{axis}_backward": f"{axis}_forward" for axis in ("tp", "cp", "ep")}


class _Totals:
    """Sums by name of numbers and arrays that broadcast: those of one shape are added up by themselves, so
    that what most operations look at is not spread over a whole grid again and again."""

    def __init__(self) -> None:
        self._parts: defaultdict[str, dict[tuple[int, ...], Any]] = defaultdict(dict)

    def add(self, name: str, value: Any) -> None:
        """Add to the sum of that name."""
        shape = getattr(value, "shape", ())
        parts = self._parts[name]
        parts[shape] = parts[shape] + value if shape in parts else value

    def add_passes(self, cost: Passes, by_host: Any) -> None:
        """Add what an operation takes; `by_host` is the share of its kernels that the host launches."""
        self.add("forward", cost.forward)
        self.add("backward_input", cost.backward_input)
        self.add("backward_weight", cost.backward_weight)
        self.add("flops_forward", cost.flops_forward)
        self.add("flops_backward", cost.flops_backward)
        self.add("floor_forward", cost.floor_forward)
        self.add("floor", cost.floor_forward + cost.floor_backward)
        self.add("kernels_forward", by_host * cost.kernels_forward)
        self.add("kernels_backward", by_host * cost.kernels_backward)
        self.add("kernels_weight", by_host * cost.kernels_weight)

    def add_again(self, cost: Passes, again: Any, by_host: Any) -> None:
        """Add the forward of an operation once more, or a share `again` of it."""
        self.add("recompute", again * cost.forward)
        self.add("flops_recompute", again * cost.flops_forward)
        self.add("floor", again * cost.floor_forward)
        self.add("kernels_backward", again * by_host * cost.kernels_forward)

    def again(self) -> _Totals:
        """All forwards once more."""
        found = _Totals()
        for name, forward in _AGAIN.items():
            found._parts[name] = dict(self._parts[forward])
        return found

    def of(self, name: str) -> Any:
        """The sum of that name, small arrays first; 0 where nothing was added."""
        return sum(sorted(self._parts[name].values(), key=np.size), 0.0)


def started(cost: Passes, chip: Chip) -> Passes:
    """The passes with each kernel's own start added."""
    each = numbers()["compiled_kernel_s" if chip.is_tpu else "kernel_s"]
    return replace(
        cost,
        forward=cost.forward + each * cost.kernels_forward,
        backward_input=cost.backward_input + each * (cost.kernels_backward - cost.kernels_weight),
        backward_weight=cost.backward_weight + each * cost.kernels_weight,
    )


def beyond(host: Any, device: Any, *, waits: bool = False) -> Any:
    """Seconds a pass lasts beyond its device time when the host needs `host` seconds to launch it.

    (host^4 + device^4)^(1/4) - device: the longer of the two, with a soft corner where they are alike, since
    short kernels starve the device before the sums are equal. A host that `waits` in each layer to hear how
    many tokens the experts got cannot run ahead into the next one: the square root of the squares.
    **Source** of the wait: Megatron-Bridge's recipes, which replace it ("syncs tokens_per_expert to the host
    every layer, which serializes the CPU behind the GPU"); both exponents assumed.
    """
    longer = np.maximum(np.maximum(host, device), 1e-12)
    squares = (host / longer) ** 2, (device / longer) ** 2
    if waits:
        return longer * np.sqrt(squares[0] + squares[1]) - device
    return longer * np.sqrt(np.sqrt(squares[0] ** 2 + squares[1] ** 2)) - device


def shape_of(seq_len: Any, microbatch_size: Any, tp: Any, cp: Any, ep: Any, etp: Any) -> Shape:
    """The shape a rank sees: its tokens are microbatch_size * seq_len / cp."""
    return Shape(microbatch_size * seq_len / cp, seq_len, microbatch_size, tp, cp, ep, etp)
