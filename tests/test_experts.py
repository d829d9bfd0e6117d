"""The page of expert layouts: its rule, its figures again for two of them, and gains explained by terms."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from meshwright.calibrate import rows
from meshwright.calibrate.rows import Run
from meshwright.checks.shapes import moe
from meshwright.units import parse_percent
from scripts import script

ROOT = Path(__file__).parent.parent
DRIFT = 0.05  # the page is written anew when the model moves further than this

experts = script("experts")
PAGE = (ROOT / "docs" / "experts.md").read_text(encoding="utf-8")
SECTIONS = {m[1]: m[0] for m in re.finditer(r"## .*?\n\n`(\S+?)` \(.*?(?=\n## |\Z)", PAGE, re.DOTALL)}
SUMMARY = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| [^`]*%\s\|$", line)]
SEARCHED = {k: int(re.search(r"([\d,]+) strategies", s)[1].replace(",", "")) for k, s in SECTIONS.items()}
AGAIN = tuple(sorted(SEARCHED, key=SEARCHED.__getitem__)[:2])  # the two quickest


def runs(ids: tuple[str, ...]) -> list[Run]:
    return [run for run in rows.shipped("training") if run.id in ids]


def test_the_page_has_ten_layouts_by_the_rule() -> None:
    assert len(SECTIONS) == len(SUMMARY) == experts.LAYOUTS
    assert experts.RULE in PAGE
    of_page = [run for run in rows.shipped("training") if run.id in SECTIONS]
    chosen = experts.chosen(of_page)
    assert [run.id for run, _, _ in chosen] == list(SECTIONS)
    sparse = [bool(moe(case.model)) for _, case, _ in chosen]
    assert sparse == sorted(sparse)
    assert sum(sparse) == len(sparse) // 2
    cells = {(case.framework, run.chip, bool(moe(case.model))) for run, case, _ in chosen}
    assert len(cells) == len({case.model.name for _, case, _ in chosen}) == len(chosen)


def test_of_one_job_the_fastest_measured_is_taken() -> None:
    every = [r for r in rows.shipped("training") if r.id.startswith("titan-asynctp-70b")]
    found = experts.candidates(every)
    assert len(every) > len(found)
    for run, case, seconds in found:
        assert run.n_chips >= experts.CHIPS
        assert seconds <= min(
            r.step_time_s or float("inf") for r in every if r.precision == run.precision and not r.suspect
        )
        assert "microbatch_size" in case.given


@pytest.fixture(scope="module")
def again() -> dict[str, object]:
    return {run.id: experts.studied(run, case, s) for run, case, s in experts.candidates(runs(AGAIN))}


@pytest.mark.parametrize("name", AGAIN)
def test_figures_of_the_page_come_out_again(name: str, again: dict[str, object]) -> None:
    """Run `make experts` where this fails: the model has moved."""
    one = again[name]
    shown = parse_percent(re.search(r"([+-][\d.]+%) \|$", summary_line(one), re.MULTILINE)[1].strip("+"))
    told = next(line for line in SUMMARY if line[0] == one.expert.model.name)
    assert shown == pytest.approx(parse_percent(told[-1].removesuffix(" |").strip("+ |")), abs=DRIFT)
    line = re.search(r"\| expert \| `(.*?)` ", SECTIONS[name])[1]
    assert f"`{line}`" in "".join(experts.section(one))  # what the author stated does not move


def summary_line(one: object) -> str:
    return experts.summary([one]).splitlines()[-1]


def test_every_large_gain_names_its_terms() -> None:
    large = 0
    for line, section in zip(SUMMARY, SECTIONS.values(), strict=True):
        gain = parse_percent(line[-1].strip("+ |"))
        if gain > experts.EXPLAIN:
            large += 1
            why = section.partition("**Why ")[2]
            assert re.search(r"Of .* saved: `step\.time\.\w+` -", why), section
        assert re.search(r"\d+ of \d+ checks without a remark", section)
        assert "broken:" not in section
    within = re.search(r"(\d+) of 10 experts are within", PAGE)
    assert within is not None
    assert int(within[1]) == experts.LAYOUTS - large


def test_an_explanation_makes_up_what_is_saved(again: dict[str, object]) -> None:
    one = max(again.values(), key=lambda found: found.gain)
    assert one.best.fits
    assert one.gain >= 0
    named = re.findall(r"`(step\.time\.\w+)` -", experts.explanation(one))
    rows_ = {row.term: -row.differences[1] for row in experts.time_rows(one)}
    saved = one.expert.step_time_s - one.best.step_time_s
    favour = sum(s for s in rows_.values() if s > 0)
    assert sum(rows_.values()) == pytest.approx(saved, rel=1e-6)
    assert sum(rows_[name] for name in named) >= experts.TOLD * favour
    changes = experts.changed(one.expert.strategy, one.best.strategy)
    assert any(name in experts.explanation(one) for name in changes) or not changes
