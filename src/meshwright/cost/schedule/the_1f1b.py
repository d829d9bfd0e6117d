"""1F1B (PipeDream-flush): after the warm-up each rank alternates one forward and one backward.

**Source**: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

P2P_EXPOSED = 1.0  # sends and receives are waited for before the next pass


def bubble(forward: Any, backward: Any, weight: Any, vpp: Any) -> Any:
    """(p - 1)(F + B)."""
    return forward + backward


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """min(m, p - r)."""
    return np.minimum(microbatches, pp - rank)
