"""Profiles: few numbers, each with its record; frameworks by name, generation, release and chip."""

from __future__ import annotations

import json
from importlib.resources import files
from itertools import product
from typing import Any, get_args

import pytest

from meshwright.errors import InputError
from meshwright.hardware import chips
from meshwright.profiles import load as profiles
from meshwright.profiles.records import Framework, Profile, Provenance

NUMBERS = profiles.shipped_numbers()
H100 = chips.load("h100")
GENERATIONS = [f"{h['name']}@{h['generation']}" for h in profiles.habits()]
SHARES = ("matrix", "memory", "attention", "scale_up", "scale_out")  # of a figure of the data sheet


def entries(*tables: str) -> list[tuple[str, str, dict[str, Any]]]:
    """(table and entry, kind, number) of each number in tables of entries."""
    return [
        (f"{table} {entry}", kind, number)
        for table in tables
        for entry, kinds in NUMBERS[table].items()
        for kind, number in kinds.items()
    ]


def test_the_shipped_file_is_what_is_loaded() -> None:
    text = files("meshwright.profiles").joinpath("numbers.json").read_text("utf-8")
    assert json.loads(text) == NUMBERS
    assert {"base", "chip_prior", "fitted_base", "chip", "framework", "pair"} <= set(NUMBERS)
    assert NUMBERS["chip"]
    assert NUMBERS["framework"]


@pytest.mark.parametrize(
    ("table", "allowed"), [("framework", profiles.FRAMEWORK_KINDS), ("chip", profiles.CHIP_KINDS)]
)
def test_at_most_seven_kinds(table: str, allowed: tuple[str, ...]) -> None:
    """Six of a chip; of a framework one more, as ZeRO-3's gathers and an exchange once a step hide apart."""
    assert len(allowed) <= (7 if table == "framework" else 6)
    for entry, kinds in NUMBERS[table].items():
        assert set(kinds) <= set(allowed), entry
    for family, kinds in NUMBERS["chip_prior"].items():
        assert set(kinds) <= set(profiles.CHIP_KINDS), family


def test_every_number_has_its_record() -> None:
    plain = [(table, kind, n) for table in ("base", "fitted_base") for kind, n in NUMBERS[table].items()]
    for entry, kind, number in plain + entries("chip_prior", "chip", "framework", "pair"):
        where = f"{entry} {kind}"
        assert number["value"] > 0, where
        assert number["provenance"] in get_args(Provenance), where
        assert number["source"].strip(), where
        if number["provenance"] == "fitted":
            assert number["n_runs"] >= number["n_sources"] >= 1, where


def test_fitted_entries_name_what_exists() -> None:
    families = {chip.family for chip in chips.table().values()}
    assert set(NUMBERS["framework"]) <= set(GENERATIONS)
    assert set(NUMBERS["chip"]) <= families
    assert set(NUMBERS["chip_prior"]) <= families
    for pair in NUMBERS["pair"]:
        generation, _, family = pair.partition("|")
        assert generation in GENERATIONS
        assert family in families


def test_pairs_are_fitted_only_where_two_sources_meet() -> None:
    assert NUMBERS["pair"]
    for entry, kind, number in entries("pair"):
        assert number["n_sources"] >= 2, (entry, kind)
        assert number["n_runs"] >= 2, (entry, kind)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_lineages_end(generation: str) -> None:
    like = {f"{h['name']}@{h['generation']}": h["like"] for h in profiles.habits()}
    chain = [generation]
    while like[chain[-1]]:
        assert like[chain[-1]] in like, f"{chain[-1]} descends from {like[chain[-1]]}, which does not exist"
        assert like[chain[-1]] not in chain, f"{' -> '.join(chain)} comes back to {like[chain[-1]]}"
        chain.append(like[chain[-1]])
    assert profiles.lineage(generation) == tuple(chain)


def test_generations_are_told_apart() -> None:
    assert len(set(GENERATIONS)) == len(GENERATIONS)
    releases = [(h["name"], r) for h in profiles.habits() for r in h["releases"]]
    assert len(set(releases)) == len(releases)
    for h in profiles.habits():
        assert h["source"].strip(), h["name"]
        record = profiles.framework_record(h)
        assert record.name == h["name"]
        assert record.default_zero in (0, 1, 2, 3)
        assert record.weight_bytes + record.grad_bytes + record.optimizer_bytes >= 8


@pytest.mark.parametrize("name", chips.names())
def test_every_chip_composes_with_every_generation(name: str) -> None:
    """Shares of the data sheet within (0, 1], factors and seconds within reason, whatever is multiplied.

    Exposed shares may pass 1 where collectives run slower beside compute than alone; low precision reaches a
    share of what 16 bits reach, and its product with that share is again a share of the peak.
    """
    chip = chips.load(name)
    for generation in GENERATIONS:
        profile = profiles.load(generation, chip)
        where = f"{generation} on {chip.family}"
        for kind in SHARES:
            assert 0 < profile[kind] <= 1, f"{where}: {kind} {profile[kind]}"
        assert 0 < profile["matrix"] * profile["low_precision"] <= 1, where
        assert 0 < profile["low_precision"] <= 1.25, where
        assert 0 < profile["tp_exposed"] < 2, where
        assert 0 < profile["dp_exposed"] < 2, where
        assert 0 < profile["gather_exposed"] < 2, where
        assert 0 < profile["host"] < 1e-3, where
        assert 1 <= profile["traffic"] < 12, where
        for kind, number in profile.numbers.items():
            assert number.provenance in get_args(Provenance), (where, kind)
            assert number.source, (where, kind)


