"""Flags that several verbs share, and the request they spell. Words are checked where they are read.

Numbers stay text until the whole request is read, so that every fault of a command is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any, TypeVar, cast

import click

Command = TypeVar("Command", bound=Callable[..., Any])

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")  # the common ones; a wrong word lists all
PRECISIONS = ("fp16", "bf16", "fp8", "mxfp8", "nvfp4")

# Flag, metavar, help; the strategy field is the flag's own name.
STRATEGY: tuple[tuple[str, str, str], ...] = (
    ("--dp", "N", "Data-parallel degree."),
    ("--tp", "N", "Tensor-parallel degree."),
    ("--pp", "N", "Pipeline stages."),
    ("--vpp", "N", "Virtual stages (chunks) a rank."),
    ("--cp", "N", "Context-parallel degree."),
    (
        "--cp-method",
        "WORD",
        "ring, all-to-all, all-gather or hierarchical (all-to-all in a domain, ring outside).",
    ),
    ("--ep", "N", "Expert-parallel degree."),
    ("--etp", "N", "Tensor-parallel degree inside an expert."),
    (
        "--zero",
        "0-3",
        "What is sharded over data parallelism: 1 optimizer, 2 and gradients, 3 and parameters.",
    ),
    ("--zero-group", "N|WORD", "Chips that one sharded copy is spread over: a number, node, domain or all."),
    ("--schedule", "WORD", f"Pipeline schedule: {', '.join(SCHEDULES)}, ...; a wrong word lists all."),
    ("--microbatch-size", "N", "Sequences in one forward of one rank."),
    (
        "--recompute",
        "WORD",
        "none, full, minimal, every:2, layers:N, products:2 or selective:core_attn+norm+...",
    ),
    ("--layers-per-stage", "N,N,...", "Decoder layers of each virtual stage in order."),
    ("--optimizer", "WORD", "adamw, adamw-bf16, adamw-8bit, adafactor, muon, lion or sgd."),
    (
        "--offload",
        "WORD",
        "activations, activations:N (layers), experts, experts-all, optimizer, params; joined by +.",
    ),
    ("--finetune", "WORD", "none, lora:RANK, qlora:RANK, qlora-int8:RANK, dpo, dpo+lora:RANK."),
    ("--dispatcher", "WORD", "How tokens reach experts: all-to-all, deep-ep, hybrid-ep, all-gather."),
    (
        "--moe-balance",
        "WORD",
        "Loss by microbatch, sequence, global, global-counted, running; or bias. With + (or alone) balanced "
        "(routing is even), dropless (it is not, and no token is dropped) or capacity:F (experts take F "
        "times the mean, padded).",
    ),
    ("--placement", "A,B,C,D", "Axes from the fastest network outwards, for example tp,cp,dp,pp."),
)
STRATEGY_FIELDS = (*(flag[2:].replace("-", "_") for flag, _, _ in STRATEGY), "sp")
# Fields whose own value holds commas; several are told apart where each is written with the other sign.
LISTS = {"layers_per_stage": "+", "placement": "-"}

WORK: tuple[tuple[str, str, str], ...] = (
    ("--seq-len", "TOKENS", "Sequence length; k = 1024."),
    ("--global-batch", "N", "Sequences a step over all ranks."),
    ("--tokens-per-step", "TOKENS", "Instead of --global-batch; 16M of 8k sequences is 2,048 of them."),
    ("--total-tokens", "TOKENS", "The whole run, for days, chip-hours and cost; T = 10^12."),
    ("--precision", "WORD", f"Of matrix products: {', '.join(PRECISIONS)}."),
    ("--straggler", "X", "One rank is X times as slow (1.1), and all wait for it."),
    ("--documents", "TOKENS", "Packed documents of so many tokens; attention stays inside each."),
    (
        "--options",
        "A,B",
        "Framework switches that the plan assumes, for example cuda-graphs-full,fused-loss.",
    ),
    ("--framework", "NAME", "Efficiency profile, for example megatron-core or megatron-core@GENERATION."),
    ("--profile", "FILE", "Numbers that calibrate fitted to your own runs."),
    ("--price-per-chip-hour", "USD", "For the cost of a run with --total-tokens."),
)


def request(command: Command) -> Command:
    """MODEL and every flag of a request."""
    return click.argument("model", metavar="MODEL|PLAN", shell_complete=models)(request_flags(command))


def request_flags(command: Command) -> Command:
    """`--on`, `--set` and every flag of work and strategy, in the order of the help text."""
    for row in reversed(STRATEGY):
        if row[0] == "--tp":
            command = click.option(
                "--sp/--no-sp", "sp", default=None, help="Sequence parallelism over the tensor group."
            )(command)
        command = _text(*row)(command)
    return work_flags(command)


def work_flags(command: Command) -> Command:
    """`--on`, `--set` and every flag of the work."""
    for row in reversed(WORK):
        command = _text(*row)(command)
    command = click.option(
        "--set", "sets", metavar="cluster.FIELD=VALUE", multiple=True,
        help="Replace a figure of the cluster; repeatable.",
    )(command)  # fmt: skip
    return click.option(
        "--on", "on", metavar="CLUSTER", help="COUNTxCHIP, a torus slice, a machine or a file.",
        shell_complete=_chips,
    )(command)  # fmt: skip


def json_flag(command: Command) -> Command:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")(command)


def target_flag(command: Command) -> Command:
    """`--target`."""
    add = _text("--target", "NAME", "Only what this framework can express, e.g. megatron-core.")
    return cast(Command, add(command))


def _text(flag: str, metavar: str, text: str) -> Callable[[Any], Any]:
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        from meshwright import api

        return [w for w in api.words(flag) if w.startswith(incomplete)]

    return click.option(flag, metavar=metavar, help=text, shell_complete=complete)


def models(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Presets that a word may become."""
    from click.shell_completion import CompletionItem

    from meshwright import api

    named = [CompletionItem(n) for n in api.model_names() if n.startswith(incomplete)]
    return named or [CompletionItem(incomplete, type="file")]


