"""Arguments against signatures: a public verb refuses what its annotations do not name, and shows a way."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright
from meshwright import api, reporting
from meshwright.errors import Diagnostic, InputError
from meshwright.files import typed
from meshwright.files.typed import AtLeast, Count, Positive

VERBS = (
    "calibrate", "check", "chips", "cluster", "compare", "estimate", "explain", "guide", "improve", "largest",
    "models", "plan", "ranks", "save", "save_actions", "save_trace", "sweep", "validate",
)  # fmt: skip
ASK: dict[str, Any] = {"cluster": "8xh100", "seq_len": "8k", "global_batch_size": 64}


def refused(verb: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Diagnostic]:
    with pytest.raises(InputError) as caught:
        verb(*args, **kwargs)
    return list(caught.value.diagnostics)


@pytest.mark.parametrize("verb", [*(getattr(api, name) for name in VERBS), reporting.report])
def test_every_argument_of_a_verb_is_held_against_its_annotation(verb: Callable[..., Any]) -> None:
    """A value of no kind stands for each argument in turn; what its hint shows would have been taken."""

    class Odd:
        pass

    signature = inspect.signature(verb)
    hints = typed._hints(verb.__wrapped__)  # type: ignore[attr-defined]
    checked = 0
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        hint = hints[name]
        assert not typed._fits(Odd(), hint), name
        if name in typed._EXAMPLES:
            assert typed._fits(eval(typed._EXAMPLES[name]), hint), name
        if parameter.default is not inspect.Parameter.empty:
            assert typed._fits(parameter.default, hint), name
        fault = typed._fault(name, 3, hint, parameter.default)
        assert (fault.code, fault.where) == ("MW912", name)
        assert fault.hint
        checked += 1
    assert checked >= 1


@pytest.mark.parametrize(
    ("name", "wrong", "said"),
    [
        ("top", "x", "a whole number of 1 or more"),
        ("top", 0, "a whole number of 1 or more"),
        ("top", True, "a whole number of 1 or more"),
        ("nearest", "x", "a whole number of 0 or more"),
        ("nearest", -1, "a whole number of 0 or more"),
        ("objective", 3, "must be text"),
        ("target", 3, "must be text"),
        ("deadline", [60], "a number or text"),
        ("pareto", "yes", "True or False"),
        ("progress", 3, "a function"),
        ("options", [3], "a list of text"),
        ("overrides", {3: 4.0}, "a mapping of text to a number"),
    ],
)
def test_a_plan_says_what_an_argument_must_be(name: str, wrong: Any, said: str) -> None:
    (fault,) = refused(api.plan, "llama-3.1-8b", **ASK, **{name: wrong})
    assert (fault.code, fault.where) == ("MW912", name)
    assert said in fault.message
    assert repr(wrong) in fault.message
    assert f"{name}" in fault.hint


def test_other_verbs_refuse_too(tmp_path: Path) -> None:
    found = api.estimate("llama-3.1-8b", **ASK, nearest=0)
    assert refused(api.largest, 3, "llama-3.1-8b", **ASK)[0].where == "quantity"
    assert refused(api.validate, 3)[0].where == "table"
    assert refused(api.save, found, 3)[0].where == "path"
    assert refused(api.save, 3, tmp_path / "x.yaml")[0].where == "result"
    assert refused(api.compare, 3, found)[0].where == "side"
    assert refused(api.sweep, "llama-3.1-8b", "8xh100", over=3)[0].where == "over"
    assert (
        refused(api.sweep, "llama-3.1-8b", "8xh100", over={"pp": "1,2"}, processes="2")[0].where
        == "processes"
    )
    assert [f.where for f in refused(api.plan, 3, 4, top="x", nearest="x")] == [
        "model",
        "cluster",
        "top",
        "nearest",
    ]
    assert refused(meshwright.report, 3, path=3)[1].where == "path"  # type: ignore[operator]
    assert (
        refused(api.calibrate, path=tmp_path / "no" / "file.json")[0].code == "MW808"
    )  # before the long fit


def test_numbers_of_numpy_are_numbers_and_truths_are_not() -> None:
    assert typed._fits(np.int64(3), Positive)
    assert typed._fits(np.float64(3.5), float)
    assert typed._fits(np.True_, bool)
    assert not typed._fits(True, int)
    assert not typed._fits(np.int64(0), Positive)
    assert typed._fits(0, Count)
    assert AtLeast(1) in Positive.__metadata__  # type: ignore[attr-defined]


def test_missing_and_unknown_arguments_are_said_as_python_says_them() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'model'"):
        api.estimate()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'tpp'"):
        api.validate(tpp=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("wrong", [float("nan"), 0, -1, "x", [1], 8.5, None])
@pytest.mark.parametrize("field", ["cluster.scale_up_size", "n_chips", "seq_len"])
def test_a_wrong_value_of_a_sweep_is_a_fault_of_its_field(field: str, wrong: Any) -> None:
    asked = {k: v for k, v in ASK.items() if k not in (field, "cluster")}
    faults = refused(api.sweep, "llama-3.1-8b", "8xh100", over={field: [wrong]}, **asked)
    assert faults
    assert all(f.code.startswith("MW") and f.hint for f in faults)


def test_a_value_that_no_field_has_is_named() -> None:
    (fault,) = refused(api.sweep, "llama-3.1-8b", over={"pp": [{}]}, **ASK)
    assert "holds {}, which is no value of a field" in fault.message
