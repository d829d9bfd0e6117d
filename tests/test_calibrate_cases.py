"""Rows as cases: what is stated stays, what is not is left to the profile, nothing comes from a result."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.calibrate import conventions
from meshwright.calibrate.cases import Case, Miss, Skip, case
from meshwright.calibrate.predict import predict, profile_of
from meshwright.calibrate.rows import Run, shipped
from meshwright.calibrate.shapes import Shaped, noted_models, shape
from meshwright.cost.columns import loss_word
from meshwright.model import presets
from meshwright.model.params import total_params
from meshwright.model.records import Attention, LatentAttention, Mlp, Moe
from meshwright.profiles import load as profiles
from meshwright.search.derive import complete

BASE = Run(
    "r", source="s@1", framework="megatron-core", model="Llama-3.1-8B", chip="H100-SXM", n_chips=64,
    seq_len=8192, global_batch_size=128, microbatch_size=1, tp=2, pp=2, cp=2,
    step_time_s=1.0, precision="bf16",
)  # fmt: skip


def by_id(run_id: str, table: str = "training") -> Run:
    return next(r for r in shipped(table) if r.id == run_id)  # type: ignore[arg-type]


def as_case(run: Run) -> Case:
    found = case(run)
    assert isinstance(found, Case), found
    return found


def states_enough(run: Run) -> bool:
    named = run.model or (run.n_layers and run.d_model)
    return bool(
        named and run.chip and run.n_chips and run.seq_len and run.global_batch_size and run.tp and run.pp
    )


def test_nine_of_ten_complete_training_rows_become_cases() -> None:
    complete_rows = [r for r in shipped("training") if states_enough(r)]
    cases = [r for r in complete_rows if isinstance(case(r), Case)]
    assert len(complete_rows) > 850
    assert len(cases) >= 0.95 * len(complete_rows)


def test_only_missing_cells_and_unknown_chips_are_skips() -> None:
    reasons = {"no chip", "no chip figures", "no model shape", "no layout", "no batch", "no sequence"}
    for run in (*shipped("training"), *shipped("memory")):
        found = case(run)
        if isinstance(found, Skip):
            assert found.reason in reasons | {"no network figure"}
            if (
                states_enough(run) and "; mla in the model_config" not in run.notes
            ):  # no column for its widths
                assert found.reason in ("no chip figures", "no network figure"), (run.id, found)


def test_almost_every_case_is_a_legal_strategy() -> None:
    """What a published run did is possible: rules that refuse it are wrong, or its words were misread."""
    refused = []
    for run in shipped("training"):
        found = case(run)
        if isinstance(found, Case):
            try:
                profile = profiles.load(found.framework, found.cluster.chip, found.release)
                done = complete(found.model, found.cluster, found.work, found.given, profile)
            except Exception as error:
                refused.append((run.id, str(error)))
                continue
            for name, value in found.given.items():
                assert name in done.derived or getattr(done.strategy, name) == value or name == "recompute"
    assert len(refused) <= 12, refused


def test_what_is_not_stated_is_not_given() -> None:
    given = as_case(BASE).given
    assert "recompute" not in given
    assert "zero" not in given
    assert "sp" not in given
    assert given["tp"] == 2


def test_results_do_not_move_a_case() -> None:
    slow = replace(BASE, step_time_s=100.0, peak_memory_gib=70.0, mfu_percent=1.0)
    assert replace(as_case(slow), run=BASE) == as_case(BASE)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"chip": None}, "no chip"),
        ({"n_chips": None}, "no chip"),
        ({"chip": "Abacus-9000"}, "no chip figures"),
        ({"model": None}, "no model shape"),
        ({"tp": None}, "no layout"),
        ({"seq_len": None}, "no sequence"),
        ({"global_batch_size": None, "step_time_s": None}, "no batch"),
    ],
)
def test_a_missing_cell_is_a_skip_with_its_reason(cells: dict[str, object], reason: str) -> None:
    found = case(replace(BASE, **cells))  # type: ignore[arg-type]
    assert isinstance(found, Skip)
    assert found.reason == reason


@pytest.mark.parametrize(
    "cells",
    [
        {"options": frozenset({"emb"})},
        {"optimizer": "lookahead"},
        {"model": "Colossus-1"},
        {"precision": "fp32"},
        {"kind": "distillation"},
    ],
)
def test_what_is_not_supported_is_a_miss(cells: dict[str, object]) -> None:
    assert isinstance(case(replace(BASE, **cells)), Miss)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cells", "given"),
    [
        ({"options": frozenset({"lora"})}, {"finetune": "lora:32"}),
        ({"kind": "qlora", "notes": "LoRA rank 32 on query and value"}, {"finetune": "qlora:32@qv"}),
        ({"options": frozenset({"lora", "int8"})}, {"finetune": "qlora-int8:32"}),
        ({"kind": "dpo"}, {"finetune": "dpo"}),
        ({"optimizer": "lion"}, {"optimizer": "lion"}),
        ({"optimizer": "paged-adamw-8bit"}, {"optimizer": "adamw-8bit", "offload": "optimizer"}),
        ({"options": frozenset({"offload-param"})}, {"offload": "optimizer+params"}),
        ({"options": frozenset({"act-offload"})}, {"offload": "activations"}),
        ({"options": frozenset({"expert-offload"})}, {"offload": "experts"}),
        ({"options": frozenset({"expert-offload:all"})}, {"offload": "experts-all"}),
        ({"kind": "lora", "notes": "adapters on query, key and value alone"}, {"finetune": "lora:32@qkv"}),
        ({"options": frozenset({"lora"}), "notes": "LoRA fine-tuning"}, {"finetune": "lora:32@qkv"}),
    ],
)
def test_words_of_fine_tuning_are_given(cells: dict[str, object], given: dict[str, object]) -> None:
    found = as_case(replace(BASE, **cells)).given  # type: ignore[arg-type]
    assert {name: found.get(name) for name in given} == given


def test_fine_tuning_in_performance_tables_is_of_packed_documents() -> None:
    tuned, trained, asked = (
        as_case(replace(BASE, **cells))  # type: ignore[arg-type]
        for cells in ({"notes": "llama3-70b SFT"}, {}, {"notes": "llama3-70b SFT", "kind": "sft"})
    )
    assert tuned.work.document_len == 256
    assert trained.work.document_len is None
    assert asked.work.document_len is None
    # What its program prints as FLOPs does not know of the documents.
    counted = [
        conventions.counted_flops(one, predict(one).model_flops, predict(one).hardware_flops, hardware=False)
        for one in (tuned, trained)
    ]
    assert counted[0] == pytest.approx(counted[1], rel=1e-12)
    assert predict(tuned).model_flops < predict(trained).model_flops


def test_depth_beside_a_name_cuts_the_model() -> None:
    found = as_case(replace(BASE, model="Llama-3.1-70B", n_layers=12))
    assert found.model.n_layers == 12
    assert found.model.blocks == presets.load("Llama-3.1-70B").blocks


def test_gpt_columns_count_as_the_name_says() -> None:
    """d_ff and vocabulary empty: 4 x d_model and GPT-2's, padded. The 39.1 B of the page come out."""
    run = next(r for r in shipped("training") if r.noted_model == "GPT (39.1B)")
    shaped = shape(run)
    assert isinstance(shaped, Shaped)
    assert total_params(shaped.model) == pytest.approx(39.1e9, rel=0.02)
    assert {"d_ff", "vocab"} <= {name for name, _ in shaped.derived}


