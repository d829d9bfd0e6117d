"""Which words a search tries: those it tries when told nothing, every one there is, and those it leaves."""

from __future__ import annotations

from typing import Any, get_args

from meshwright.checks.advice import present_modules
from meshwright.checks.rule import divisors
from meshwright.cost.schedule import names as schedules
from meshwright.errors import Diagnostic, InputError
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.search.derive import bare_selective
from meshwright.search.given import ANY, DISPATCHERS, GROUPS, Between
from meshwright.strategy.placement import stages_outermost
from meshwright.strategy.recompute import parse, spell
from meshwright.strategy.records import ORDERS, RECOMPUTE_MODULES, CpMethod, MoeBalance, Optimizer
from meshwright.strategy.targets import Target
from meshwright.work import Work

Values = dict[str, tuple[Any, ...]]
PLAIN = "1f1b"
# Words that lay out a run, and the axis without which nothing reads them.
LAYOUT = {"schedule": "pp", "cp_method": "cp", "dispatcher": "ep", "offload": ""}

# Fields of which a search tries less than there is: why, and how to have more. Each can be listed.
LEFT = {
    "schedule": ("the profile's framework runs its own unless told", "any: all there are"),
    "offload": ("host memory is a last resort", "any: parameters, activations and experts too"),
    "optimizer": ("it decides what is trained, not where", ""),
    "finetune": ("it decides what is trained, not where", ""),
    "moe_balance": ("it decides how experts are trained, not where", ""),
    "dispatcher": ("efficiency numbers were measured with the framework's own", ""),
    "cp_method": ("most programs run ring or all-to-all", "any: all-gather and hierarchical too"),
    "zero_group": ("all ranks, a domain or a node", "a number, a list or a range of them: other sizes"),
    "recompute": (
        "single modules and the recipes' sets",
        "any other set, layers:N or products:N can be listed",
    ),
    "microbatch_size": ("above 8 powers of two, at most 1M tokens", "a range: every divisor of the batch"),
    "layers_per_stage": ("balanced over the stages, embedding and head counted as work", ""),
}


def complete_words(work: Work, profile: Profile) -> dict[str, Any]:
    """The words that are not searched, as `derive` fills them in."""
    options = work.options
    named = [word for word in ("deep-ep", "hybrid-ep", "all-to-all") if word in options]
    return {
        "optimizer": "adamw-bf16" if "bf16-optimizer" in options else "adamw",
        "finetune": "none",
        "dispatcher": named[0] if named else profile.framework.default_dispatcher,
        "moe_balance": "microbatch",
        "layers_per_stage": None,
    }


def usual(model: Model, work: Work, profile: Profile) -> Values:
    """The words that are tried of fields that nobody fixed; the first of each is the plainest."""
    return {name: (value,) for name, value in complete_words(work, profile).items()} | {
        "schedule": profile.framework.schedules,
        "sp": (True, False),
        "cp_method": ("ring", "all-to-all"),
        "zero": (1, 0, 2, 3),
        "zero_group": ("all", "domain", "node"),
        "offload": ("none", "optimizer"),
        "placement": ORDERS,
        "recompute": recomputes(model, profile),
    }


def every() -> Values:
    """Every word of each field, for one that is asked for with `any`."""
    return {
        "schedule": ("1f1b", *(s for s in schedules() if s != "1f1b")),
        "sp": (True, False),
        "cp_method": get_args(CpMethod),
        "zero": (1, 0, 2, 3),
        "zero_group": GROUPS,
        "offload": ("none", "optimizer", "optimizer+params", "activations", "experts"),
        "optimizer": get_args(Optimizer),
        "dispatcher": DISPATCHERS,
        "moe_balance": get_args(MoeBalance),
        "placement": ORDERS,
    }


def recipes(model: Model, profile: Profile) -> tuple[str, ...]:
    """none, the sets that the framework's recipes use and this model has, and full."""
    present, habits = present_modules(model), profile.framework
    usual = [parse(w) for w in (*habits.usual_recompute, habits.default_recompute)]
    kept = [bare_selective(profile) if w.unresolved else w.word for w in usual if w.modules <= present]
    return tuple(dict.fromkeys(["none", *(w for w in kept if w != "full"), "full"]))


