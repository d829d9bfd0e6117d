"""An estimate for a person: verdict, where time and memory go, what was derived and measured nearby."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.text import Text

from meshwright import units
from meshwright.calibrate import bands
from meshwright.cost.evaluation import MEMORY_KEYS, TIME_KEYS
from meshwright.hardware.overrides import FIELDS as FIGURES
from meshwright.profiles import load as profiles
from meshwright.report.as_json import profile_name, strategy_line
from meshwright.report.records import Estimate
from meshwright.report.terminal.findings import print_findings
from meshwright.report.terminal.table import plain_table, print_table
from meshwright.search.ranking import SAME

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

BAR = 24
BAR_COLUMN = ""  # its header
APART = 0.005  # share by which a closed form differs visibly from a simulated step
_SHOWS = 0.01  # share of the step or of the memory from which a way of balancing experts is told in a line
_TRAINED = (("optimizer", "adamw"), ("finetune", "none"))  # what a search leaves as it is, and the usual word
TIME_MEANS = {
    "compute": "the layers' own work",
    "tp": "exposed tensor-parallel collectives",
    "cp": "exposed context-parallel traffic",
    "ep": "exposed expert dispatch and combine",
    "dp": "exposed gradient and parameter traffic",
    "pp": "exposed sends between stages",
    "bubble": "waiting for the pipeline",
    "optimizer": "the update",
    "other": "launches and the rest",
}


def print_estimate(found: Estimate, console: Console) -> None:
    """The whole estimate."""
    print_headline(found, console)
    if not found.fits:
        console.print(f"what fits   meshwright plan {_asked(found)} searches for it")
    print_tables(found, console)
    print_balance_line(found, console)
    print_simulated(found, console)
    print_run(found, console)
    print_derived(found, console)
    print_nearest(found, console)
    if found.diagnostics:
        console.print()
        print_findings(found.diagnostics, console)


def _asked(found: Estimate) -> str:
    """Model and cluster as they were named, the work, and what else is no habit: what a search takes over."""
    model, on, work, strategy = found.given.model, found.given.cluster, found.work, found.strategy
    figures = {"on": on} if isinstance(on, str) else on
    framework, chip = found.profile.framework, found.cluster.chip
    price = found.price_per_chip_hour
    named = f"{framework.name}@{framework.generation}"
    flags: list[tuple[str, Any]] = [
        ("--on", figures.get("on") or "CLUSTER"),
        *(("--set", f"cluster.{name}={value}") for name, value in figures.items() if name in FIGURES),
        ("--seq-len", work.seq_len),
        ("--global-batch", work.global_batch_size),
        *([("--precision", work.precision)] if work.precision != "bf16" else []),
        *([("--options", ",".join(sorted(work.options)))] if work.options else []),
        *([("--framework", named)] if framework != profiles.load(None, chip).framework else []),
        *([("--total-tokens", f"{work.total_tokens:.15g}")] if work.total_tokens else []),
        *([("--price-per-chip-hour", f"{price:.15g}")] if price is not None else []),
        *((f"--{name}", word) for name, usual in _TRAINED if (word := getattr(strategy, name)) != usual),
    ]
    words = [model if isinstance(model, str) else "MODEL", *(str(word) for flag in flags for word in flag)]
    return shlex.join(words)


def print_tables(found: Estimate, console: Console) -> None:
    """Time and memory, part by part."""
    for table in (time_table(found), memory_table(found)):
        console.print()
        print_table(console, table, spare=(BAR_COLUMN,))


def print_headline(found: Estimate, console: Console) -> None:
    """Verdict, request, strategy and the figures people quote."""
    e, work, cluster = found.evaluation, found.work, found.cluster
    peak, room = units.bytes_text(e.peak_bytes), units.bytes_text(e.capacity_bytes)
    options = f", {', '.join(sorted(work.options))}" if work.options else ""
    if not found.fits:
        verdict = Text(f"does not fit: {peak} needed, {room} a chip", style="bold red")
    elif found.fits_narrowly:
        verdict = Text(f"fits narrowly: {peak} of {room} a chip", style="bold yellow")
    elif found.may_not_fit:
        verdict = Text(f"fits, but may not: {peak} of {room} a chip", style="bold yellow")
    else:
        verdict = Text(f"fits: {peak} of {room} a chip", style="bold green")
    console.print(
        f"{found.model.name} on {units.count_text(cluster.n_chips)} x {cluster.chip.name}, "
        f"{units.length_text(work.seq_len)} tokens x {units.count_text(work.global_batch_size)} "
        f"{units.plural(work.global_batch_size, 'sequence')}, "
        f"{work.precision}, {profile_name(found)}{options}"
    )
    console.print(f"{strategy_line(found.strategy)}")
    console.print()
    console.print(verdict.append(_interval(found.interval_bytes, units.bytes_text), style="none"))
    interval = _interval(found.interval_s, units.seconds_text)
    console.print(f"step time   {units.seconds_text(found.step_time_s)}{interval}")
    if found.interval_because:
        console.print(f"            the interval of jobs with {found.interval_because}")
    console.print(f"throughput  {units.number_text(found.tokens_per_s_per_chip)} tokens/s/chip")
    rate, dense = units.flops_text(found.model_flops_per_s_per_chip), units.flops_text(found.peak_flops)
    console.print(
        f"MFU         {units.percent_text(found.mfu)}  ({rate} a chip over {dense} "
        f"dense {work.precision}; causal attention counted half, recompute not counted)"
    )
    if float(e.recompute_s) > 0:
        console.print(
            f"HFU         {units.percent_text(found.hfu)}  (recompute counted: products and attention cores "
            "done again; norms and activation functions count nothing)"
        )


def ends_text(ends: tuple[float, float] | None, text: Callable[[float], str]) -> str:
    """What measured runs were within, where it is known."""
    return "" if ends is None else f"{text(ends[0])} to {text(ends[1])}"


def _interval(ends: tuple[float, float] | None, text: Callable[[float], str]) -> str:
    said = ends_text(ends, text)
    return f" ({said}: {units.percent_text(bands.INSIDE, 0)} of such runs)" if said else ""


def _bar(share: float) -> str:
    filled = round(BAR * max(0.0, min(1.0, share)))
    return "█" * filled + "·" * (BAR - filled)


def time_table(found: Estimate) -> Table:
    """Where the step goes, largest first; what is zero is left away."""
    e = found.evaluation
    table = plain_table("part", ">time", ">share", BAR_COLUMN, "", title="where the time goes")
    shares = sorted(((float(e.time_s.get(k, 0.0)), k) for k in TIME_KEYS), reverse=True)
    for seconds, key in shares:
        share = seconds / found.step_time_s
        if seconds > 0:
            means = TIME_MEANS[key]
            if key == "compute" and float(e.recompute_s) > 0:
                means += f"; {units.seconds_text(e.recompute_s)} of it recompute"
            table.add_row(key, units.seconds_text(seconds), units.percent_text(share), _bar(share), means)
    return table


def memory_table(found: Estimate) -> Table:
    """Memory of the fullest rank by category against what a process can allocate."""
    e = found.evaluation
    capacity = float(e.capacity_bytes)
    title = f"memory of the fullest rank (stage {int(e.peak_stage)})"
    table = plain_table("part", ">size", ">of capacity", BAR_COLUMN, title=title)
    for key in MEMORY_KEYS:
        size = float(e.memory_bytes.get(key, 0.0))
        if size > 0:
            share = size / capacity
            table.add_row(key, units.bytes_text(size), units.percent_text(share), _bar(share))
    peak = float(e.peak_bytes)
    table.add_row("peak", units.bytes_text(peak), units.percent_text(peak / capacity), _bar(peak / capacity))
    if float(e.kept_bytes) > 0.01 * peak:
        table.caption = (
            f"a device may show {units.bytes_text(peak + float(e.kept_bytes))}: while there is room, the "
            "allocator keeps what was freed"
        )
    return table


def print_balance(found: Estimate, console: Console) -> None:
    """What each way of balancing experts would cost, beyond a loss of each microbatch."""
    if not found.moe_balance:
        return
    title = "balancing experts, beyond a loss of each microbatch"
    table = plain_table("word", ">time", ">memory", ">counts sent", title=title)
    for word, costs in found.moe_balance.items():
        if costs.time_s is None or costs.memory_bytes is None or costs.traffic_bytes is None:
            table.add_row(word, "not with this schedule", "", "")
            continue
        table.add_row(
            word,
            units.seconds_text(costs.time_s),
            units.bytes_text(costs.memory_bytes),
            units.bytes_text(costs.traffic_bytes),
        )
    console.print()
    print_table(console, table)


def print_balance_line(found: Estimate, console: Console) -> None:
    """The ways of balancing experts that the step or the memory shows, in one line."""
    told = []
    for word, costs in found.moe_balance.items():
        if costs.time_s is None or costs.memory_bytes is None:
            continue
        parts = []
        if costs.time_s >= _SHOWS * found.step_time_s:
            parts.append(f"+{units.seconds_text(costs.time_s)}")
        if costs.memory_bytes >= _SHOWS * float(found.evaluation.capacity_bytes):
            parts.append(f"+{units.bytes_text(costs.memory_bytes)}")
        if parts:
            told.append(f"{word} {' '.join(parts)}")
    if told:
        console.print()
        console.print(f"balancing experts, beyond a loss of each microbatch: {'; '.join(told)}")


def print_simulated(found: Estimate, console: Console) -> None:
    """What the simulated pipeline adds: which rank, its bubble by cause, and the closed forms beside it."""
    exact, closed = found.simulated, found.closed_form
    if exact is None:
        _print_closed(found, console)
        return
    from meshwright.report.simulated import bubble_json

    causes, least = bubble_json(exact.idle, exact.slowest_rank), SAME * found.step_time_s
    waits = ", ".join(
        f"{k.replace('_', '-')} {units.seconds_text(s)}" for k, s in causes.items() if s > least
    )
    console.print()
    console.print(
        f"simulated   {units.count_text(len(exact.timeline.network.kind))} passes; time of rank "
        f"{exact.slowest_rank}, memory of rank {exact.fullest_rank}"
    )
    console.print(f"bubble      {waits or 'none'} on rank {exact.slowest_rank}")
    flight = f"{exact.in_flight.min():.3g} to {exact.in_flight.max():.3g}"
    console.print(
        f"in flight   activations of {flight} microbatches of a rank's layers, at its fullest moment"
    )
    step, peak = units.seconds_text(closed.step_time_s), units.bytes_text(closed.peak_bytes)
    console.print(f"closed form {step} a step, {peak} a chip")


def _print_closed(found: Estimate, console: Console) -> None:
    """The closed form beside a simulated step from which it differs visibly."""
    closed = float(found.closed_form.step_time_s)
    apart = closed / found.step_time_s - 1.0
    if abs(apart) >= APART:
        console.print()
        console.print(
            f"pipeline    simulated pass by pass; its closed form alone says {units.seconds_text(closed)} "
            f"({apart:+.1%})"
        )


def print_run(found: Estimate, console: Console) -> None:
    """The whole run, where its length is known."""
    run = found.run
    if run is None:
        return
    console.print()
    days = range_text(found, run.days, units.number_text)
    console.print(
        f"{units.count_text(run.total_tokens)} tokens: {units.count_text(round(run.n_steps))} "
        f"{units.plural(round(run.n_steps), 'step')}, "
        f"{units.number_text(run.days)} days{days}, {units.count_text(round(run.chip_hours))} chip-hours, "
        "without failures, restarts and evaluation"
    )
    if run.cost_usd is not None and run.price_per_chip_hour is not None:
        price = units.money_text(run.price_per_chip_hour)
        cost = range_text(found, run.cost_usd, units.money_text)
        console.print(f"cost {units.money_text(run.cost_usd)}{cost} at {price} a chip-hour")
    else:
        console.print("cost unknown: add --price-per-chip-hour USD")
    if run.energy_j is not None:
        console.print(
            f"energy {units.energy_text(run.energy_j)} of the chips alone at TDP ({run.tdp_w:g} W each)"
        )


def range_text(found: Estimate, value: float, text: Callable[[float], str]) -> str:
    """What grows with the step, over the interval of the step."""
    if found.interval_s is None:
        return ""
    low, high = (text(value * seconds / found.step_time_s) for seconds in found.interval_s)
    return f" ({low} to {high})"


def print_derived(found: Estimate, console: Console) -> None:
    """What was not given, and why it is what it is."""
    if not found.derived:
        return
    plain = [f"{name} {_value(d.value)}" for name, d in found.derived.items() if d.because == "not given"]
    table = plain_table("field", "value", "because", title="derived", header=False)
    for name, d in found.derived.items():
        if d.because != "not given":
            table.add_row(name, _value(d.value), d.because)
    if plain:
        table.add_row("not given", "", ", ".join(plain))
    console.print()
    print_table(console, table)


def _value(value: object) -> str:
    if isinstance(value, tuple | list):
        return ",".join(str(v) for v in value)
    return "-" if value is None else str(value)


def print_nearest(found: Estimate, console: Console) -> None:
    """Measured runs that resemble the plan, and what the model says of them."""
    if not found.nearest:
        return
    console.print()
    for near in found.nearest:
        predicted = (
            f"{_amount(near.predicted, near.unit)} for it" if near.predicted is not None else "nothing of it"
        )
        console.print(
            f"nearest: {near.id}, measured {_amount(near.measured, near.unit)}; this model says {predicted} "
            f"({near.source})"
        )
        console.print(f"  {near.why}")


def _amount(value: float, unit: str) -> str:
    return units.seconds_text(value) if unit == "s" else f"{units.number_text(value)} {unit}"