@pytest.mark.parametrize(
    ("noted", "billions"),
    [
        ("MaxText 22B", 22),
        ("MaxText 16B", 16),
        ("MaxText 128B", 128),
        ("GPT 1008B", 1008),
    ],
)
def test_shapes_from_columns_have_the_size_in_their_name(noted: str, billions: float) -> None:
    run = next(r for r in shipped("training") if r.noted_model == noted)
    shaped = shape(run)
    assert isinstance(shaped, Shaped)
    assert total_params(shaped.model) == pytest.approx(billions * 1e9, rel=0.12)


def test_head_count_left_out_divides_by_tp() -> None:
    run = by_id("bloom-196b-384-tp8pp12dp4-mbs2-gbs2048")
    mixer = as_case(run).model.blocks[0].mixer
    assert isinstance(mixer, Attention)
    assert mixer.n_heads % 8 == 0
    assert mixer.n_heads * mixer.head_dim == run.d_model


def test_deepseek_cut_to_four_layers_keeps_latent_attention() -> None:
    run = next(r for r in shipped("training") if r.id.startswith("simumax-b200-deepseekv2"))
    model = as_case(run).model
    assert model.n_layers == 4
    assert all(isinstance(b.mixer, LatentAttention) for b in model.blocks)
    assert [type(model.blocks[k].ffn) for k in model.pattern] == [Mlp, Moe, Moe, Moe]


def test_expert_width_column_is_the_experts() -> None:
    run = by_id("megascalemoe-352b-megatron-lm-240")
    ffn = as_case(run).model.blocks[0].ffn
    assert isinstance(ffn, Moe)
    assert (ffn.n_experts, ffn.top_k, ffn.d_ff) == (32, 3, 14336)


def test_ulysses_cell_is_context_parallel() -> None:
    found = as_case(by_id("megascalemoe-352b-megascale-moe-240"))
    assert found.given["cp"] == 8
    assert found.given["cp_method"] == "all-to-all"


def test_local_batch_of_torchtitan_is_cut_by_its_pipeline() -> None:
    found = as_case(by_id("titan-t5-405b-512-1f1b"))
    assert found.given["microbatch_size"] == 4  # 32 sequences, one microbatch a stage of 8
    assert found.work.seq_len == 8192