def recomputes(model: Model, profile: Profile) -> tuple[str, ...]:
    """none, each module that the model has, the sets of the framework's recipes, every second layer, full."""
    present = present_modules(model)
    single = [spell({m}) for m in RECOMPUTE_MODULES if m in present]
    last = ("every:2", "full")
    sets = [w for w in recipes(model, profile) if w not in last]
    return tuple(dict.fromkeys([*sets[:1], *single, *sets[1:], *last]))


def chosen(
    choices: Values, model: Model, work: Work, profile: Profile, chips: int, target: Target | None = None
) -> tuple[Values, Values]:
    """The words to try, and what is left of the `choices` of numbers; a target takes out what it lacks.

    Raises InputError, with every fault, where nothing is left of a field.
    """
    most = every()
    words, numbers = usual(model, work, profile), {}
    for name, values in choices.items():
        if name not in words:
            if ANY not in values:
                numbers[name] = values
            continue
        listed: list[Any] = []
        for value in values:
            if isinstance(value, Between):
                listed += value.of((0, 1, 2, 3)) if name == "zero" else value.of(divisors(chips))
            elif isinstance(value, str) and value == ANY:
                listed += most.get(name, words[name])
            else:
                listed.append(bare_selective(profile) if value == "selective" else value)
        if not listed:
            near = ", ".join(map(str, divisors(chips)[:12]))
            said = f"{name} {' or '.join(map(str, values))} holds none of the values there are: {near}"
            hint = f"widen it, or leave {name} out"
            raise InputError(Diagnostic("MW104", said, where=name, hint=hint))
        words[name] = tuple(dict.fromkeys(listed))
    if target is not None:
        asked = {name: words[name] if name in words else numbers[name] for name in choices if name != "dp"}
        plain = {name: [v for v in values if not isinstance(v, Between)] for name, values in asked.items()}
        faults = target.faults({n: v for n, v in plain.items() if v}, work.precision)
        if faults:
            raise InputError(*faults)
        for name, values in words.items():
            kept = tuple(v for v in values if target.allows(name, v))
            words[name] = kept or target.fields.get(name, values)[:1]
        for name in ("vpp", "etp", "ep", "cp", "pp", "tp"):
            if name in target.fields:
                wanted = numbers.get(name)
                numbers[name] = tuple(v for v in target.fields[name] if wanted is None or within(v, wanted))
    if unpiped(choices, profile, target) and PLAIN not in words["schedule"]:
        words["schedule"] = (PLAIN, *words["schedule"])
    # The others are compared with one that breaks no rule which they keep.
    words["placement"] = tuple(sorted(words["placement"], key=lambda order: not stages_outermost(order)))
    return words, numbers


def unpiped(choices: Values, profile: Profile, target: Target | None) -> str:
    """The schedule that only spells plans without a pipeline: 1F1B, where nobody chose it and the target
    (or the profile's framework) does not run it; else none."""
    if target is not None:
        return "" if target.allows("schedule", PLAIN) else PLAIN
    return "" if "schedule" in choices or PLAIN in profile.framework.schedules else PLAIN


def left(choices: Values) -> dict[str, str]:
    """What is left alone of fields that nobody gave, and why."""
    return {field: "; ".join(filter(None, said)) for field, said in LEFT.items() if field not in choices}


def untried(words: Values, choices: Values, target: Target | None) -> Values:
    """What a search leaves of words that lay out a run and that nobody gave; a target has all of it."""
    there = {name: some for name, some in every().items() if name in LAYOUT and name not in choices}
    rest = {
        name: tuple(w for w in some if w not in words[name] and (not target or target.allows(name, w)))
        for name, some in there.items()
    }
    return {name: some for name, some in rest.items() if some}


def within(value: int, choices: tuple[Any, ...]) -> bool:
    """Whether a number is among choices that may hold ranges."""
    return any(c.low <= value <= c.high if isinstance(c, Between) else c == value for c in choices)
