"""What the documentation says can be typed, and what it shows came from those commands."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from meshwright.cli.main import VERBS, cli

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def _regenerate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("regenerate", ROOT / "docs" / "regenerate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


regenerate = _regenerate()
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = regenerate.commands(README)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_of_the_readme_parse(command: str) -> None:
    verb, *rest = shlex.split(command)[1:]
    found = cli.get_command(cli.make_context("meshwright", [verb, "x"], resilient_parsing=True), verb)
    assert found is not None
    found.make_context(verb, list(rest))  # raises a usage error where a flag is unknown


def test_the_readme_shows_what_commands_printed() -> None:
    assert len(COMMANDS) >= 4
    for match in regenerate.REGION.finditer(README):
        shown = match["shown"]
        assert shown.startswith(f"```console\n$ {match['command']}\n"), match["command"]
        assert len(shown.splitlines()) > 3


def test_a_region_is_pasted_once() -> None:
    text = "a\n<!-- run: meshwright version -->\nold\n<!-- end -->\nb\n"
    new = regenerate.regenerated(text)
    assert "old" not in new
    assert "meshwright 0." in new
    assert regenerate.regenerated(new) == new


def test_every_verb_has_its_place_in_the_commands_and_json_pages() -> None:
    commands = (ROOT / "docs" / "commands.md").read_text()
    schemas = (ROOT / "docs" / "json.md").read_text()
    for verb in VERBS:
        assert f"`{verb}" in commands
        assert f"meshwright.{verb}/1" in schemas


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "text", re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "commands.md").read_text(), re.DOTALL)
)
def test_yaml_of_the_commands_page_is_read(text: str, tmp_path: Path) -> None:
    from meshwright.files import cluster_file, model_file, plan_file
    from meshwright.files.yaml import load

    path = tmp_path / "example.yaml"
    path.write_text(text)
    document = load(path)
    if plan_file.is_plan(document):
        assert plan_file.plan_of(document).strategy
    elif "on" in document.data:
        assert cluster_file.cluster_of(document).overrides
    else:
        assert model_file.model_of(document).n_layers > 1


def test_documented_keys_are_those_of_an_estimate() -> None:
    import meshwright

    found = meshwright.estimate(
        "llama-3.1-8b", "8xh100", seq_len=8192, global_batch_size=8, total_tokens="1B", recompute="full"
    ).json(terms=True)
    page = (ROOT / "docs" / "json.md").read_text()
    words = set(re.findall(r"[a-z_0-9]+", page))
    for key in (
        *found,
        *found["plan"],
        *found["plan"]["strategy"],
        *found["plan"]["memory"],
        *found["cluster"],
    ):
        assert key in words, key


def test_the_version_is_written_once() -> None:
    import tomllib

    import meshwright

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == meshwright.__version__
