"""A request read whole: model, cluster, work and strategy from names, files and flags, all faults at once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from meshwright.errors import Diagnostic, Faults, InputError, did_you_mean
from meshwright.files import given as givens
from meshwright.files.given import OVERRIDES, ClusterGiven, PlanGiven
from meshwright.files.typed import typed
from meshwright.files.work_given import WorkGiven, WorkRead, work_of
from meshwright.hardware.records import Chip, Cluster
from meshwright.model.records import Model
from meshwright.profiles.records import Profile
from meshwright.report.records import Because
from meshwright.search.given import read as read_given
from meshwright.search.given import read_choices
from meshwright.work import Work


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked, read and complete except for the strategy: `strategy` holds only what was given."""

    model: Model
    model_as_given: str | dict[str, Any]
    cluster: ClusterGiven
    work: Work
    profile: Profile
    strategy: dict[str, Any]
    derived: dict[str, Because] = field(default_factory=dict)
    batches: tuple[int, ...] = ()
    price_per_chip_hour: float | None = None  # of a plan file
    of_file: tuple[str, ...] = ()  # the fields of `strategy` that a plan file gave

    def price(self, given: float | None) -> float | None:
        """US dollars for an hour of a chip: what is given, else what a plan file says."""
        return self.price_per_chip_hour if given is None else given

    def works(self) -> tuple[Work, ...]:
        """One work for each global batch to try."""
        return tuple(replace(self.work, global_batch_size=b) for b in self.batches) or (self.work,)


@typed
def read(
    model: str | Path | Model,
    cluster: str | Path | Cluster | None,
    *,
    work: Work | None = None,
    seq_len: float | str | None = None,
    global_batch_size: float | str | None = None,
    tokens_per_step: float | str | None = None,
    total_tokens: float | str | None = None,
    precision: str | None = None,
    options: Iterable[str] = (),
    framework: str | None = None,
    overrides: Mapping[str, float] | None = None,
    profile: str | Path | None = None,
    strategy: Mapping[str, Any] | None = None,
    several: bool = False,
    usual_tokens: int | None = None,
) -> Request:
    """The request that names, files and flags spell; flags win over a plan file.

    Raises one InputError with every fault of every part. `several` allows a range of global
    batches and several values of a strategy field, as a search takes them. `usual_tokens` a step are taken
    where nothing says how large the batch is.
    """
    faults = Faults()
    if isinstance(options, str):
        options = [word for word in options.replace("+", ",").split(",") if word]
    figures = _figures(overrides or {}, faults)
    given = {k: v for k, v in (strategy or {}).items() if v is not None}
    faults.part(lambda: (read_choices if several else read_given)(given))  # every unreadable word, first

    source = faults.part(lambda: _model(model, figures, cluster if isinstance(cluster, str) else None))
    plan = source if isinstance(source, PlanGiven) else None
    machine = _machine(cluster, figures, plan, faults) if cluster is not None or source is not None else None
    stated = WorkGiven(
        seq_len, global_batch_size, tokens_per_step, total_tokens, precision, tuple(options), several,
        usual_tokens, frozenset(given),
    )  # fmt: skip
    # A file that could not be read may state the work, so nothing of it is called missing.
    unread = source is None and not isinstance(model, Model) and _is_path(str(model))
    asked = faults.part(lambda: work_of(stated, work, plan.work if plan is not None else {}, unread=unread))
    of_plan = plan.work.get("framework") if plan is not None else None
    named = of_plan if framework is None else framework
    numbers = faults.part(lambda: _numbers(profile))
    efficiency = faults.part(lambda: _profile(named, machine, numbers)) if machine is not None else None
    faults.raise_any()
    assert source is not None
    assert machine is not None
    assert asked is not None
    assert efficiency is not None
    of_file: tuple[str, ...] = ()
    if isinstance(source, PlanGiven):
        of_file = tuple(name for name in source.strategy if name not in given)
        shape, spelled, given = source.model, source.model_as_given, {**source.strategy, **given}
    else:
        shape, spelled = source
    taken = {f"cluster.{name}": Because(value, because) for name, value, because in machine.cluster.derived}
    derived = {**asked.derived, **taken}
    if precision is None and work is None and (plan is None or "precision" not in plan.work):
        asked = _in_16_bits(asked, machine.cluster.chip, derived)
    paid = None if plan is None else plan.price_per_chip_hour
    return Request(
        shape, spelled, machine, asked.work, efficiency, given, derived, asked.batches, paid, of_file
    )


def _in_16_bits(asked: WorkRead, chip: Chip, derived: dict[str, Because]) -> WorkRead:
    """The work in fp16 where the chip has no bf16, which is what is meant where nothing is said."""
    if asked.work.precision in chip.precisions:
        return asked
    derived["precision"] = Because("fp16", f"{chip.name} has no {asked.work.precision} units")
    return replace(asked, work=replace(asked.work, precision="fp16"))


