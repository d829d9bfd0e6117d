"""The cost model against measured runs, and its numbers fitted to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.errors import Diagnostic, InputError, did_you_mean
from meshwright.files.text import check_outputs
from meshwright.files.typed import typed
from meshwright.report import as_json, catalogue

if TYPE_CHECKING:
    from meshwright.calibrate.rows import Run
    from meshwright.calibrate.validate import Validation


@typed
def validate(
    table: str | Path | None = None,
    *,
    framework: str | None = None,
    progress: Callable[[int, int], None] | None = None,
    warn: Callable[[Sequence[Diagnostic]], None] | None = None,
) -> Validation:
    """The cost model against measured runs: the shipped table, or `table` in the same form.

    The shipped runs are the ones that its numbers were fitted to, so their errors are the smaller ones;
    `left_out` of what is found says how well sources are predicted that a fit did not see.
    `warn` is called with what is odd in the table and does not stop the reading.
    """
    from meshwright.calibrate import validate as validation

    runs = _runs(table, warn)
    if framework is not None:
        known = sorted({r.framework.lower() for r in runs if r.framework})
        if framework.lower() not in known:
            said = f"no run of the table is of framework {framework!r}"
            listed = f"the table has {', '.join(known)}" if known else "leave it out; the table names none"
            hint = did_you_mean(framework, known) or listed
            raise InputError(Diagnostic("MW904", said, where="--framework", hint=hint))
    from meshwright.calibrate import bands, unseen

    found = validation.validate(runs, framework=framework, progress=progress, error_bands=bands.of_case)
    return replace(found, left_out=unseen.unseen()) if table is None else found


def _runs(table: str | Path | None, warn: Callable[[Sequence[Diagnostic]], None] | None) -> tuple[Run, ...]:
    """The runs of `table` or of the shipped one; its warnings go to `warn`."""
    from meshwright.calibrate import rows

    found = rows.read_table(None if table is None else Path(table))
    if warn is not None and found.warnings:
        warn(found.warnings)
    return found.runs


def validated(found: Validation) -> dict[str, Any]:
    """The object that `meshwright validate --json` prints (see docs/json.md)."""
    body: dict[str, Any] = as_json.plain(found.json())
    return as_json.envelope("validate") | body


def exceeds(found: Validation, limit: float) -> bool:
    """Whether the median error of step time is above `limit` (a fraction), or nothing was compared."""
    error = found.time.median_abs_error_percent
    return error is None or error > 100 * limit


@typed
def calibrate(
    table: str | Path | None = None,
    *,
    path: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    warn: Callable[[Sequence[Diagnostic]], None] | None = None,
) -> dict[str, Any]:
    """Fit profile numbers to the runs of `table`, write them to `path`, and say how well they fit.

    A table refines the shipped numbers; without one the shipped runs are fitted from the priors.
    """
    from meshwright.calibrate import fit
    from meshwright.files import profile_file

    check_outputs(path)
    found = fit.observations(_runs(table, warn))
    fitted = fit.fit(found, progress=progress, refine=table is not None)
    if path is not None:
        profile_file.write_profile(Path(path), fitted.numbers)
    return catalogue.calibration(fitted, len(found))
