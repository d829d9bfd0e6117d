"""What a request names, once read: a cluster with the figures that replace its sheet's, or a whole plan.

Apart from the file schemas, so that a request that names no file does not load them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.hardware.overrides import FIELDS as OVERRIDES
from meshwright.hardware.records import Cluster
from meshwright.model.records import Model
from meshwright.units import GIB, UnitError, parse_bytes, parse_rate

__all__ = ["OVERRIDES", "ClusterGiven", "PlanGiven", "named", "override"]


@dataclass(frozen=True, slots=True)
class ClusterGiven:
    """A cluster and how it was given: the text of `--on`, the figures replaced, the chip's own figures."""

    cluster: Cluster
    on: str
    overrides: dict[str, float]
    chip: dict[str, Any]

    def mapping(self) -> str | dict[str, Any]:
        """What a plan file says: the plain spelling, or the mapping where a figure was replaced."""
        if not self.overrides and not self.chip:
            return self.on
        return {"on": self.on, **self.overrides, **({"chip": self.chip} if self.chip else {})}


def override(name: str, text: str) -> float:
    """The value of `--set cluster.NAME=TEXT` in the unit of its name; InputError when unreadable.

    Whether it makes sense for the chip is judged where the cluster is built.
    """
    if name not in OVERRIDES:
        hint = did_you_mean(name, OVERRIDES) or f"known fields: {', '.join(OVERRIDES)}"
        raise InputError(
            Diagnostic("MW902", f"--set cluster.{name}: no such field", where="--set", hint=hint)
        )
    try:
        return _figure(name, text)
    except ValueError as error:
        message = str(error) if isinstance(error, UnitError) else f"{text!r} is not a number"
        hint = f"for example cluster.{name}={_EXAMPLES[name]}"
        raise InputError(
            Diagnostic("MW902", f"--set cluster.{name}={text}: {message}", where="--set", hint=hint)
        ) from None


_EXAMPLES = {
    "scale_up_size": "8", "scale_up_gbytes_s": "450GB/s", "scale_out_gbits_s": "400Gbit/s",
    "oversubscription": "2", "usable_gib": "76GiB",
}  # fmt: skip


def _figure(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        if name == "usable_gib":
            return parse_bytes(text) / GIB
        if name == "scale_up_gbytes_s":
            return parse_rate(text) / 1e9
        if name == "scale_out_gbits_s":
            return parse_rate(text) / (1e9 / 8)
        raise


def named(on: str, overrides: dict[str, float]) -> ClusterGiven:
    """The cluster that `--on` spells, with `overrides` in the units of their names."""
    from meshwright.hardware import cluster

    return ClusterGiven(cluster.parse(on, dict(overrides)), on, dict(overrides), {})


@dataclass(frozen=True, slots=True)
class PlanGiven:
    """A plan file as read: what it fixes, and how it spelled its model."""

    model: Model
    model_as_given: str | dict[str, Any]
    cluster: ClusterGiven
    work: dict[str, Any]
    strategy: dict[str, Any]
    estimate: dict[str, Any] = field(default_factory=dict)
    price_per_chip_hour: float | None = None
