"""Whatever is typed, the command answers, refuses or says no; it never fails in a way that is our fault."""

from __future__ import annotations

import contextlib
import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cli.main import run

MODELS = ["llama-3.1-8b", "mixtral-8x7b", "deepseek-v3", "falcon-mamba-7b", "", "..", "/etc/hostname", "lama"]
CLUSTERS = [
    "8xh100",
    "64xh100",
    "7xa100",
    "0xh100",
    "tpu-v5p:4x4x8",
    "16xdgx-h100",
    "8x",
    "-1xh100",
    "64xmi300x",
]
NUMBERS = ["1", "2", "4", "8", "3", "0", "-1", "x", "", "2.5", "1e3", "9" * 30, "nan"]
FLAGS = {
    **dict.fromkeys(
        ["--dp", "--tp", "--pp", "--vpp", "--cp", "--ep", "--etp", "--zero", "--zero-group",
         "--microbatch-size"],
        NUMBERS,
    ),
    "--schedule": ["1f1b", "gpipe", "interleaved-1f1b", "zb-v", "?"],
    "--recompute": ["none", "full", "selective:core_attn", "selective:", "every:2", "layers:3", "every:x"],
    "--layers-per-stage": ["32", "16,16", "0,0", ",", "a"],
    "--placement": ["tp,cp,dp,pp", "pp,dp,cp,tp", "tp"],
    "--precision": ["bf16", "fp8", "nvfp4", "q"],
    "--framework": ["megatron-core", "maxtext", "nope", "megatron-core@x"],
    "--total-tokens": ["1T", "0", "x"],
    "--set": ["cluster.usable_gib=10", "cluster.scale_up_size=3", "cluster.scale_out_gbits_s=nan", "x=1"],
}  # fmt: skip


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(["estimate", "check", "explain"]),
    st.sampled_from(MODELS),
    st.sampled_from(CLUSTERS),
    st.sampled_from(["8k", "8k", "1", "x", "0"]),
    st.sampled_from(["64", "64", "7", "0", "x"]),
    st.dictionaries(st.sampled_from(sorted(FLAGS)), st.integers(0, 100), max_size=4),
)
def test_every_command_line_has_an_answer(
    verb: str, model: str, cluster: str, seq_len: str, batch: str, flags: dict[str, int]
) -> None:
    args = [verb, model, "--on", cluster, "--seq-len", seq_len, "--global-batch", batch, "--json"]
    for flag, pick in flags.items():
        args += [flag, FLAGS[flag][pick % len(FLAGS[flag])]]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run(args)
    assert code in (0, 1, 2), err.getvalue()
    found = json.loads(out.getvalue())
    assert found["schema"] == (f"meshwright.{verb}/1" if code < 2 else "meshwright.error/1")
    if code == 2:
        assert all(d["message"] for d in found["diagnostics"])
