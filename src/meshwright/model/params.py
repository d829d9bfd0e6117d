"""Parameter counts from shapes: exact totals, and the split by what tensor and expert parallelism divide."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.model.records import Block, Model


@dataclass(frozen=True, slots=True)
class ParamCount:
    """Parameters of a part of a model, by how parallelism divides them.

    `sharded` is divided by tp; `replicated` (norms, router, latent down-projections) stands on every tensor
    rank; `expert` (routed experts) is divided by ep * etp. All exclude embedding and head unless stated.
    """

    sharded: int = 0
    replicated: int = 0
    expert: int = 0

    @property
    def total(self) -> int:
        """All three."""
        return self.sharded + self.replicated + self.expert


def block_params(block: Block, model: Model) -> ParamCount:
    """Parameters of one layer of kind `block` (norms included)."""
    raise NotImplementedError


def embedding_params(model: Model) -> int:
    """Input embedding and learned positions."""
    raise NotImplementedError


def head_params(model: Model) -> int:
    """Output projection; 0 when tied to the embedding."""
    raise NotImplementedError


def total_params(model: Model) -> int:
    """Every parameter of the model, as `transformers` counts it (multi-token-prediction layers left out)."""
    raise NotImplementedError


def active_params(model: Model) -> int:
    """Parameters one token uses: all that are not routed experts, plus top_k of n_experts of those."""
    raise NotImplementedError
