"""Chips and clusters as data. Bytes, bytes/s, FLOP/s, seconds; bandwidth is one way a chip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

Fabric = Literal["switched", "mesh", "torus", "none"]
LinkKind = Literal["nvlink", "xgmi", "ici", "neuronlink", "roce", "hccs", "pcie"]


@dataclass(frozen=True, slots=True)
class Chip:
    """One accelerator as its data sheet describes it. Peaks are dense."""

    name: str
    vendor: str
    family: str  # chips that share efficiency numbers: v100, a100, h100, b200, gb200, mi300x, tpu-v5p, ...
    hbm_bytes: float
    usable_bytes: float  # what one process can allocate
    hbm_bytes_s: float
    bf16_flops: float
    fp8_flops: float | None
    fp4_flops: float | None
    fabric: Fabric  # of the scale-up domain
    scale_up_size: int | None  # chips in the domain; None: it depends on the system that holds the chip
    scale_up_bytes_s: float | None  # one way, per chip, all links together; None: the data sheet does not say
    links: int  # torus links per chip (0 where it does not matter)
    link_bytes_s: float  # of one link, one way (0 where it does not matter)
    scale_out_bytes_s: float | None  # None: the data sheet does not say
    chips_per_node: int | None
    scale_up_latency_s: float
    scale_out_latency_s: float
    compute_units: int  # streaming multiprocessors or the like; 0: no wave quantisation (systolic arrays)
    systolic_side: int  # multipliers along a side of its systolic arrays; 0: it has none
    tdp_w: float | None
    year: int | None
    aliases: tuple[str, ...]
    source: str
    notes: str = ""
    derives_from: str = ""  # the family whose efficiency numbers stand in where this family has none
    link_kind: LinkKind = "nvlink"  # of the scale-up domain; names the message-size curve
    in_switch_reduction: bool = False  # the domain's switch adds up an all-reduce
    host_bytes_s: float = 24e9  # to host memory, one way, achieved
    host_memory_bytes_s: float = 25.6e9  # this chip's share of what the host's memory achieves
    assumed: tuple[tuple[str, str], ...] = ()  # (field, source) of figures that no data sheet gives
    sheet: str = ""  # the name of the chip whose data sheet this one was made from; "": its own
    lacks: tuple[str, ...] = ()  # formats that its matrix units do not take, though they have such a width

    @property
    def precisions(self) -> tuple[str, ...]:
        """The formats of matrix products that it has units for, widest first.

        Eight bits in blocks (`mxfp8`) need more than eight bits: Hopper, CDNA 3 and TPUs scale whole tensors.
        **Source** of `lacks`: NVIDIA TransformerEngine's support matrix (MXFP8 and NVFP4 from compute
        capability 10.0 on), the OCP MX formats that AMD's CDNA 4 lists, Volta's whitepaper (fp16 alone),
        Cloud TPU's pages (bf16 alone in 16 bits).
        """
        of_width = {
            "fp16": True, "bf16": True, "fp8": self.fp8_flops, "mxfp8": self.fp8_flops,
            "nvfp4": self.fp4_flops,
        }  # fmt: skip
        return tuple(name for name, has in of_width.items() if has and name not in self.lacks)

    @property
    def is_tpu(self) -> bool:
        """Whether this is a Google TPU (XLA frameworks are its default)."""
        return self.vendor == "Google"

    def peak_flops(self, precision: str) -> float:
        """Dense peak of matrix products at `precision`, FLOP/s; falls back to the next wider one it has."""
        if precision == "nvfp4" and self.fp4_flops:
            return self.fp4_flops
        if precision in ("fp8", "mxfp8", "nvfp4") and self.fp8_flops:
            return self.fp8_flops
        return self.bf16_flops


@dataclass(frozen=True, slots=True)
class Cluster:
    """`n_chips` of one chip, joined in domains of `scale_up_size`, the domains joined by `scale_out`.

    Torus chips: `torus` holds the slice's axes and `wraps` says which of them close into a ring; one slice is
    one domain and `n_slices` of them hang on the data-centre network.

    The figures of `FIGURES` may be arrays [n], one of each of n candidates (`as_one`).
    """

    name: str  # as the user wrote it
    chip: Chip
    n_chips: int
    scale_up_size: int  # chips of one domain that this cluster uses (divides n_chips)
    scale_up_bytes_s: float
    scale_out_bytes_s: float | None  # after oversubscription; None only where n_chips fits one domain
    usable_bytes: float
    torus: tuple[int, ...] = ()
    wraps: tuple[bool, ...] = ()
    n_slices: int = 1
    link_bytes_s: float = 0.0  # torus: one link, one way; mesh: to one peer, one way; otherwise 0
    oversubscription: float = 1.0
    derived: tuple[tuple[str, str, str], ...] = ()  # (field, value, because)

    @property
    def varies(self) -> bool:
        """Whether a figure is an array."""
        return any(isinstance(getattr(self, name), np.ndarray) for name in FIGURES)

    def with_axes(self, count: int) -> Cluster:
        """The same with so many axes more on figures that are arrays [n]."""
        return self._with(lambda figure: np.reshape(figure, (-1, *(1,) * count)))

    def repeated(self, times: int) -> Cluster:
        """The same with each of the figures that are arrays [n] so often in a row, [n * times]."""
        return self._with(lambda figure: np.repeat(figure, times))

    def take(self, part: Any) -> Cluster:
        """The same for some of the candidates, where figures are arrays [n]."""
        return self._with(lambda figure: np.take(figure, part))

    def _with(self, change: Callable[[Any], Any]) -> Cluster:
        arrays = {name: x for name in FIGURES if np.ndim(x := getattr(self, name))}
        changed: dict[str, Any] = {name: change(figure) for name, figure in arrays.items()}
        return replace(self, **changed) if changed else self


FIGURES = ("scale_up_bytes_s", "scale_out_bytes_s", "usable_bytes", "link_bytes_s")


def as_one(clusters: Sequence[Cluster]) -> Cluster | None:
    """Clusters as one whose `FIGURES` are arrays where they differ; None where they differ in more, names and
    what was derived apart."""
    first = clusters[0]
    told = ("name", "derived", "oversubscription")
    arrays: dict[str, Any] = {}
    for name in FIGURES:
        values = [getattr(one, name) for one in clusters]
        if any(value != values[0] for value in values):
            if None in values:
                return None
            arrays[name] = np.array(values, float)
    own = {name: getattr(first, name) for name in (*told, *FIGURES)}
    if any(one is not first and replace(one, **own) != first for one in clusters):
        return None
    return replace(first, **arrays)