def _figures(overrides: Mapping[str, float], faults: Faults) -> dict[str, float]:
    """The figures of the cluster that there are."""
    for name in [n for n in overrides if n not in OVERRIDES]:
        hint = did_you_mean(name, OVERRIDES) or f"known: {', '.join(OVERRIDES)}"
        said = f"no cluster figure {name!r}"
        faults.found.append(Diagnostic("MW902", said, where="overrides", hint=hint))
    return {name: value for name, value in overrides.items() if name in OVERRIDES}


def _machine(
    cluster: str | Path | Cluster | None, figures: dict[str, float], plan: PlanGiven | None, faults: Faults
) -> ClusterGiven | None:
    """The cluster that is named, or that of a plan file, which was read with a spelling in its place."""
    if plan is not None and (cluster is None or (isinstance(cluster, str) and not _is_path(cluster))):
        return plan.cluster
    return faults.part(lambda: read_cluster(cluster, figures))


WORK = (
    "model", "cluster", "work", "seq_len", "global_batch_size", "tokens_per_step", "total_tokens",
    "precision", "options", "framework", "overrides", "profile",
)  # fmt: skip


def read_arguments(*, several: bool = False, **request: Any) -> Request:
    """The request that arguments of `estimate` spell: what is no part of the work is a strategy field."""
    strategy = {k: v for k, v in request.items() if k not in WORK}
    stated = {k: v for k, v in request.items() if k in WORK}
    return read(**stated, strategy=strategy, several=several)


def _is_path(text: str) -> bool:
    """Whether a name means a file: it ends like one or says so with a separator that leads somewhere."""
    if text.lower().endswith((".yaml", ".yml", ".json")) or text in (".", ".."):
        return True
    return "/" in text and os.path.lexists(text)  # a link that leads nowhere is one too


def _model(
    model: str | Path | Model, figures: dict[str, float], on: str | None
) -> tuple[Model, str | dict[str, Any]] | PlanGiven:
    """A model with how it was spelled, or a whole plan."""
    from meshwright.model import config_json, presets

    if isinstance(model, str) and not _is_path(model):
        try:
            found = presets.load(model)
        except InputError as error:
            if not os.path.lexists(model):
                raise
            hint = f"a file of that name is here: write ./{model}"
            raise InputError(*(replace(d, hint=hint) for d in error.diagnostics)) from None
        return found, found.name
    from meshwright.files import model_file, plan_file
    from meshwright.files.text import read_text
    from meshwright.files.yaml import load

    if isinstance(model, Model):
        return model, model_file.model_mapping(model)
    path = Path(model)
    # os.path: a name longer than any path is no folder, where pathlib raises.
    if os.path.isdir(path):
        if not (path / "config.json").is_file():
            said = f"{path} is a folder without a config.json, and a model was expected"
            hint = "name a model YAML, or a folder that a Hugging Face model lies in"
            raise InputError(Diagnostic("MW802", said, where=str(path), hint=hint))
        path = path / "config.json"
    if path.suffix.lower() == ".json":
        read_text(path)  # an empty, binary or huge file is named for what it is
        found = config_json.read(path)
        return found, model_file.model_mapping(found)
    document = load(path)
    if plan_file.is_plan(document):
        inside = on if on is not None and not _is_path(on) else None
        return plan_file.plan_of(document, figures, cluster=inside)
    if "on" in document.data and "d_model" not in document.data:
        raise InputError(
            Diagnostic(
                "MW807", f"{path} is a cluster file, and a model was expected", where=str(path),
                hint=f"name a model and pass the file as --on {path}",
            )
        )  # fmt: skip
    found = model_file.model_of(document)
    return found, model_file.model_mapping(found)


def read_cluster(cluster: str | Path | Cluster | None, figures: dict[str, float]) -> ClusterGiven:
    """The cluster of a spelling, a cluster file, a plan file or a record; `figures` replace its own."""
    if cluster is None:
        raise InputError(
            Diagnostic(
                "MW901", "no cluster was named", where="--on",
                hint="add --on COUNTxCHIP, for example --on 64xh100; meshwright chips lists the chips",
            )
        )  # fmt: skip
    if isinstance(cluster, Cluster):
        from meshwright.files import cluster_file

        return cluster_file.of_record(cluster, figures)
    if isinstance(cluster, str) and not _is_path(cluster):
        return givens.named(cluster, figures)
    from meshwright.files import cluster_file, plan_file
    from meshwright.files.yaml import load

    document = load(Path(cluster))
    if plan_file.is_plan(document):
        return plan_file.plan_of(document, figures).cluster
    return cluster_file.cluster_of(document, (), figures)


def _numbers(path: str | Path | None) -> dict[str, Any] | None:
    """The numbers of a calibration, where one is named."""
    if path is None:
        return None
    from meshwright.files import profile_file

    return profile_file.read_profile(Path(path))


def _profile(framework: str | None, machine: ClusterGiven, numbers: dict[str, Any] | None) -> Profile:
    from meshwright.profiles import load as profiles

    return profiles.load(framework, machine.cluster.chip, "", numbers)
