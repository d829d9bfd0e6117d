"""Chips: the table is whole, names resolve whatever their spelling, gaps stay gaps."""

import csv
from importlib.resources import files

import pytest

from meshwright.errors import InputError
from meshwright.hardware import chips


def test_every_row_has_a_source_and_loads_by_every_spelling() -> None:
    assert len(chips.names()) == 53
    seen: dict[str, str] = {}
    for chip in chips.table().values():
        assert chip.source
        assert chip.family
        for spelling in (chip.name, chip.name.lower().replace("-", " "), *chip.aliases):
            assert chips.load(spelling) is chip
            assert seen.setdefault(chips.key(spelling), chip.name) == chip.name


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("h100", "H100-SXM"), ("H200", "H200-SXM"), ("h800", "H800-SXM"), ("a100", "A100-SXM-80GB"),
        ("b200", "B200-SXM"), ("GB200", "GB200-NVL72"), ("gb300", "GB300-NVL72"),
        ("tpu-v7", "TPU-v7-Ironwood"), ("TPU v5p", "TPU-v5p"), ("v5p", "TPU-v5p"), ("mi300x", "MI300X"),
        ("h100-94gb (lower TDP)", "H100-96GB (500 W)"), ("trillium", "TPU-v6e"),
    ],
)  # fmt: skip
def test_common_spellings(spelling: str, name: str) -> None:
    assert chips.load(spelling).name == name


def test_figures_are_the_sheet_in_internal_units() -> None:
    h100 = chips.load("h100")
    assert h100.bf16_flops == 989e12
    assert h100.hbm_bytes == 80 * 2**30
    assert h100.usable_bytes < h100.hbm_bytes
    assert h100.scale_out_bytes_s == 50e9
    assert h100.compute_units == 132
    assert chips.load("tpu-v5p").compute_units == 0


def test_what_the_sheet_lacks_stays_none() -> None:
    assert chips.load("v100-32gb").scale_out_bytes_s is None
    assert chips.load("gh200-96gb").scale_up_size is None
    assert chips.load("mi250").scale_up_bytes_s is None
    assert chips.load("a100").fp8_flops is None


def test_usable_memory_never_exceeds_the_chip() -> None:
    for chip in chips.table().values():
        assert 0 < chip.usable_bytes <= chip.hbm_bytes


def test_assumed_figures_name_their_source() -> None:
    table = {
        row["link_kind"]: row
        for row in csv.DictReader(
            files("meshwright.hardware").joinpath("latencies.csv").read_text().splitlines()
        )
    }
    a100_40 = chips.load("a100-40gb")  # its row has no latency
    assert ("scale_up_latency_s", table["nvlink"]["source"]) in a100_40.assumed
    assert a100_40.scale_up_latency_s == pytest.approx(10e-6)
    assert all(field != "scale_up_latency_s" for field, _ in chips.load("a100").assumed)


def test_families_derive_from_families_that_exist() -> None:
    families = {chip.family for chip in chips.table().values()}
    for chip in chips.table().values():
        assert chip.derives_from in families | {""}
        assert chip.derives_from != chip.family


def test_ambiguous_and_unknown_names_say_what_to_write() -> None:
    with pytest.raises(InputError) as caught:
        chips.load("V100")
    (fault,) = caught.value.diagnostics
    assert fault.code == "MW828"
    assert "V100-SXM2-16GB" in fault.message
    assert "V100-SXM2-32GB" in fault.message
    with pytest.raises(InputError) as caught:
        chips.load("h10")
    assert "H100-SXM" in caught.value.diagnostics[0].message  # several begin so
    with pytest.raises(InputError) as caught:
        chips.load("mi300y")
    assert "MI300X" in caught.value.diagnostics[0].hint
    for nothing in ("", "  ", "?!"):
        with pytest.raises(InputError):
            chips.load(nothing)