@pytest.mark.parametrize(
    ("mfu", "hfu", "word"),
    [(55.0, 74.0, "full"), (61.0, 69.0, "every:3"), (43.0, 46.0, "every:5"), (68.0, 68.0, "every:2")],
)
def test_blocks_run_again_are_what_both_rates_say(mfu: float, hfu: float, word: str) -> None:
    """Hardware over model FLOPs is 1 + share / 3; where both are alike they say nothing."""
    row = replace(BASE, framework="fms-fsdp", recompute="selective", mfu_percent=mfu, hfu_percent=hfu)
    assert as_case(row).given["recompute"] == word


def test_embeddings_that_take_a_slot_shorten_the_outer_stages() -> None:
    """94 layers and two embeddings on 12 stages: 8 each, of which an embedding on the first and the last."""
    given = as_case(by_id("bloom-203b-384-tp4pp12dp8-mbs2-gbs2048")).given
    assert given["layers_per_stage"] == (7, *(8,) * 10, 7)


def test_zero_off_in_bridge_rows_is_the_distributed_optimizer() -> None:
    assert as_case(replace(BASE, zero=0)).given["zero"] == 1
    assert as_case(replace(BASE, zero=0, framework="megatron-deepspeed")).given["zero"] == 0


def test_slices_hang_on_the_data_centre_network() -> None:
    found = as_case(by_id("maxtext-v5e-16b-4x256"))
    assert found.cluster.n_slices == 4
    assert found.cluster.n_chips == 1024
    assert found.given["zero_group"] == 256
    assert found.given["microbatch_size"] == 6  # the notes' batch a device


def test_network_cell_overrides_the_data_sheet() -> None:
    fast, slow = as_case(BASE).cluster, as_case(replace(BASE, scale_out_gbits_s_per_chip=50.0)).cluster
    assert slow.scale_out_bytes_s == 50e9 / 8
    assert fast.scale_out_bytes_s != slow.scale_out_bytes_s


def test_small_nodes_are_small_domains_only_where_a_node_is_the_domain() -> None:
    assert as_case(replace(BASE, chips_per_node=4)).cluster.scale_up_size == 4
    rack = as_case(replace(BASE, chip="GB200-NVL72", chips_per_node=4)).cluster
    assert rack.scale_up_size > 4


def test_release_takes_the_patch_number_from_the_notes() -> None:
    run = replace(BASE, release="26.02", notes="NeMo container 26.02.01; mock data")
    assert as_case(run).release == "26.02.01"
    assert as_case(replace(run, notes="NeMo container 25.11")).release == "26.02"


def test_noted_models_are_presets() -> None:
    for preset in noted_models().values():
        assert presets.load(preset).n_layers > 0


def test_masked_half_of_attention_makes_the_whole_square() -> None:
    """Full square = half square + masked half, and both halves are equal: 2 T^2 N (d + d) forward in all."""
    found = as_case(replace(BASE, tp=1, pp=1, cp=1))
    mixer = found.model.blocks[0].mixer
    assert isinstance(mixer, Attention)
    masked = conventions.masked_flops(found.model, 8192)
    whole = 3 * 2 * 2 * 8192**2 * mixer.n_heads * mixer.head_dim * found.model.n_layers
    assert masked == pytest.approx(whole / 2)


def test_longest_prefix_decides_the_convention() -> None:
    assert conventions.convention(replace(BASE, source="arXiv:2104.04473 Table 1")).hardware
    assert not conventions.convention(replace(BASE, source="arXiv:2205.05198 Table 5")).hardware
    assert conventions.convention(replace(BASE, source="somewhere else")) is conventions.UNSTATED


def test_words_of_the_loss_reach_the_cost() -> None:
    """Each word once, as the row has it; what it means for logits is told in one place."""
    usual = profile_of(as_case(BASE))
    plain = replace(usual, framework=replace(usual.framework, fused_loss=False))
    meanings = {
        "liger": "chunked", "vocab-tiling": "chunked", "te-cross-entropy": "fused", "fused-loss": "fused",
        "fused-kernels": "whole", "packing": "whole",
    }  # fmt: skip
    for word, said in meanings.items():
        found = as_case(replace(BASE, options=frozenset({word, "packing"})))
        assert found.work.options == {word, "packing"}
        assert loss_word(found.work, plain) == said
    assert as_case(BASE).work.options == frozenset()


def test_names_of_test_runs_tell_switches_that_columns_get_wrong() -> None:
    runs = {r.noted_model: r for r in shipped("memory-small")}
    swiglu = next(r for name, r in runs.items() if name.endswith("swiglu"))
    assert swiglu.gated_mlp == 0
    ffn = as_case(swiglu).model.blocks[0].ffn
    assert isinstance(ffn, Mlp)
    assert ffn.gated
    assert as_case(swiglu).model.tied_embeddings
    untied = next(r for name, r in runs.items() if "untie" in name)
    assert not as_case(untied).model.tied_embeddings
