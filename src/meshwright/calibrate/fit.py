"""Measured runs in, profile numbers out: a robust, shrunk fit of what cannot be derived.

Each number is base * framework factor * chip share (* pair factor). Factors are fitted in logs against log
step time; every factor is pulled towards its prior (a chip's measured best case, 1 for a framework, the
generation it descends from where there is one) with the strength written in `SPREAD`, so a group with one run
borrows and a group without runs keeps the prior. A user's own runs start from the shipped numbers instead,
and move only their framework, chip and pair. Rows of one source, model and chip share weight, and a soft
L1 loss keeps single odd rows from steering.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.calibrate.cases import Case, case
from meshwright.calibrate.predict import profile_of
from meshwright.calibrate.rows import Run
from meshwright.cost.step import evaluate
from meshwright.errors import Diagnostic, InputError
from meshwright.profiles import load as profiles
from meshwright.profiles.records import Profile
from meshwright.search.derive import complete
from meshwright.strategy.records import Strategy

Array = npt.NDArray[np.float64]
Key = tuple[str, str, str]  # (table, entry, kind)

# How far (natural log, one standard deviation) a factor may move from its prior. A framework's and a chip's
# are about as tight as sources and pairs left out like best: looser ones describe the table better and a new
# source worse. Attention moves least: programs share the few kernels whose best case is the prior.
SPREAD = {
    ("chip", "matrix"): 0.07, ("chip", "memory"): 0.055, ("chip", "attention"): 0.07,
    ("chip", "scale_up"): 0.10, ("chip", "scale_out"): 0.14, ("chip", "low_precision"): 0.07,
    ("framework", "matrix"): 0.08, ("framework", "attention"): 0.06, ("framework", "traffic"): 0.20,
    ("framework", "tp_exposed"): 0.28, ("framework", "dp_exposed"): 0.6, ("framework", "gather_exposed"): 0.4,
    ("framework", "host"): 0.4,
    ("pair", "matrix"): 0.06,
    ("base", "traffic"): 0.3, ("base", "tp_exposed"): 0.25, ("base", "dp_exposed"): 0.25,
    ("base", "gather_exposed"): 0.25,
    ("base", "host"): 0.7, ("base", "ep_exposed"): 0.6, ("base", "ep_overlapped"): 0.6, ("base", "fp4"): 0.2,
}  # fmt: skip
_KIN = (
    0.7  # of a framework's spread where the generation inherits: a program changes less than programs differ
)
LIMITED = frozenset(
    {"tp_exposed", "dp_exposed", "gather_exposed", "ep_exposed", "ep_overlapped"}
)  # 1 at most
TABLE_OF = {"base": "fitted_base", "chip": "chip", "framework": "framework", "pair": "pair"}
_NOISE = 0.06  # log error of a run that the model describes as well as it can; replicates scatter by 2-15 %
_MOVES = 1e-3  # a run moves a number when its log step time changes by so much of the number's log
_STEP = 0.02  # perturbation of a number, natural log


@dataclass(frozen=True, slots=True)
class Observation:
    """One run to be explained: its case, the strategy it states and derives, and its measured step."""

    case: Case
    strategy: Strategy
    profile: Profile
    generation: str
    like: tuple[str, ...]
    seconds: float
    source: str
    group: str


Errors = tuple[tuple[str, str, float], ...]  # (id, source or other group, log(predicted / measured))


@dataclass(frozen=True, slots=True)
class Fitted:
    """The numbers (in the form of `numbers.json`) and how well they explain the runs."""

    numbers: dict[str, Any]
    residuals: Errors
    left_out: Errors  # each source predicted by a fit without it
    solution: Solution


def observations(runs: Iterable[Run], *, skip_suspect: bool = True) -> list[Observation]:
    """Runs with a step time (or tokens/s) that state enough; suspect rows do not steer a fit."""
    found = []
    for run in runs:
        if skip_suspect and run.suspect:
            continue
        one = case(run)
        if not isinstance(one, Case):
            continue
        seconds = measured_seconds(one)
        if seconds is None:
            continue
        profile = profile_of(one)
        try:
            done = complete(one.model, one.cluster, one.work, one.given, profile)
        except InputError:
            continue
        generation = f"{profile.framework.name}@{profile.framework.generation}"
        shape = f"{run.source_key}|{one.model.name}|{one.cluster.chip.name}|{one.work.precision}"
        found.append(
            Observation(
                one,
                done.strategy,
                profile,
                generation,
                profiles.lineage(generation),
                seconds,
                run.source_key,
                shape,
            )
        )
    return found


def measured_seconds(one: Case) -> float | None:
    """The measured step in seconds: as stated, or from tokens a second and chip."""
    run = one.run
    if run.step_time_s:
        return float(run.step_time_s)
    if run.tokens_per_s_per_chip:
        return float(one.work.tokens_per_step / (run.tokens_per_s_per_chip * one.cluster.n_chips))
    return None


def keys_of(one: Observation, pairs: set[str], *, refine: bool = False) -> dict[str, list[Key]]:
    """Which factors each number of the observation's profile is a product of.

    `refine`: those of its own generation and chip alone, on top of a fit of other runs.
    """
    chip = one.case.cluster.chip
    families = [chip.family] + ([chip.derives_from] if chip.derives_from else [])
    keys: dict[str, list[Key]] = defaultdict(list)
    for table, kind in SPREAD:
        if table == "base":
            keys[kind] += [] if refine else [("base", "", kind)]
        elif table == "framework":
            keys[kind] += [("framework", g, kind) for g in (one.like[:1] if refine else one.like)]
        elif table == "chip":
            keys[kind] += [("chip", f, kind) for f in (families[:1] if refine else families)]
        elif f"{one.generation}|{chip.family}" in pairs:
            keys[kind].append(("pair", f"{one.generation}|{chip.family}", kind))
    return {kind: names for kind, names in keys.items() if names}


def covered_pairs(found: Sequence[Observation]) -> set[str]:
    """Framework-chip pairs that two independent sources cover."""
    sources: dict[str, set[str]] = defaultdict(set)
    for one in found:
        sources[f"{one.generation}|{one.case.cluster.chip.family}"].add(one.source)
    return {pair for pair, names in sources.items() if len(names) >= 2}


def prior_profile(one: Observation) -> Profile:
    """The observation's profile before any fit: base numbers and the chip's measured best case."""
    bare = {**profiles.shipped_numbers(), "chip": {}, "framework": {}, "pair": {}, "fitted_base": {}}
    return replace(
        one.profile,
        numbers=profiles.compose(one.profile.framework, one.case.cluster.chip, bare),
    )


def log_step(
    one: Observation, factors: Mapping[Key, float], keys: dict[str, list[Key]], prior: Profile
) -> tuple[float, dict[str, float]]:
    """log seconds of the step under `factors`, and its derivative by the log of each number."""
    kinds = list(keys)
    numbers = dict(prior.numbers)
    for i, kind in enumerate(kinds):
        value = prior[kind] * math.exp(sum(factors.get(k, 0.0) for k in keys[kind]))
        moved = np.full(len(kinds) + 1, value)
        moved[i + 1] *= math.exp(_STEP)
        numbers[kind] = replace(numbers[kind], value=moved)
    profile = replace(prior, numbers=numbers)
    seconds = np.log(
        evaluate(one.case.model, one.case.cluster, one.case.work, one.strategy, profile).step_time_s
    )
    slopes = (seconds[1:] - seconds[0]) / _STEP
    return float(seconds[0]), dict(zip(kinds, slopes.tolist(), strict=True))


@dataclass(slots=True)
class Problem:
    """The least-squares problem over all factors: residuals and Jacobian at a point."""

    found: list[Observation]
    names: list[Key]
    keys: list[dict[str, list[Key]]]
    priors: list[Profile]
    weights: Array
    refine: bool

    def linearise(self, point: Array) -> tuple[Array, Array]:
        """Residual log(predicted / measured) and its Jacobian by the factors, unweighted."""
        factors = dict(zip(self.names, point.tolist(), strict=True))
        column = {name: j for j, name in enumerate(self.names)}
        residual = np.zeros(len(self.found))
        jacobian = np.zeros((len(self.found), len(self.names)))
        for i, one in enumerate(self.found):
            value, slopes = log_step(one, factors, self.keys[i], self.priors[i])
            residual[i] = value - math.log(one.seconds)
            for kind, names in self.keys[i].items():
                for name in names:
                    jacobian[i, column[name]] += slopes[kind]
        return residual, jacobian


@dataclass(frozen=True, slots=True)
class Solution:
    """A problem, the factors that solve it, and its residuals and Jacobian there."""

    task: Problem
    point: Array
    residual: Array
    jacobian: Array

    def held_out(self, group_of: Callable[[Observation], str]) -> Errors:
        """Each group of runs predicted, in full, by a fit without it.

        That fit starts from the linearisation at the solution: the groups are many, and few move it far.
        """
        task, found = self.task, self.task.found
        groups = [group_of(one) for one in found]
        points = self._without([(group,) for group in groups])
        errors = []
        for group in dict.fromkeys(groups):
            factors = dict(zip(task.names, points[(group,)].tolist(), strict=True))
            for j in (j for j, own in enumerate(groups) if own == group):
                one = found[j]
                value, _ = log_step(one, factors, task.keys[j], task.priors[j])
                errors.append((one.case.run.id, group, value - math.log(one.seconds)))
        return tuple(errors)

    def beside(self, labels: Sequence[tuple[str, ...]]) -> list[float]:
        """ln(predicted / measured) of each run by a fit without any run that shares one of its labels, along
        the linearisation: a full prediction differs by half a percent of a step in the median."""
        points = self._without(labels)
        moved = [float(row @ (points[own] - self.point)) for row, own in zip(self.jacobian, labels)]
        return [before + by for before, by in zip(self.residual.tolist(), moved)]

    def _without(self, labels: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], Array]:
        """The factors of a fit, for each labels of a run, to all runs that share none of them."""
        spreads = np.array([spread_of(n) for n in self.task.names])
        columns = [np.array(column) for column in zip(*labels)]
        points = {}
        for own in dict.fromkeys(labels):
            rest = np.all([column != name for column, name in zip(columns, own)], axis=0)
            points[own] = solve(
                self.residual[rest], self.jacobian[rest], self.point, spreads, self.task.weights[rest]
            )
        return points


def problem(found: list[Observation], *, refine: bool = False, pairs: set[str] | None = None) -> Problem:
    """Set up the factors that the observations touch, and the weights of crowded groups.

    `pairs` of framework and chip have a factor of their own; those that two sources cover where not given.
    """
    pairs = covered_pairs(found) if pairs is None else pairs
    keys = [keys_of(one, pairs, refine=refine) for one in found]
    names = sorted({name for k in keys for many in k.values() for name in many})
    crowd = Counter(one.group for one in found)
    weights = np.array([crowd[one.group] ** -0.25 for one in found])
    priors = [one.profile if refine else prior_profile(one) for one in found]
    return Problem(found, names, keys, priors, weights, refine)


def spread_of(name: Key) -> float:
    """Prior standard deviation of a factor."""
    inherits = name[0] == "framework" and len(profiles.lineage(name[1])) > 1
    return SPREAD[name[0], name[2]] * (_KIN if inherits else 1.0)


def solve(
    residual: Array, jacobian: Array, point: Array, spreads: Array, weights: Array, rounds: int = 12
) -> Array:
    """Factors that minimise the soft L1 loss of the linearised residuals plus the shrinkage, from `point`.

    Iteratively reweighted least squares: a row's weight falls as 1 / sqrt(1 + z^2), z its
    error in noise units.
    """
    target = point.copy()
    for _ in range(rounds):
        errors = residual + jacobian @ (target - point)
        robust: Array = (weights / _NOISE) ** 2 / np.sqrt(1.0 + (errors / _NOISE) ** 2)
        weighed = jacobian.T * robust
        # Normal equations: the shrinkage keeps them well conditioned, and they are quick.
        curvature = weighed @ jacobian + np.diag(1.0 / spreads**2)
        target = np.asarray(np.linalg.solve(curvature, weighed @ (jacobian @ point - residual)), np.float64)
    return target


def objective(residual: Array, point: Array, spreads: Array, weights: Array) -> float:
    """What `solve` makes small: the soft L1 loss of the residuals in noise units, and the shrinkage."""
    errors = residual / _NOISE
    return float(np.sum(weights**2 * 2.0 * (np.sqrt(1.0 + errors**2) - 1.0)) + np.sum((point / spreads) ** 2))


def fit(
    found: list[Observation],
    *,
    rounds: int = 20,
    progress: Callable[[str], None] | None = None,
    refine: bool = False,
) -> Fitted:
    """Fit all factors to the observations by Gauss-Newton steps; then each source by a fit without it.

    `refine` starts from the shipped numbers (a user's own runs) instead of from the priors.
    Raises InputError when nothing was left to fit.
    """
    if not found:
        raise InputError(
            Diagnostic(
                "MW401",
                "no run of the table states a step time and enough of its layout",
                hint="see `meshwright validate TABLE` for what each row lacks",
            )
        )
    task = problem(found, refine=refine)
    spreads = np.array([spread_of(n) for n in task.names])
    point = np.zeros(len(task.names))
    residual, jacobian = task.linearise(point)
    reached = objective(residual, point, spreads, task.weights)
    for i in range(rounds):
        step = np.clip(solve(residual, jacobian, point, spreads, task.weights) - point, -0.2, 0.2)
        for share in (1.0, 0.5, 0.2):  # a number that meets its limit bends the path: then less of the step
            trial = point + share * step
            found_residual, found_jacobian = task.linearise(trial)
            value = objective(found_residual, trial, spreads, task.weights)
            if value < reached:
                break
        else:
            break
        gained = reached - value
        point, residual, jacobian, reached = trial, found_residual, found_jacobian, value
        if progress:
            progress(f"round {i + 1}: median error {100 * np.median(np.abs(np.expm1(residual))):.1f} %")
        if gained < 4e-4 * value:
            break
    solution = Solution(task, point, residual, jacobian)
    return Fitted(
        written(task, point, jacobian),
        tuple((one.case.run.id, one.source, float(r)) for one, r in zip(found, residual, strict=True)),
        solution.held_out(lambda one: one.source),
        solution,
    )


def at_shipped(found: list[Observation]) -> Solution:
    """The fit that the shipped numbers are, linearised there: what `fit` ends with, without its way."""
    numbers = profiles.shipped_numbers()
    task = problem(found, pairs=set(numbers["pair"]))

    def factor(name: Key) -> float:
        table = numbers[TABLE_OF[name[0]]]
        group = table if name[0] == "base" else table.get(name[1], {})
        return math.log(group[name[2]]["value"]) if name[2] in group else 0.0

    point = np.array([factor(name) for name in task.names])
    return Solution(task, point, *task.linearise(point))


def written(task: Problem, point: Array, jacobian: Array) -> dict[str, Any]:
    """The fitted factors in the form of `numbers.json`, each with how many runs and sources moved it."""
    shipped = profiles.shipped_numbers()
    out: dict[str, Any] = deepcopy(shipped)
    if not task.refine:
        out |= {"fitted_base": {}, "chip": {}, "framework": {}, "pair": {}}
    moves = np.abs(jacobian) > _MOVES
    for column, (name, value) in enumerate(zip(task.names, point.tolist(), strict=True)):
        rows = np.flatnonzero(moves[:, column]).tolist()
        if not rows and name[2] in LIMITED and abs(value) > _MOVES:  # runs have moved it up to its limit
            rows = [i for i, keys in enumerate(task.keys) if name in keys.get(name[2], ())]
        if not rows:
            continue  # no run says anything of it
        table = out[TABLE_OF[name[0]]]
        group = table if name[0] == "base" else table.setdefault(name[1], {})
        before = group.get(name[2], {"value": 1.0}) if task.refine else {"value": 1.0}
        group[name[2]] = {
            "value": round(before["value"] * math.exp(value), 4),
            "provenance": "fitted",
            "n_runs": len(rows) + before.get("n_runs", 0),
            "n_sources": len({task.found[i].source for i in rows}) + before.get("n_sources", 0),
            "source": "own runs on top of the shipped fit" if task.refine else "fitted to the training runs",
        }
    return out
