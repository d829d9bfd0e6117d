"""Clusters: every spelling, what is derived, and that bad text is refused with a way out."""

from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.hardware import chips, slices
from meshwright.hardware.cluster import build, machines, parse


def faults(text: str, overrides: dict[str, object] | None = None) -> list[str]:
    with pytest.raises(InputError) as caught:
        parse(text, overrides)
    for fault in caught.value.diagnostics:
        assert fault.message
        assert fault.hint
    return [fault.code for fault in caught.value.diagnostics]


@pytest.mark.parametrize(
    ("text", "n_chips", "domain", "torus", "n_slices"),
    [
        ("2048xh800", 2048, 8, (), 1),
        ("256xgb200", 256, 64, (), 1),
        ("288 x GB200", 288, 72, (), 1),
        ("4xh100", 4, 4, (), 1),
        ("16xdgx-h100", 128, 8, (), 1),
        ("4xgb200-nvl72", 288, 72, (), 1),
        ("1xMI250", 1, 1, (), 1),
        ("512xtpu-v5p", 512, 512, (8, 8, 8), 1),
        ("2048xtpu-v5p", 2048, 2048, (8, 16, 16), 1),
        ("384xtpu-v4", 384, 384, (4, 8, 12), 1),
        ("32xtpu-v6e", 32, 32, (4, 8), 1),
        ("8192xtpu-v5e", 8192, 256, (16, 16), 32),
        ("1024xtpu-v6e", 1024, 256, (16, 16), 4),
        ("9216xtpu-v7", 9216, 9216, (16, 24, 24), 1),
        ("tpu-v5p:8x8x8", 512, 512, (8, 8, 8), 1),
        ("2*tpu-v5p:8x16x24", 6144, 3072, (8, 16, 24), 2),
        ("64xtrn2", 64, 16, (4, 4), 4),
    ],
)
def test_spellings(text: str, n_chips: int, domain: int, torus: tuple[int, ...], n_slices: int) -> None:
    cluster = parse(text)
    got = (cluster.n_chips, cluster.scale_up_size, cluster.torus, cluster.n_slices)
    assert got == (n_chips, domain, torus, n_slices)
    assert cluster.name == text


@pytest.mark.parametrize(
    ("text", "wraps"),
    [
        ("tpu-v5p:4x4x8", (True, True, True)),
        ("tpu-v5p:2x4x4", (False, True, True)),
        ("tpu-v7:2x2x2", (False, False, False)),
        ("tpu-v5e:8x16", (False, True)),
        ("tpu-v6e:16x16", (True, True)),
        ("tpu-v3:16x32", (False, True)),
    ],
)
def test_axes_wrap_by_generation(text: str, wraps: tuple[bool, ...]) -> None:
    assert parse(text).wraps == wraps


def test_what_was_taken_stands_in_derived() -> None:
    for text, field, value in [
        ("512xtpu-v5p", "torus", "8x8x8"),
        ("512xtpu-v6e", "torus", "2*16x16"),
        ("256xgb200", "scale_up_size", "64"),
        ("4xdgx-h100", "n_chips", "32"),
    ]:
        assert (field, value) in {(f, v) for f, v, _ in parse(text).derived}
    assert parse("64xh100").derived == ()
    assert parse("tpu-v5p:8x8x8").derived == ()


def test_overrides_change_what_they_name() -> None:
    plain = parse("64xh100")
    assert parse("64xh100", {"scale_out_gbits_s": "200"}).scale_out_bytes_s == 25e9
    assert parse("64xh100", {"cluster.scale_up_gbytes_s": 200}).scale_up_bytes_s == 200e9
    assert parse("64xh100", {"scale_up_size": 32}).scale_up_size == 32
    assert parse("64xh100", {"usable_gib": 70}).usable_bytes == 70 * 2**30
    assert parse("64xh100", {"oversubscription": 4}).scale_out_bytes_s == plain.scale_out_bytes_s / 4
    mesh = parse("16xmi300x", {"scale_up_gbytes_s": 896})
    assert mesh.link_bytes_s == pytest.approx(128e9)
    assert parse("tpu-v5p:4x4x4", {"scale_up_gbytes_s": 540}).link_bytes_s == pytest.approx(90e9)


