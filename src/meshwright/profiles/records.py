"""What cannot be derived: how well a framework generation uses a chip, and where that is known from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Provenance = Literal["datasheet", "measured", "fitted", "assumed"]


# Whatever numbers a profile composes, nothing passes this share of a data sheet.
MOST_OF_PEAK = 0.97


@dataclass(frozen=True, slots=True)
class Number:
    """One fitted or assumed number and its record. `value` may be an array while it is being fitted."""

    value: Any
    provenance: Provenance
    n_runs: int = 0  # measured runs that moved it
    n_sources: int = 0
    source: str = ""


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework generation: its habits (facts about the program) and what it does when told nothing."""

    name: str  # megatron-core
    generation: str  # bridge-26.06
    default_zero: int
    default_recompute: str
    default_sp: bool
    default_dispatcher: str
    # Scores in memory; FlashAttention 1; 2; a kernel made for the chip at hand.
    attention_kernel: Literal["unfused", "flash-1", "flash-2", "fused"]
    compiled: bool  # a compiler fuses element-wise passes and launches the whole step
    weight_bytes: float  # a parameter in what a rank keeps (the compute copy; the master itself under FSDP)
    grad_bytes: float
    grad_sent_bytes: float  # of a gradient on the wire
    optimizer_bytes: float  # master copy (where it is not the weights) and moments
    keeps_grads: bool  # gradient buffers stay between steps; False: made anew in each backward
    step_bytes: float  # temporaries of the optimizer step, a parameter of the shard
    gathers_quantised: bool  # weights travel in the precision of the products
    reshards: bool  # ZeRO-3: weights are dropped after forward and gathered again backward
    regathers_input: bool  # sequence parallel: gather the input again in backward (True) or keep it
    network_share: float  # of the node's network cards that its data-parallel exchange keeps busy
    broadcast_s: float  # seconds for one owner to broadcast its shard of the weights; 0: one all-gather
    context_gib: float  # CUDA or runtime context, libraries, network buffers, workspaces, among many peers
    fused_loss: bool  # the loss does not hold an fp32 copy of the logits
    keeps_named: (
        bool  # selective recompute keeps only the tensors it names (XLA policies), not what lies between
    )
    usual_recompute: tuple[str, ...]  # the sets its recipes use
    source: str
    # Bytes a logit at the peak of a loss on whole logits: 16-bit logits, their fp32 copy, what the backward
    # pass writes beside them, and every further copy that the program takes.
    logit_bytes: float = 10.0
    split_logit_bytes: float = 0.0  # the same where tensor ranks split the vocabulary; 0: no other
    chunks_logits: bool = False  # its chunked loss cuts 16-bit logits that are there, not what the head reads
    alone_gib: float = (
        0.5  # of that, what a process holds that has no peers: a CUDA context is a few hundred MiB
    )
    # Norms and activations in plain tensor operations: their fp32 and inner copies stay.
    eager: bool = False
    # ZeRO-3 keeps parameters, gradients and moments in fp32, whatever their type.
    upcasts_sharded: bool = False
    # Embedding and head belong to the outermost unit, whole from forward to backward.
    gathers_ends: bool = False
    keeps_gathered: bool = False  # ZeRO-3: what is gathered piles up to the whole model before it is dropped
    wide_embedding_moments: bool = False  # 8-bit optimizers keep those of the embedding in fp32
    unties: bool = False  # a matrix that embedding and head share is stored twice
    keeps_quantised_inputs: bool = False  # products with quantised weights keep their inputs, frozen or not
    score_tile: int = 0  # queries and keys of a tile of its fused attention; 0: those of usual kernels
    fragments: float = 0.05  # of what comes and goes, what the allocator cannot use again even when it must
    schedules: tuple[str, ...] = ("1f1b", "interleaved-1f1b")  # that its pipeline runs unless told otherwise
    # Schedules whose ranks wait for each send, though the order of passes would let it run beside them.
    waits_for_sends: tuple[str, ...] = ()
    # Where a rank waits for a send, its host waits for the device too and launches nothing ahead.
    synchronises_sends: bool = True
    adapter_bytes: float = 2.0  # what an adapter keeps of each element of its input (copies, dropout)


@dataclass(frozen=True, slots=True)
class Profile:
    """A framework generation on a chip family, as the cost model needs it: habits and numbers."""

    framework: Framework
    chip_family: str
    numbers: dict[str, Number]

    def __getitem__(self, name: str) -> Any:
        """The value of number `name`."""
        return self.numbers[name].value
