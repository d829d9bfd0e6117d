"""The story of a plan for whoever approves the money: no abbreviation, no word of the trade."""

from __future__ import annotations

from meshwright import units
from meshwright.calibrate import bands
from meshwright.report.explanation import Explanation, by_tag, request_of
from meshwright.report.records import Estimate
from meshwright.search import probe
from meshwright.search.bounds import Request
from meshwright.simulate.told import told
from meshwright.strategy.records import Strategy

WIDER = 2.0  # how much wider a road is asked about
_SPELLED = {
    "ns": "nanoseconds", "µs": "microseconds", "ms": "milliseconds", "s": "seconds", "min": "minutes",
    "h": "hours", "days": "days",
}  # fmt: skip

_BYTES = {
    "B": "bytes", "KiB": "kibibytes", "MiB": "mebibytes", "GiB": "gibibytes", "TiB": "tebibytes",
    "PiB": "pebibytes",
}  # fmt: skip


def story(found: Explanation) -> tuple[str, ...]:
    """Paragraphs: what is asked, how the work is split, where chips wait or talk, room, roads, trust."""
    e = found.estimate
    told = (_asked(e), _split(e), _day(e), _room(e), _roads(found), _money(e), _trust(found))
    return tuple(paragraph for paragraph in told if paragraph)


def _count(value: float) -> str:
    """A count in digits and words: 405 billion."""
    for least, word in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if value >= least:
            return f"{value / least:.3g} {word}"
    return f"{value:,.0f}"


def _time(seconds: float) -> str:
    """Seconds with the unit written out."""
    number, unit = units.seconds_text(seconds).split(" ")
    return f"{number} {_SPELLED[unit]}"


def _memory(size: float) -> str:
    """Bytes with the unit written out: the same one that the tables abbreviate."""
    number, unit = units.bytes_text(size).split(" ")
    return f"{number} {_BYTES[unit]}"


def _share(fraction: float) -> str:
    """A share as a person says it."""
    percent = 100.0 * fraction
    return (
        f"{percent:.0f} percent"
        if percent >= 1.5
        else "about one percent"
        if percent >= 0.5
        else "almost none"
    )


def _asked(e: Estimate) -> str:
    from meshwright.model import params

    size = _count(float(params.total_params(e.model)))
    text = _count(float(e.work.tokens_per_step))
    return (
        f"{e.model.name} has {size} adjustable numbers. To teach it, {e.cluster.n_chips:,} "
        f"{e.cluster.chip.name} {units.plural(e.cluster.n_chips, 'chip')} read text together. They read "
        f"{text} pieces of text (a piece is most "
        f"of a word), adjust the numbers once, and begin again. One such round takes {_time(e.step_time_s)}."
    )


def _split(e: Estimate) -> str:
    """Who does what."""
    s = e.strategy
    team = e.cluster.n_chips // int(s.dp)
    said = []
    if s.dp > 1:
        each = f"{team} chips" if team > 1 else "one chip"
        said.append(
            f"The chips form {s.dp:,} teams of {each}. Every team works on its own share of the text with "
            "the same model, and at the end of a round all teams agree on the adjustment."
        )
    else:
        said.append("All chips work as one team on the same text.")
    if s.pp > 1:
        said.append(
            f"Inside a team the layers of the model are dealt out over {s.pp} groups, like stations of an "
            "assembly line: a batch of text passes from station to station and back."
        )
    if s.tp > 1:
        said.append(
            f"Each calculation is too large or too slow for one chip, so {s.tp} chips share it and put their "
            "parts together again and again."
        )
    if s.cp > 1:
        said.append(
            f"Every long text is cut into {s.cp} stretches, each read by other chips, which tell each other."
        )
    if s.ep > 1:
        said.append(
            f"The model has specialists, of which each piece of text asks only a few; they live on {s.ep} "
            "chips, so text travels to its specialists and back."
        )
    if s.zero >= 1 and s.dp * s.cp > 1:
        kept = "notes about past adjustments" if s.zero < 3 else "numbers of the model and notes about them"
        said.append(f"To save room the teams share out the {kept} instead of each keeping all of them.")
    if s.recompute != "none":
        said.append(
            "Some results are thrown away and worked out a second time, which costs time and saves room."
        )
    if s.pp == s.tp == s.cp == s.ep == 1:
        said.append("Every chip holds all layers, so nothing is passed around while it works.")
    return " ".join(said)


_WAITS = {
    "tp": "putting together shared calculations",
    "cp": "exchanging stretches of long texts",
    "ep": "sending text to its specialists and back",
    "dp": "agreeing on the adjustment between teams",
    "pp": "handing work to the next station",
    "bubble": "waiting for work from another station",
    "optimizer": "making the adjustment",
    "other": "waiting for the slowest chip and for orders from its computer",
}