def _chips(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    from meshwright import api

    count, x, start = incomplete.partition("x")
    if not x:
        return []
    return [f"{count}x{n}" for n in api.chip_spellings() if n.startswith(start.lower())]


def arguments(flags: dict[str, Any], *, several: bool = False) -> dict[str, Any]:
    """The keyword arguments of the API's verbs that parsed flags spell; InputError where one cannot be read.

    With `several`, a comma separates the values that a search may choose from (`--tp 4,8`). Flags of several
    requests name no model.
    """
    from meshwright import api
    from meshwright.errors import Diagnostic, InputError

    faults: list[Diagnostic] = []
    overrides: dict[str, float] = {}
    for text in flags.get("sets", ()):
        try:
            overrides |= _override(text)
        except InputError as error:
            faults.extend(error.diagnostics)
    price = None
    if flags.get("price_per_chip_hour") is not None:
        try:
            price = api.price(flags["price_per_chip_hour"])
        except InputError as error:
            faults.extend(error.diagnostics)
    options = _comma(flags.get("options"))
    if flags.get("options") is not None and not options:
        said = f"--options {flags['options']!r} names no word"
        hint = "leave it out, or write --options cuda-graphs-full,fused-loss"
        faults.append(Diagnostic("MW908", said, where="--options", hint=hint))
    balance, routing = _balance(flags.get("moe_balance"))
    options += routing
    flags = flags | {"moe_balance": balance}
    options += [f"{name}:{flags[name]}" for name in ("straggler", "documents") if flags.get(name) is not None]
    strategy = {name: flags[name] for name in STRATEGY_FIELDS if flags.get(name) is not None}
    if several:
        for name, value in strategy.items():
            if isinstance(value, str) and "," in value and (name not in LISTS or LISTS[name] in value):
                strategy[name] = _comma(value)
    found: dict[str, Any] = {
        "model": flags.get("model"),
        "cluster": flags.get("on"),
        "seq_len": flags.get("seq_len"),
        "global_batch_size": flags.get("global_batch"),
        "tokens_per_step": flags.get("tokens_per_step"),
        "total_tokens": flags.get("total_tokens"),
        "precision": flags.get("precision"),
        "options": options,
        "framework": flags.get("framework"),
        "overrides": overrides,
        "profile": flags.get("profile"),
        **strategy,
    }
    if faults:
        from meshwright import api

        others = api.faults(**found, several=several) if found["model"] is not None else ()
        raise InputError(*faults, *others)
    return found if price is None else found | {"price_per_chip_hour": price}


def settings(text: str) -> dict[str, str]:
    """The fields of `--case 'FIELD=VALUE ...'`; InputError names what is no setting."""
    from meshwright.errors import Diagnostic, InputError

    parts = [part.partition("=") for part in text.split()]
    odd = ["".join(part) for part in parts if not part[0] or not part[2]]
    if odd or not parts:
        said = f"{' '.join(odd) or 'nothing'} in --case {text!r} is not FIELD=VALUE"
        raise InputError(Diagnostic("MW910", said, where="--case", hint="for example --case 'tp=8 pp=4'"))
    _once([name for name, _, _ in parts], "--case")
    return {name: value for name, _, value in parts}


def distinct(varied: Sequence[str], cases: Sequence[dict[str, str]]) -> list[list[tuple[str, str]]]:
    """The choices of every `--vary`; InputError where a field varies twice, or a case has settled it."""
    axes = [choices(text) for text in varied]
    _once([*(axis[0][0] for axis in axes), *dict.fromkeys(chain(*cases))], "--vary")
    return axes


def _once(names: Sequence[str], where: str) -> None:
    """InputError where a field is said twice, which would leave one of its values unheard."""
    from meshwright.errors import Diagnostic, InputError

    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        said = f"{' and '.join(twice)} of {where} stands twice, and a side has one value of it"
        hint = "put all values behind one: --vary pp=1,8"
        raise InputError(Diagnostic("MW910", said, where=where, hint=hint))


def choices(text: str) -> list[tuple[str, str]]:
    """The (field, value) pairs of `--vary FIELD=A,B`."""
    from meshwright.errors import Diagnostic, InputError

    name, _, values = text.partition("=")
    if not name.strip() or not _comma(values):
        said = f"--vary {text} is not FIELD=A,B"
        raise InputError(Diagnostic("MW910", said, where="--vary", hint="for example --vary pp=1,8"))
    return [(name.strip(), value) for value in _comma(values)]


_ROUTING = {"balanced": "balanced-routing", "dropless": "dropless"}  # words of the work, not of the strategy


def _balance(text: str | None) -> tuple[str | None, list[str]]:
    """The strategy's word of `--moe-balance`, and the switches that its words about routing spell."""
    if text is None:
        return None, []
    words = [word.strip() for word in text.split("+")]
    routing = {w: _ROUTING.get(w, w) for w in words if w in _ROUTING or w.partition(":")[0] == "capacity"}
    kept = [word for word in words if word not in routing]
    return "+".join(kept) if kept else None, [*routing.values()]


def fields(texts: Sequence[str]) -> dict[str, str]:
    """The fields and values of every `--over FIELD=VALUES`; InputError where one is none, or stands twice."""
    from meshwright.errors import Diagnostic, InputError

    found: dict[str, str] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name.strip() or name.strip() in found:
            said = f"--over {text} {'stands twice' if name.strip() in found else 'is not FIELD=VALUES'}"
            hint = "for example --over cluster.scale_out_gbits_s=100:3200"
            raise InputError(Diagnostic("MW911", said, where="--over", hint=hint))
        found[name.strip()] = values
    return found


def names(text: str) -> list[str]:
    """Several models in a list; a file whose name holds a comma is one."""
    import os

    return [text] if os.path.exists(text) else _comma(text) or [text]


def _comma(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def _override(text: str) -> dict[str, float]:
    from meshwright import api
    from meshwright.errors import Diagnostic, InputError

    target, equals, value = text.partition("=")
    room, dot, name = target.strip().partition(".")
    if not equals or not dot or room != "cluster":
        raise InputError(
            Diagnostic(
                "MW902", f"--set {text} is not cluster.FIELD=VALUE", where="--set",
                hint="for example --set cluster.scale_out_gbits_s=400",
            )
        )  # fmt: skip
    return {name: api.cluster_figure(name, value.strip())}
