"""YAML and JSON documents with the line of every value, so that a fault can point at it."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from meshwright.errors import Diagnostic, InputError
from meshwright.files.text import fault, read_text

MAX_NODES = (
    100_000  # values, aliases expanded: far above any plan, far below what a hostile file can unfold to
)
MAX_DEPTH = 50
MAX_BYTES = 2**17  # YAML of this size reads in seconds; ten thousand layers one by one are half of it

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its top mapping, and for each path into it the line it stands on."""

    path: Path
    data: dict[str, Any]
    lines: dict[Key, int] = field(default_factory=dict)

    def line(self, key: Key) -> int | None:
        """The line of `key`, or of the nearest mapping around it."""
        while key:
            if key in self.lines:
                return self.lines[key]
            key = key[:-1]
        return self.lines.get((), None)


def load(path: Path) -> Document:
    """Read `path` as one YAML (or JSON) mapping; InputError with the line where it is torn."""
    text = read_text(path, MAX_BYTES)
    loader = YAML(typ="safe", pure=True)
    try:
        node = loader.compose(io.StringIO(text))
        lines: dict[Key, int] = {}
        _walk(path, node, (), lines, [0])
        data = None if node is None else loader.constructor.construct_document(node)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = (error.problem or error.context or "torn").split("\n")[0]
        raise InputError(
            fault(
                path,
                "MW806",
                f"{path} is not valid YAML: {what}",
                line=None if mark is None else mark.line + 1,
                hint="mend that line; a value with : # [ { or ! in it needs quotes",
            )
        ) from None
    except (YAMLError, ValueError, OverflowError) as error:
        raise InputError(
            fault(
                path,
                "MW806",
                f"{path} is not valid YAML: {str(error).splitlines()[0]}",
                hint="quote the value that cannot be read",
            )
        ) from None
    except RecursionError:
        raise InputError(_too_deep(path)) from None
    if not isinstance(data, dict):
        raise InputError(
            fault(
                path,
                "MW807",
                f"{path} holds a {type(data).__name__}, not keys with values",
                line=1,
                hint="a plan, model or cluster file starts with: version: 1",
            )
        )
    return Document(path, data, lines)


def _walk(path: Path, node: Node | None, key: Key, lines: dict[Key, int], seen: list[int]) -> None:
    """Note the line of every value below `node`, and stop at files that unfold without end."""
    if node is None:
        return
    seen[0] += 1
    if seen[0] > MAX_NODES:
        said = f"{path} holds more than {MAX_NODES:,} values, aliases unfolded"
        raise InputError(fault(path, "MW803", said, hint="name a plan, model or cluster file"))
    if len(key) > MAX_DEPTH:
        raise InputError(_too_deep(path))
    lines.setdefault(key, node.start_mark.line + 1)
    if isinstance(node, MappingNode):
        for name, value in node.value:
            child = (*key, str(name.value) if isinstance(name.value, str) else "?")
            lines[child] = name.start_mark.line + 1
            _walk(path, value, child, lines, seen)
    elif isinstance(node, SequenceNode):
        for i, value in enumerate(node.value):
            _walk(path, value, (*key, i), lines, seen)


def _too_deep(path: Path) -> Diagnostic:
    said = f"{path} is nested deeper than {MAX_DEPTH} levels"
    return fault(path, "MW803", said, hint="name a plan, model or cluster file")


def dump(data: dict[str, Any]) -> str:
    """`data` as YAML in its own order; lists of numbers stay on one line."""
    writer = YAML(typ="rt")
    writer.width = 100
    writer.default_flow_style = False
    out = io.StringIO()
    writer.dump(_flow(data), out)
    return out.getvalue()


def _flow(value: Any) -> Any:
    from ruamel.yaml.comments import CommentedSeq

    if isinstance(value, dict):
        return {k: _flow(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        items = CommentedSeq(_flow(v) for v in value)
        if all(isinstance(v, int | float | str | bool) for v in value):
            items.fa.set_flow_style()
        return items
    return value
