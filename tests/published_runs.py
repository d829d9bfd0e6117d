"""A strategy evaluated as any user would have it: what the tests of published findings ask the model."""

from __future__ import annotations

from typing import Any

from meshwright.calibrate.rows import shipped
from meshwright.calibrate.validate import validate
from meshwright.cost.evaluation import Evaluation
from meshwright.cost.step import evaluate
from meshwright.hardware.cluster import parse
from meshwright.model import presets
from meshwright.model.records import Attention, Block, Mlp, Model
from meshwright.profiles.load import load
from meshwright.search.derive import complete
from meshwright.units import GIB
from meshwright.work import Work


def gpt(d_model: int, n_layers: int, n_heads: int, vocab: int = 51200) -> Model:
    """A GPT of the 2021 kind: plain MLP of 4 x width, biases, tied embeddings, learned positions."""
    heads = Attention(n_heads, n_heads, d_model // n_heads, bias_qkv=True, bias_out=True)
    block = Block(heads, Mlp(4 * d_model, gated=False, bias=True))
    return Model("gpt", d_model, vocab, (block,), (0,) * n_layers, tied_embeddings=True, norm="layernorm",
                 n_positions=2048)  # fmt: skip


GPT_175B = gpt(12288, 96, 96)
BLOOM = gpt(14336, 70, 112, 250_880)


class Run:
    """A strategy evaluated, what it leaves out derived as for any user; figures a chip."""

    def __init__(
        self, model: str | Model, on: str, seq_len: int, batch: int, precision: str = "bf16", *,
        framework: str | None = None, release: str = "", options: tuple[str, ...] = (),
        cluster: dict[str, Any] | None = None, **given: Any,
    ) -> None:  # fmt: skip
        self.model = presets.load(model) if isinstance(model, str) else model
        self.cluster = parse(on, cluster or {})
        self.work = Work(seq_len, batch, precision, None, frozenset(options))  # type: ignore[arg-type]
        self.profile = load(framework, self.cluster.chip, release)
        self.strategy = complete(self.model, self.cluster, self.work, given, self.profile).strategy
        self.found: Evaluation = evaluate(self.model, self.cluster, self.work, self.strategy, self.profile)

    @property
    def seconds(self) -> float:
        return float(self.found.step_time_s)

    @property
    def gib(self) -> float:
        return float(self.found.peak_bytes / GIB)

    @property
    def tokens_per_s(self) -> float:
        return float(self.work.tokens_per_step / self.seconds / self.cluster.n_chips)

    @property
    def hardware_tflops(self) -> float:
        return float(self.found.hardware_flops / self.seconds / self.cluster.n_chips / 1e12)

    def mfu(self, peak_tflops: float) -> float:
        return float(self.found.model_flops / self.seconds / self.cluster.n_chips / 1e12 / peak_tflops)


def close(predicted: float, published: float, share: float = 0.15) -> bool:
    return abs(predicted / published - 1) <= share


def predicted_mfu(name: str) -> float:
    """% MFU of a run of the shipped table as its source counts FLOPs."""
    run = next(r for r in shipped("training") if r.id == name)
    (row,) = validate([run]).rows
    assert row.predicted is not None
    assert run.mfu_percent is not None
    return run.mfu_percent * row.predicted / row.measured  # a rate in the source's convention