def _day(e: Estimate) -> str:
    """Where a round's time goes."""
    step = e.step_time_s
    parts = {name: float(seconds) / step for name, seconds in e.evaluation.time_s.items()}
    shown = sorted(
        ((share, name) for name, share in parts.items() if name != "compute" and share >= 0.005), reverse=True
    )
    said = f"Of every round a chip spends {_share(parts['compute'])} calculating"
    if shown:
        said += "; " + ", ".join(f"{_share(share)} {_WAITS.get(name, name)}" for share, name in shown)
    worst = shown[0][1] if shown and shown[0][0] > parts["compute"] else "compute"
    if worst == "compute":
        return f"{said}. Calculating is the largest part, which is how it should be."
    return f"{said}. The largest loss is {_WAITS.get(worst, worst)}."


def _room(e: Estimate) -> str:
    used, room = (_memory(float(b)) for b in (e.evaluation.peak_bytes, e.evaluation.capacity_bytes))
    meant = "(a gibibyte is a little over a billion bytes)"
    if e.fits:
        fits = f"The fullest chip needs {used} of memory {meant} and has {room}, so the plan fits"
        if e.fits_narrowly:
            return f"{fits}, but narrowly: a run this close to the limit may run out of memory."
        if e.may_not_fit and e.interval_bytes is not None:
            reach = _memory(e.interval_bytes[1])
            return f"{fits}, but may not: such runs were measured to need up to {reach}."
        return f"{fits}."
    return (
        f"The fullest chip would need {used} of memory {meant} and has {room}, so the plan does not fit and "
        "cannot run as it stands."
    )


def _roads(found: Explanation) -> str:
    """What wider roads would change, by asking the model about them."""
    e = found.estimate
    request, step = request_of(e), e.step_time_s
    roads = [("scale_up", "inside a cabinet or machine"), ("scale_out", "between machines")]
    if e.cluster.scale_out_bytes_s is None or e.cluster.n_chips == e.cluster.scale_up_size:
        roads = roads[:1]
    if e.cluster.n_chips == 1:
        return "A single chip has nobody to talk to, so a wider road changes nothing."
    said = []
    for road, where in roads:
        wider = _round(probe.faster(request, road, WIDER), e.strategy)
        saved = 1.0 - wider / step
        said.append(
            f"Were the road {where} twice as wide, a round would take {_time(wider)}: "
            + (f"{100 * saved:.1f} percent less." if saved >= 0.0005 else "no change that one could see.")
        )
    quick = _round(probe.faster(request, "flops", WIDER), e.strategy)
    said.append(
        f"Were the chips twice as quick at calculating and the roads as they are, it would take "
        f"{_time(quick)}."
    )
    said.append("This keeps the split of the work; with wider roads another split may be better still.")
    return " ".join(said)


def _round(request: Request, strategy: Strategy) -> float:
    """Seconds of a step of the plan under another request."""
    r = request
    return float(told(r.model, r.cluster, r.work, strategy, r.profile).step_time_s)


def _money(e: Estimate) -> str:
    run = e.run
    if run is None:
        return ""
    said = (
        f"The whole course of {_count(run.total_tokens)} pieces of text takes {_count(run.n_steps)} rounds, "
        f"{_time(run.days * units.SECONDS_PER_DAY)}, which is {_count(run.chip_hours)} hours of one chip."
    )
    if run.cost_usd is not None and run.price_per_chip_hour is not None:
        price = units.money_text(run.price_per_chip_hour)
        said += f" At {price} for an hour of a chip that is {units.money_text(run.cost_usd)}."
    return said


def _trust(found: Explanation) -> str:
    """How much is guessed."""
    step = found.estimate.step_time_s
    assumed = by_tag(found.estimate, found.numbers)["assumed"] / step
    guessed = (
        "Almost none of this time rests on guesses"
        if assumed < 0.005
        else f"About {100 * assumed:.0f} percent of this time moves with figures that nobody has measured"
    )
    band = ""
    if found.estimate.interval_s is not None:
        low, high = (_time(seconds) for seconds in found.estimate.interval_s)
        band = (
            f"Held against runs that it had not seen, such a calculation had {10 * bands.INSIDE:.0f} of "
            f"10 within what here is {low} to {high}. "
        )
        if found.estimate.interval_because:
            band += f"The span is that of jobs with {found.estimate.interval_because}. "
    return (
        f"{guessed}; the rest comes from the makers' data sheets and from published measurements of other "
        f"runs. {band}It is a calculation and not a measurement: a short trial on the real machine should "
        "come before a long bill."
    )
