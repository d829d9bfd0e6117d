"""Read the longest paths of V-Half and V-Min off their simulated pipelines: `python docs/schedule_paths.py`.

Writes `src/meshwright/cost/schedule/v_paths.csv` anew, in a minute; it changes only with the schedules'
action lists or what `meshwright.simulate.longest` looks for.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

from meshwright.simulate.longest import paths

TABLE = Path(__file__).parent.parent / "src/meshwright/cost/schedule/v_paths.csv"
WORDS = ("v-half", "v-min")
RANKS = range(2, 17)
COLUMNS = (
    "schedule",
    "pp",
    "forward",
    "input",
    "weight",
    "forward_each",
    "input_each",
    "weight_each",
    "least",
)


def rows() -> list[tuple[str | int, ...]]:
    """The table's rows, in order."""
    found: list[tuple[str | int, ...]] = []
    for word in WORDS:
        for pp in RANKS:
            found += ((word, pp, *row) for row in paths(word, pp).tolist())
            print(f"{word} of {pp} ranks", file=sys.stderr)
    return found


if __name__ == "__main__":
    found = [COLUMNS, *rows()]
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(found)
