"""Interleaved 1F1B: each rank holds v chunks, the bubble shrinks v times, the warm-up holds more.

**Source**: Narayanan et al. 2021 (arXiv 2104.04473), section 2.2; in-flight count from its warm-up length.
"""

from __future__ import annotations

from typing import Any

import numpy as np

P2P_EXPOSED = 0.3  # sent beside another chunk's pass; the share left is assumed


def bubble(forward: Any, backward: Any, weight: Any, vpp: Any) -> Any:
    """(p - 1)(F + B) / v."""
    return (forward + backward) / vpp


def in_flight(rank: Any, pp: Any, vpp: Any, microbatches: Any) -> Any:
    """min(m v, 2 (p - r - 1) + (v - 1) p + 1) / v."""
    return np.minimum(microbatches * vpp, 2 * (pp - rank - 1) + (vpp - 1) * pp + 1) / vpp
