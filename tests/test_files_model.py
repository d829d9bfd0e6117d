"""Model files: every preset survives the trip, shapes that contradict themselves are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.errors import InputError
from meshwright.files import model_file
from meshwright.files.yaml import Document, dump, load
from meshwright.model import presets
from meshwright.model.records import Model

DENSE = """\
version: 1
name: mine
d_model: 4096
vocab: 128256
n_layers: 4
blocks:
  - mixer: {type: attention, n_heads: 32, n_kv_heads: 8, head_dim: 128}
    ffn: {type: mlp, d_ff: 14336}
"""


def read(tmp_path: Path, content: str) -> Model:
    path = tmp_path / "model.yaml"
    path.write_text(content)
    return model_file.model_of(load(path))


def messages(tmp_path: Path, content: str) -> str:
    with pytest.raises(InputError) as caught:
        read(tmp_path, content)
    return "\n".join(f"{d.where}: {d.message} | {d.hint}" for d in caught.value.diagnostics)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_round_trips(name: str) -> None:
    model = presets.load(name)
    mapping = {"version": 1, **model_file.model_mapping(model)}
    assert model_file.model_of(Document(Path("model.yaml"), mapping)) == model


def test_round_trip_through_text(tmp_path: Path) -> None:
    model = presets.load("deepseek-v3")
    assert read(tmp_path, dump({"version": 1, **model_file.model_mapping(model)})) == model


def test_a_shape_reads(tmp_path: Path) -> None:
    model = read(tmp_path, DENSE)
    assert (model.n_layers, model.d_model, model.blocks[0].ffn.d_ff) == (4, 4096, 14336)  # type: ignore[union-attr]


def test_a_preset_at_another_depth(tmp_path: Path) -> None:
    model = read(tmp_path, "version: 1\npreset: llama-3.1-8b\nn_layers: 8\n")
    assert model.n_layers == 8
    assert model.blocks == presets.load("llama-3.1-8b").blocks


def test_unknown_keys_name_the_nearest(tmp_path: Path) -> None:
    said = messages(tmp_path, DENSE.replace("n_kv_heads", "kv_heads").replace("vocab:", "vocabs:"))
    assert "model.yaml:7: unknown key blocks.0.mixer.kv_heads | did you mean n_kv_heads" in said
    assert "blocks.0.mixer.n_kv_heads is missing" in said
    assert "model.yaml:4: unknown key vocabs | did you mean vocab" in said


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (("n_kv_heads: 8", "n_kv_heads: 7"), "32 query heads over 7 key/value heads is 4.57, not whole"),
        (("n_layers: 4\n", ""), "neither n_layers nor a pattern"),
        (("n_layers: 4\n", "pattern: [0, 1]\n"), "pattern names block 1"),
        (("n_layers: 4\n", "n_layers: 4\nshared_at: [9]\n"), "shared_at names layer 9"),
        (("type: mlp", "type: mpl"), "mpl"),
        (("d_model: 4096", "d_model: -1"), "d_model is -1"),
        (("d_model: 4096", "d_model: many"), "d_model is 'many'"),
        (
            ("{type: mlp, d_ff: 14336}", "{type: moe, n_experts: 4, top_k: 8, d_ff: 64}"),
            "top_k 8 is more than",
        ),
    ],
)
def test_contradictions(tmp_path: Path, change: tuple[str, str], wanted: str) -> None:
    assert wanted in messages(tmp_path, DENSE.replace(*change))


def test_two_kinds_need_a_pattern(tmp_path: Path) -> None:
    said = messages(tmp_path, DENSE + "  - ffn: {type: mlp, d_ff: 64}\n")
    assert "no pattern that says which layer is which" in said
