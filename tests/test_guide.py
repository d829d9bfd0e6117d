"""The golden rule: recipes, the tree fit, the shipped table and rule, the page, the verb."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from meshwright import api, units
from meshwright.cli.main import run
from meshwright.errors import InputError
from meshwright.hardware.cluster import parse
from meshwright.model import presets
from meshwright.model.params import total_params
from meshwright.report.guide import sentences
from meshwright.search.bounds import Request
from meshwright.search.guide import practice, recipes, rule, table, tree
from meshwright.search.guide.facts import QUESTIONS, facts
from meshwright.search.guide.near import near
from meshwright.search.guide.recipes import Recipe
from meshwright.search.mixes import Mix, mixes, recipe_words
from meshwright.search.ranking import TIED
from meshwright.search.scan import scan
from meshwright.search.space import build
from meshwright.work import Work
from scripts import script

guide = script("guide")
TABLE, RULE = table.shipped(), rule.shipped()


def job(model: str, on: str, seq_len: int = 4096, sequences: int = 1024) -> Request:
    found = api.estimate(model, on, seq_len=seq_len, global_batch_size=sequences, nearest=0)
    return Request(found.model, found.cluster, found.work, found.profile)


def fastest(asked: Request, mix: Mix) -> float:
    space = build(asked.model, asked.cluster, asked.work, mix.fields() | recipe_words(asked), asked.profile)
    return scan(asked, space, top=1, techniques=()).best[0].step_time_s


def test_mixes_are_what_searches_with_fixed_degrees_find() -> None:
    asked = job("llama-3.1-8b", "64xh100", sequences=64)
    found = mixes(asked, 0.10)
    assert found.best is not None
    assert found.losses[Mix.of(found.best.strategy)] == 0
    assert len(found.losses) > 2
    for mix, loss in found.losses.items():
        assert fastest(asked, mix) == pytest.approx(found.best.step_time_s * (1 + loss), rel=1e-9)
    other = Mix(tp=8, pp=8, cp=1, ep=1)
    assert other not in found.losses
    assert fastest(asked, other) > 1.10 * found.best.step_time_s


def test_a_tree_finds_the_questions_that_made_the_losses() -> None:
    rng = np.random.default_rng(7)
    asked = 2.0 ** rng.integers(-2, 6, (400, 4))
    right = np.where(asked[:, 2] <= 4, 0, np.where(asked[:, 0] <= 2, 1, 2))
    losses = np.where(np.arange(3) == right[:, None], 0.0, 0.2)
    found = tree.fit(asked, losses, depth=6, least=2, gain=0.01)
    answers = np.array([tree.answer(found, row) for row in asked])
    assert (answers == right).all()
    assert tree.depth(found) <= 6
    assert tree.depth(tree.fit(asked, losses, depth=1, least=2, gain=0.01)) == 1


def test_a_wrong_answer_that_costs_nothing_asks_no_question() -> None:
    asked = np.arange(20.0).reshape(-1, 1)
    losses = np.zeros((20, 2))
    losses[10:, 1] = 0.001  # answer 0 is right everywhere
    assert tree.fit(asked, losses, depth=6, least=2, gain=0.01) == tree.Leaf(0, 20)


@pytest.mark.parametrize("model", ["llama-3.1-70b", "deepseek-v3", "qwen2.5-1.5b", "nemotron-3-nano-30b-a3b"])
@pytest.mark.parametrize("on", ["96xh100", "256xgb200", "512xtpu-v5p"])
def test_every_recipe_gives_degrees_that_divide(model: str, on: str) -> None:
    shape, cluster = presets.load(model), parse(on)
    known = facts(shape, cluster, Work(8192, 768))
    for recipe in recipes.every():
        mix = recipe.mix(known)
        assert cluster.n_chips % (mix.tp * mix.pp * mix.cp) == 0
        assert mix.tp <= recipe.tp
        assert known.heads % mix.tp == 0
        if known.experts:
            assert known.experts % mix.ep == 0
            assert cluster.n_chips // mix.pp % mix.ep == 0
        else:
            assert mix.ep == 1


def test_more_network_needs_no_more_stages() -> None:
    asked = facts(presets.load("llama-3.1-405b"), parse("16384xh100"), Work(8192, 2048))
    stages = [
        Recipe(cover=2.0).mix(replace(asked, network_bytes_s=gbits * 1e9 / 8)).pp
        for gbits in (50, 100, 200, 400, 800, 1600, 3200, 100_000)
    ]
    assert stages == sorted(stages, reverse=True)
    assert stages[0] > stages[-1] == 1


def test_the_jobs_are_those_of_common_practice() -> None:
    listed = practice.practice()
    sizes = [total_params(one.loaded()) for one in practice.jobs()]
    assert len(set(sizes)) >= 8
    assert min(sizes) < 1.5e9
    assert max(sizes) > 2e12
    assert len(listed["clusters"]) >= 6
    assert min(listed["lengths"]) == 4096
    assert max(listed["lengths"]) == 2**20
    h100 = parse("8xh100").chip
    assert practice.n_chips(presets.load("deepseek-v3"), h100) == 2048
    assert practice.tokens_per_step(presets.load("deepseek-v3")) == 64 * 2**20


def test_the_table_has_every_job_and_reads_as_it_was_written() -> None:
    assert [case.job for case in TABLE] == list(practice.jobs())
    assert table.read(table.written(TABLE)) == TABLE
    for case in TABLE:
        if case.strategy is not None:
            assert case.losses[Mix.of(case.strategy)] == 0
            assert all(0 <= loss <= table.SLACK for loss in case.losses.values())


def test_the_rule_keeps_what_it_promises() -> None:
    assert RULE.depth <= 6
    assert RULE.losses.median <= 0.03
    lost = [case.loss(RULE.mix(case.facts())) for case in TABLE if case.strategy is not None]
    assert np.median(lost) == pytest.approx(RULE.losses.median, abs=1e-4)
    assert np.mean(lost) == pytest.approx(RULE.losses.mean, abs=1e-4)
    assert sum(leaf.losses.cases for leaf in RULE.leaves()) == len(lost)
    assert set(RULE.by_model) == {case.job.model for case in TABLE}


def test_the_rule_is_what_fits_the_table() -> None:
    assert rule.written(rule.fitted(TABLE)) == rule.written(RULE)


def test_an_axis_is_needed_where_nothing_near_does_without() -> None:
    plain = next(
        case for case in TABLE if case.strategy is not None and case.losses.get(Mix(1, 1, 1, 1)) == 0
    )
    assert not any(guide.needs(plain, axis) for axis in ("tp", "pp", "cp", "ep"))
    only = replace(plain, losses={Mix(1, 4, 1, 1): 0.0, Mix(8, 1, 1, 1): 0.04, Mix(1, 8, 1, 8): 0.02})
    assert [guide.needs(only, axis) for axis in ("tp", "pp", "cp", "ep")] == [False, True, False, False]


def test_the_page_is_what_the_command_writes() -> None:
    assert guide.page(TABLE, RULE) == guide.PAGE.read_text(encoding="utf-8")


def test_the_path_is_the_way_through_the_tree() -> None:
    found = api.guide("deepseek-v3", "2048xh100", seq_len=4096, tokens_per_step="64M")
    answer = found.answer
    assert answer is not None
    node = found.rule.root
    for ask in answer.asked:
        assert node == ask
        above = ask.question.value(answer.facts) > ask.threshold
        node = ask.above if above else ask.below
    assert node == answer.advice
    assert len(answer.path()) == len(answer.asked) <= 6
    assert answer.dp * answer.mix.tp * answer.mix.pp * answer.mix.cp == 2048


def test_one_changed_fact_changes_the_advice() -> None:
    """The same model on a network that hides everything needs fewer stages."""
    slow, fast = (
        api.guide("llama-3.1-405b", "16384xh100", seq_len=4096, overrides={"scale_out_gbits_s": g}).answer
        for g in (50.0, 100_000.0)
    )
    assert slow is not None
    assert fast is not None
    assert slow.advice != fast.advice
    assert slow.mix.pp > fast.mix.pp


def test_a_batch_that_is_left_out_is_usual() -> None:
    found = api.guide("llama-3.1-8b", "64xh100", seq_len="8k").answer
    assert found is not None
    assert found.work.global_batch_size * 8192 == 4 * 2**20
    assert "usual" in found.derived["global_batch_size"].because


def test_what_the_rule_never_saw_is_said() -> None:
    found = api.guide("llama-3.1-405b", "1xh100", seq_len="8k").answer
    assert found is not None
    little, unseen = found.remarks
    assert "takes 77 chips at the least, and there are 1" in little
    assert "let plan search" in unseen
    for case in TABLE[::40]:
        assert not list(RULE.outside(case.facts()))


def test_chips_that_are_no_power_of_two_get_a_batch_that_they_divide() -> None:
    found = api.guide("gpt-oss-120b", "96xh100", seq_len="4k").answer
    assert found is not None
    assert found.work.global_batch_size == 3 * 2**10
    assert found.dp * found.mix.tp * found.mix.pp * found.mix.cp == 96
    assert found.work.global_batch_size % found.dp == 0


def test_a_loss_says_of_what_and_why_plan_may_say_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["guide", "llama-3.1-8b", "--on", "64xh100", "--seq-len", "8k", "--compare"]) == 0
    shown = capsys.readouterr().out
    assert "longer a step takes than in the computed plan" in shown
    assert "plan the fastest for this one" in shown
    beside = api.guide("llama-3.1-8b", "64xh100", seq_len=8192, compare=True).answer.compared
    assert f"{units.percent_text(beside.loss)} of the best step time" in shown
    assert (": a tie" in shown) == (beside.loss <= TIED)


def test_compared_with_the_search() -> None:
    beside = api.guide("llama-3.1-8b", "64xh100", seq_len=8192, compare=True).answer.compared
    assert beside.best.step_time_s <= beside.followed.step_time_s
    assert beside.loss == pytest.approx(beside.followed.step_time_s / beside.best.step_time_s - 1)
    assert Mix.of(beside.followed.strategy) == api.guide("llama-3.1-8b", "64xh100", seq_len=8192).answer.mix


def test_guide_prints_the_rule_and_an_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["guide"]) == 0
    shown = capsys.readouterr().out
    for _, text in sentences(RULE.root):
        assert text in shown
    assert run(["guide", "kimi-k2", "--on", "512xtpu-v7", "--seq-len", "4k"]) == 0
    assert "data-parallel" in capsys.readouterr().out
    assert run(["guide", "kimi-k2", "--on", "512xtpu-v7", "--seq-len", "4k", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema"] == "meshwright.guide/1"
    assert found["answer"]["path"][0]["question"] in {q.name for q in QUESTIONS}
    assert run(["guide", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["answer"] is None


def test_faults_of_a_request_have_a_way_out() -> None:
    with pytest.raises(InputError) as caught:
        api.guide(seq_len=4096)
    assert caught.value.diagnostics[0].code == "MW910"
    with pytest.raises(InputError) as caught:
        api.guide("llama-3.1-8b", "64xh100", seq_len=4096, tokens_per_step="1k")
    assert caught.value.diagnostics[0].code == "MW903"
    with pytest.raises(InputError) as caught:
        api.guide("llama-3.1-8b", "64xh100")
    assert "sequence length" in str(caught.value)


def test_a_job_of_the_table_is_nearest_to_itself() -> None:
    case = next(case for case in TABLE if case.strategy is not None and case.losses)
    first, *others = near(case.facts(), 3)
    assert first.job == case.job
    assert first.distance == 0
    assert first.loss == case.loss(RULE.mix(case.facts()))
    assert all(one.distance > 0 for one in others)


def test_what_the_rule_is_known_to_lose_and_cannot_do_is_said() -> None:
    far = next(c for c in TABLE if c.strategy is not None and c.loss(RULE.mix(c.facts())) >= table.SLACK)
    asked = far.job.request()
    said = api.guide(asked.model, asked.cluster, work=asked.work).answer
    assert said is not None
    assert said.near[0].loss == table.SLACK
    assert any(f"{100 * table.SLACK:g} % or more" in remark for remark in said.remarks)


def test_experts_over_fewer_chips_than_the_rule_means_are_told() -> None:
    """288 chips are 32 x 9, so no 64 of the 144 of a stage can share 256 experts."""
    asked = [("deepseek-v3", 4096), ("deepseek-v3", 32768), ("qwen3-235b-a22b", 32768)]
    answers = [api.guide(model, "288xgb200", seq_len=length).answer for model, length in asked]
    lowered = [odd for odd in answers if odd is not None and odd.mix.ep < odd.advice.recipe.ep]
    assert lowered
    for odd in lowered:
        assert any(f"nearest below is {odd.mix.ep}" in remark for remark in odd.remarks)
        assert f"experts dealt out over {odd.mix.ep} chips" in odd.split