@pytest.mark.parametrize("name", chips.names())
def test_defaults_by_chip(name: str) -> None:
    chip = chips.load(name)
    profile = profiles.load(None, chip)
    assert profile.framework.name == ("maxtext" if chip.is_tpu else "megatron-core")
    assert profile.chip_family == chip.family


@pytest.mark.parametrize(
    ("framework", "release", "generation"),
    [
        ("megatron-core", "26.06.01", "bridge-26.06"),
        ("megatron-core", "26.04.01", "bridge-26.02"),
        ("megatron-core", "25.11", "bridge-25.09"),
        ("nemo", "v25.04.02", "nemo-24"),
        ("NeMo", "24.07", "nemo-24"),
        ("megatron_core@nemo-24", "26.06", "nemo-24"),
        ("Megatron Core", "", "bridge-26.06"),
    ],
)
def test_a_release_picks_its_generation(framework: str, release: str, generation: str) -> None:
    assert profiles.load(framework, H100, release).framework.generation == generation


def test_old_chips_pick_old_generations() -> None:
    assert profiles.load("megatron-lm", chips.load("a100")).framework.generation == "2021"
    assert profiles.load("megatron-lm", H100).framework.generation != "2021"


@pytest.mark.parametrize(
    ("framework", "code", "names"),
    [
        ("megatrom-core", "MW850", "megatron-core"),
        ("caffe", "MW850", "maxtext"),
        ("", "MW850", "megatron-core"),
        ("megatron-core@bridge-99", "MW851", "bridge-26.06"),
    ],
)
def test_unknown_frameworks_are_refused_with_names(framework: str, code: str, names: str) -> None:
    with pytest.raises(InputError) as caught:
        profiles.load(framework, H100)
    (found,) = caught.value.diagnostics
    assert found.code == code
    assert framework in found.message or framework.partition("@")[2] in found.message
    assert names in found.hint


def test_a_generation_multiplies_onto_the_one_it_descends_from() -> None:
    numbers: dict[str, Any] = {**NUMBERS, "fitted_base": {}, "chip": {}, "framework": {}, "pair": {}}

    def matrix(framework: dict[str, float], generation: str) -> Any:
        table = {g: {"matrix": entry(v)} for g, v in framework.items()}
        return profiles.load(generation, H100, numbers={**numbers, "framework": table})["matrix"]

    bare = matrix({}, "torchtitan@2025")
    assert matrix({"fms-fsdp@2024": 0.9}, "torchtitan@2025") == pytest.approx(0.9 * bare)
    both = {"fms-fsdp@2024": 0.9, "torchtitan@2025": 0.8}
    assert matrix(both, "torchtitan@2025") == pytest.approx(0.72 * bare)
    assert matrix(both, "fms-fsdp@2024") == pytest.approx(0.9 * bare)


def entry(value: float, **changed: Any) -> dict[str, Any]:
    return {
        "value": value,
        "provenance": "fitted",
        "n_runs": 3,
        "n_sources": 2,
        "source": "a test",
        **changed,
    }


def test_a_chip_multiplies_onto_the_family_it_derives_from() -> None:
    numbers: dict[str, Any] = {**NUMBERS, "fitted_base": {}, "chip": {}, "framework": {}, "pair": {}}
    derived = next(c for c in chips.table().values() if c.derives_from)
    bare = profiles.load(None, derived, numbers=numbers)["memory"]
    table = {derived.derives_from: {"memory": entry(0.9)}, derived.family: {"memory": entry(0.95)}}
    assert profiles.load(None, derived, numbers={**numbers, "chip": table})["memory"] == pytest.approx(
        0.855 * bare
    )


def test_a_pair_touches_its_pair_alone() -> None:
    numbers: dict[str, Any] = {**NUMBERS, "pair": {"torchtitan@2025|h100": {"matrix": entry(0.5)}}}
    for framework, chip in product(("torchtitan", "megatron-core"), ("h100", "a100")):
        record = chips.load(chip)
        without = profiles.load(framework, record, numbers={**NUMBERS, "pair": {}})["matrix"]
        share = 0.5 if (framework, chip) == ("torchtitan", "h100") else 1.0
        assert profiles.load(framework, record, numbers=numbers)["matrix"] == pytest.approx(share * without)


def test_the_record_of_a_product_is_its_weakest() -> None:
    """Runs and sources behind a composed number are those of the factor with the fewest."""
    numbers: dict[str, Any] = {
        **NUMBERS, "fitted_base": {}, "pair": {},
        "chip": {"h100": {"matrix": entry(1.0, n_runs=50, n_sources=9)}},
        "framework": {"torchtitan@2025": {"matrix": entry(1.0)}},
    }  # fmt: skip
    found = profiles.load("torchtitan", H100, numbers=numbers).numbers["matrix"]
    assert (found.provenance, found.n_runs, found.n_sources) == ("fitted", 3, 2)
    bare = profiles.load("torchtitan", H100, numbers={**numbers, "chip": {}, "framework": {}}).numbers[
        "matrix"
    ]
    assert bare.provenance in ("measured", "assumed")
    assert (bare.n_runs, bare.n_sources) == (0, 0)


def test_flash_2_kernels_are_slower_on_newer_chips_alone() -> None:
    def attention(kernel: str, chip: str) -> Any:
        profile: Profile = profiles.load("megatron-core@nemo-24", chips.load(chip))
        habits = {h["name"] + "@" + h["generation"]: h for h in profiles.habits()}["megatron-core@nemo-24"]
        record: Framework = profiles.framework_record({**habits, "attention_kernel": kernel})
        return profiles.compose(record, chips.load(chip), NUMBERS)["attention"].value / profile["attention"]

    assert attention("flash-2", "h100") / attention("fused", "h100") == pytest.approx(375 / 625, rel=0.1)
    assert attention("flash-2", "a100") == attention("fused", "a100")
