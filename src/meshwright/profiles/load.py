"""Profiles by framework name, release and chip."""

from __future__ import annotations

from meshwright.hardware.records import Chip
from meshwright.profiles.records import Profile


def names() -> tuple[str, ...]:
    """Framework names that `load` knows, without generations."""
    raise NotImplementedError


def load(framework: str | None, chip: Chip, release: str = "") -> Profile:
    """The profile of `framework` (default: megatron-core on GPUs, maxtext on TPUs) on `chip`.

    `framework` may name a generation (`megatron-core@bridge-26.06`); else `release` picks it, else the newest
    generation. Raises InputError with the known names when there is no such framework.
    """
    raise NotImplementedError
