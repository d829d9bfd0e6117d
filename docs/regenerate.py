"""Run the commands that the README shows and paste what they print between their marks.

A region starts with a comment that holds the command and ends with an end mark:

    <!-- run: meshwright chips h100 -->
    <!-- end -->

`python docs/regenerate.py` runs them in order in one temporary folder: a later one may read what an earlier
one wrote.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
REGION = re.compile(r"<!-- run: (?P<command>meshwright [^\n]+?) -->\n(?P<shown>.*?)<!-- end -->", re.DOTALL)


def commands(text: str) -> list[str]:
    """The commands of all regions, in order."""
    return [m["command"] for m in REGION.finditer(text)]


def region(command: str, output: str) -> str:
    """A region that shows `command` and its output."""
    lines = "\n".join(line.rstrip() for line in output.strip().splitlines())
    return f"<!-- run: {command} -->\n```console\n$ {command}\n{lines}\n```\n<!-- end -->"


def regenerated(text: str) -> str:
    """`text` with every region's command run; exits when one ends with a code that means a fault."""
    with tempfile.TemporaryDirectory() as folder:

        def run(match: re.Match[str]) -> str:
            command = match["command"]
            done = subprocess.run(
                [sys.executable, "-m", *shlex.split(command)], cwd=folder, capture_output=True, text=True,
                check=False, env={**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(README.parent / "src")},
            )  # fmt: skip
            if done.returncode not in (0, 1) or not done.stdout.strip():
                sys.exit(f"{command} ended with {done.returncode}:\n{done.stderr}")
            print(f"{command}: exit {done.returncode}", file=sys.stderr)
            return region(command, done.stdout)

        return REGION.sub(run, text)


if __name__ == "__main__":
    README.write_text(regenerated(README.read_text(encoding="utf-8")), encoding="utf-8")
