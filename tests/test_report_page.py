"""Reports: the page against its own data, and what it holds for plans of every kind."""

from __future__ import annotations

import html.parser
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meshwright
from meshwright import api, reporting
from meshwright.cli.main import run
from meshwright.errors import InputError
from meshwright.report.document import Report, moments
from meshwright.report.html.page import page
from meshwright.report.html.svg import Line, Span, chart, timeline

MOST_BYTES = 500_000  # a page is sent by mail and opened on a telephone
VOID = {"meta", "link", "input", "br", "img", "hr"}
SECTIONS = (
    "verdict", "binds", "memory", "pipeline", "communication", "plans", "necessity", "checks", "provenance",
)  # fmt: skip
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "pipeline": ("llama-3.1-8b", "16xh100", {"pp": 2, "total_tokens": "1T", "price_per_chip_hour": 2.5}),
    "experts that do not fit": ("mixtral-8x7b", "8xh100", {"zero": 0, "offload": "none"}),
    "two ways": ("mixtral-8x7b", "64xh100", {"pp": 4, "schedule": "dualpipe", "quick": True}),
    "torus": ("llama-3.1-8b", "64xtpu-v5p", {"quick": True}),
    "one chip": ("llama-3.2-1b", "1xh100", {}),
}


class Reader(html.parser.HTMLParser):
    """Elements in order; fails where they do not nest, an id stands twice or a label has nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.refers: list[str] = []
        self.loads: list[str] = []
        self.data: list[tuple[float, str]] = []
        self.images = 0
        self._value: float | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.refers += [w for k in ("aria-labelledby", "for") if given.get(k) for w in given[k].split()]  # type: ignore[union-attr]
        self.refers += [given["href"][1:]] if (given.get("href") or "").startswith("#") else []  # type: ignore[index]
        self.loads += [v for k in ("src", "href", "srcset", "poster", "action") if (v := given.get(k))]
        if tag == "svg":
            assert given.get("aria-hidden") == "true" or given.get("aria-label")
            self.images += 1
        if tag == "th":
            assert given.get("scope") in ("row", "col")
        if tag == "data":
            self._value = float(given["value"] or "nan")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self._value is not None:
            self.data.append((self._value, text))
            self._value = None


@pytest.fixture(scope="module", params=CASES)
def report(request: pytest.FixtureRequest) -> Report:
    model, on, more = CASES[request.param]
    return reporting.report(model, on, seq_len="4k", global_batch_size=32, **more)


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == []
    return reader


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        for part in value.values():
            yield from numbers(part)
    elif isinstance(value, list):
        for part in value:
            yield from numbers(part)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value)


def test_the_page_is_well_formed_and_alone(report: Report) -> None:
    text = report.html()
    reader = read(text)
    assert len(text.encode()) < MOST_BYTES
    assert len(set(reader.ids)) == len(reader.ids)
    assert set(reader.refers) <= set(reader.ids)
    assert set(SECTIONS) <= set(reader.ids)
    assert all(address.startswith(("#", "data:")) for address in reader.loads)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|WebSocket|<script[^>]+src", text)
    assert "nan" not in {t.lower() for _, t in reader.data}


def test_every_figure_is_one_of_the_json(report: Report) -> None:
    told = set(numbers(json.loads(json.dumps(report.json(), allow_nan=False))))
    shown = read(report.html()).data
    # Chip-hours are told whole.
    told |= {float(round(x)) for x in told if x > 1000}
    assert len(shown) > 30
    assert [one for one in shown if one[0] not in told] == []


def test_the_verdict_is_that_of_the_estimate(report: Report, request: pytest.FixtureRequest) -> None:
    said = report.html()
    assert report.estimate.fits is ("do not fit" not in request.node.callspec.id)
    assert ("It does not fit" in said) is (not report.estimate.fits)
    assert report.json()["plan"]["fits"] is report.estimate.fits


def test_what_ifs_begin_with_the_plan_itself(report: Report) -> None:
    for one in report.what_ifs:
        (i,) = [i for i, p in enumerate(one.sweep.points) if p.at[one.field] == one.now]
        kept, best = one.kept[i], one.sweep.points[i].best
        assert kept is not None
        assert kept.step_time_s == pytest.approx(report.estimate.step_time_s, rel=1e-9)
        assert (best is None) == (report.search.best is None)
        if best is not None and report.search.best is not None:
            assert best.strategy == report.search.best.strategy
            assert best.step_time_s == pytest.approx(report.search.best.step_time_s, rel=1e-9)


def test_no_kept_plan_beats_the_best(report: Report) -> None:
    for one in report.what_ifs:
        for point, kept in zip(one.sweep.points, one.kept):
            if kept is not None and kept.fits:
                assert point.best is not None
                assert kept.step_time_s >= point.best.step_time_s * (1 - 1e-9)


def test_a_plan_file_is_reported_beside_the_best(tmp_path: Path) -> None:
    slow = api.estimate("llama-3.1-8b", "16xh100", seq_len="4k", global_batch_size=32, tp=8, nearest=0)
    file, out = tmp_path / "plan.yaml", tmp_path / "out.html"
    api.save(slow, file)
    found = reporting.report(str(file), path=out, quick=True)
    assert found.estimate.strategy == slow.strategy
    assert found.search.best is not None
    assert found.search.best.step_time_s < slow.step_time_s
    assert any("best plan that fits" in s.text for s in found.explanation.sentences)
    read(out.read_text(encoding="utf-8"))


def test_what_the_search_said_already_is_not_asked_again() -> None:
    request: dict[str, Any] = {"seq_len": "4k", "global_batch_size": 32, "pp": 2}
    found = api.plan("llama-3.1-8b", "16xh100", **request)
    told = reporting.report("llama-3.1-8b", "16xh100", found=found, quick=True, **request)
    assert told.search is found
    assert told.estimate.strategy == found.plans[0].strategy


def test_the_verb_is_public(tmp_path: Path) -> None:
    told = meshwright.report("llama-3.2-1b", "1xh100", seq_len="2k", global_batch_size=4, quick=True)  # type: ignore[operator]
    assert isinstance(told, Report)


def test_the_command_writes_and_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.html"
    words = ["llama-3.2-1b", "--on", "1xh100", "--seq-len", "2k", "--global-batch", "4"]
    assert run(["report", *words, "--quick", "-o", str(out), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["schema"] == "meshwright.report/1"
    assert str(out) in said.err
    assert run(["report", *words, "--quick", "-o", str(tmp_path / "no" / "r.html")]) == 2
    assert "MW808" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("module", "work", "verb"), [(reporting, "_subject", ["report"]), (api, "largest", ["max", "seq_len"])]
)
def test_the_folder_is_looked_for_before_the_work(
    module: Any, work: str, verb: list[str], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    def begun(*_: Any, **__: Any) -> None:
        pytest.fail("a search began")

    monkeypatch.setattr(module, work, begun)
    words = ["llama-3.2-1b", "--on", "1xh100", "--global-batch", "4"]
    assert run([*verb, *words, "-o", str(tmp_path / "no" / "out")]) == 2
    assert "MW808" in capsys.readouterr().err


def test_a_name_cannot_become_markup() -> None:
    from dataclasses import replace

    found = api.estimate("llama-3.2-1b", "1xh100", seq_len="2k", global_batch_size=4, nearest=0)
    model = replace(found.model, name="<script>alert(1)</script>")
    text = page(reporting.report(model, "1xh100", seq_len="2k", global_batch_size=4, quick=True))
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert" in text


def test_nothing_legal_is_said() -> None:
    with pytest.raises(InputError):
        reporting.report("llama-3.1-8b", "8xh100", seq_len="4k", global_batch_size=32, pp=7, quick=True)


def test_long_steps_stay_small() -> None:
    told = reporting.report(
        "llama-3.1-70b", "512xh100", seq_len="4k", global_batch_size=512, quick=True, pp=16, vpp=5,
        dp=4, tp=8, microbatch_size=1, schedule="interleaved-1f1b", zero=1, recompute="full",
    )  # fmt: skip
    assert told.simulated is not None
    assert len(told.simulated.timeline.network.kind) > 15_000
    text = told.html()
    assert len(text.encode()) < MOST_BYTES
    assert "beginning of the step" in text
    for rank in (0, 15):
        _, held = moments(told.simulated, rank)
        assert held.max() == told.simulated.memory_over_time(rank)[1].max()


def test_drawings_stand_where_their_numbers_are() -> None:
    drawn = chart("c", [Line("a", "s", [(1.0, 0.0), (4.0, 10.0)])], str, str, ratio=True)
    assert re.findall(r'<circle class="s" cx="([\d.]+)" cy="([\d.]+)"', drawn)[0] == ("74.0", "238.0")
    assert 'cx="684.0"' in drawn
    rows = timeline("t", ["r"], [Span(0, "p", 0.0, 5.0), Span(0, "p", 5.0, 10.0)], 0.0, 10.0, str)
    assert "M74.0 0h304.6v20H74.0zM379.0 0h304.6v20H379.0z" in rows