def test_missing_figures_name_the_flag() -> None:
    with pytest.raises(InputError) as caught:
        parse("16xv100-32gb")
    (fault,) = caught.value.diagnostics
    assert "--set cluster.scale_out_gbits_s=" in fault.hint
    assert "16 > 8" in fault.message
    assert parse("8xv100-32gb").scale_out_bytes_s is None
    assert parse("16xv100-32gb", {"scale_out_gbits_s": 100}).scale_out_bytes_s == 12.5e9
    assert faults("8xgh200-96gb") == ["MW824", "MW824"]
    assert parse("1xgh200-96gb").scale_up_size == 1


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "h100", "8x", "xh100", "0xh100", "-8xh100", "2.5xh100", "10000001xh100", "9" * 40 + "xh100",
        "8xh1000", "8xv100", "8x?", "8*h100", "tpu-v5p:8x8", "tpu-v5p:5x5x5", "tpu-v5p:0x8x8", "h100:8x8",
        "2xtpu-v4:8x16x24", "0*tpu-v5p:8x8x8", "tpu-v5p:32x32x32", "96xtpu-v5p", "6145xtpu-v5p", "3xtpu-v5e",
        "99999999*tpu-v5p:8x8x8", "4xdgx-h", "tpu-v5p:", ":8x8x8", "dgx-h100",
    ],
)  # fmt: skip
def test_bad_text_is_refused_with_a_hint(text: str) -> None:
    assert faults(text)


def test_all_faults_of_overrides_at_once() -> None:
    bad = {"scale_out_gbit_s": 4, "scale_up_size": 7.5, "usable_gib": "lots", "oversubscription": "nan"}
    assert faults("64xh100", bad) == ["MW825"] + ["MW826"] * 3
    for one in (
        {"usable_gib": 81}, {"usable_gib": 0}, {"scale_up_size": 0}, {"scale_up_gbytes_s": 1e9},
        {"scale_out_gbits_s": -1}, {"oversubscription": 0.5}, {"oversubscription": True},
        {"scale_up_size": 48},
    ):  # fmt: skip
        assert faults("64xh100", one)
    assert faults("64xtpu-v5p", {"scale_up_size": 8}) == ["MW823"]


@given(st.text(max_size=20))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse(text)
    except InputError:
        return


@given(st.sampled_from(chips.names()), st.integers(1, 20_000))
def test_any_count_is_a_whole_cluster_or_refused(name: str, n_chips: int) -> None:
    try:
        cluster = build(name, n_chips)
    except InputError:
        return
    assert cluster.n_chips == n_chips
    assert n_chips % cluster.scale_up_size == 0
    if cluster.torus:
        assert prod(cluster.torus) * cluster.n_slices == n_chips
        assert slices.rules()[name].legal(cluster.torus)
    if cluster.scale_up_size < n_chips:
        assert cluster.scale_out_bytes_s


def test_most_cubic_beats_every_other_shape() -> None:
    rule = slices.rules()["TPU-v5p"]
    for n_chips in (64, 128, 192, 256, 512, 1536, 6144):
        axes = range(4, n_chips + 1, 4)
        shapes = [
            (a, b, n_chips // a // b)
            for a in axes
            if n_chips % a == 0
            for b in axes
            if n_chips // a % b == 0 and rule.legal((a, b, n_chips // a // b))
        ]
        best = rule.most_cubic(n_chips)
        assert best is not None
        assert sum(best) == min(sum(s) for s in shapes)


def test_machines_name_chips_of_the_table() -> None:
    for machine in machines().values():
        assert machine.source
        assert chips.load(machine.chip).name == machine.chip


def test_cards_of_one_host_talk_over_its_bus() -> None:
    """No network card on the sheet: up to eight cards share the host's bus, more need a network."""
    pair = build("rtx-3090", 2)
    assert pair.scale_out_bytes_s == chips.load("rtx-3090").scale_up_bytes_s
    assert any(field == "scale_out_gbits_s" and "bus" in because for field, _, because in pair.derived)
    with pytest.raises(InputError, match="scale_out_gbits_s"):
        build("rtx-3090", 16)
