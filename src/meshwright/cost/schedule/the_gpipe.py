"""GPipe: all forwards, then all backwards (Huang et al. 2019)."""

from __future__ import annotations

from typing import Any

P2P_EXPOSED = 1.0


def bubble(forward: Any, backward: Any, weight: Any, vpp: Any) -> Any:
    """(p - 1)(F + B): every other stage is filled and drained once."""
    return forward + backward


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """All m of them."""
    return microbatches
