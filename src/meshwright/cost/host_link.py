"""Passes that wait for the host link: for activations on their way out and back, or for weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.hardware.records import Cluster
from meshwright.profiles.records import Framework
from meshwright.strategy.finetune import parse as parse_finetune
from meshwright.strategy.offload import parse as parse_offload
from meshwright.strategy.records import Strategy


@dataclass(frozen=True, slots=True)
class Waits:
    """Seconds that a forward and a backward last longer than they compute; `weight` is the part of the
    latter that falls to the weight part."""

    forward: Any = 0.0
    backward: Any = 0.0
    weight: Any = 0.0


@dataclass(frozen=True, slots=True)
class Copies:
    """Seconds that the link copies one way beside each pass of one microbatch; arguments broadcast.

    `offloaded`: a forward's activations to the host, and beside the backward from there. `forward`,
    `backward`: weights from the host.
    """

    offloaded: Any
    forward: Any
    backward: Any

    def waits(self, forward: Any, backward: Any, weight: Any, *, splits: Any) -> Waits:
        """How long passes of so many seconds wait; `weight` is contained in `backward`.

        The link sends both ways at once: activations go while weights come, but both come beside the
        backward. Where schedules cut the backward in two (`splits`), half of what comes is for either part,
        and a part that is done early does not spare the other its wait.
        """
        there = np.maximum(np.maximum(self.offloaded, self.forward) - forward, 0.0)
        back = self.offloaded + self.backward
        whole = np.maximum(back - backward, 0.0)
        if not np.any(splits):
            return Waits(there, whole)
        of_weight = np.maximum(back / 2.0 - weight, 0.0)
        halves = np.maximum(back / 2.0 - (backward - weight), 0.0) + of_weight
        return Waits(there, np.where(splits, halves, whole), np.where(splits, of_weight, 0.0))


def copies(offloaded: Any, fetch_s: Any, strategy: Strategy, habits: Framework, cluster: Cluster) -> Copies:
    """What the link copies for one microbatch of a stage that sends `offloaded` bytes of activations to the
    host and whose weights take `fetch_s` seconds to come.

    Weights come for each forward (of a reference model too) and again for a backward that finds them dropped.
    """
    forwards = 1.0 + parse_finetune(strategy.finetune).pairs
    again = 1.0 if habits.reshards else 0.0
    return Copies(offloaded / cluster.chip.host_bytes_s, forwards * fetch_s, again * fetch_s)


def used(strategy: Strategy) -> bool:
    """Whether passes use the host link."""
    offload = parse_offload(strategy.offload)
    return offload.any or offload.params
