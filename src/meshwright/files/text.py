"""Text files in and out: what cannot be a plan is refused unparsed; writing never leaves half a file."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
from pathlib import Path

from meshwright import units
from meshwright.errors import Diagnostic, InputError

LIMIT_BYTES = 4 * 2**20  # the largest config.json of a published model is below 1 MiB


def fault(path: Path, code: str, message: str, *, line: int | None = None, hint: str = "") -> Diagnostic:
    """A diagnostic that stands at `path` (and `line`, counted from 1)."""
    where = str(path) if line is None else f"{path}:{line}"
    return Diagnostic(code, message, where=where, hint=hint)


def read_text(path: Path, limit: int = LIMIT_BYTES) -> str:
    """The file as text; InputError where it is missing, a folder, empty, binary or above `limit` bytes."""
    try:
        if path.is_dir():
            raise InputError(
                fault(path, "MW802", f"{path} is a folder, not a file", hint="name the file in it")
            )
        if path.exists() and not path.is_file():
            said = f"{path} is a device or a pipe, not a file"
            raise InputError(fault(path, "MW802", said, hint="name a file; save what is piped to one first"))
        size = path.stat().st_size
        if size > limit:
            raise InputError(
                fault(
                    path, "MW803",
                    f"{path} has {units.bytes_text(size)}; a plan, cluster or model file has less than "
                    f"{units.bytes_text(limit)}",
                    hint="name the YAML or config.json, not weights or data",
                )
            )  # fmt: skip
        raw = path.read_bytes()
    except FileNotFoundError:
        raise InputError(fault(path, "MW801", f"no file {path}", hint=_neighbours(path))) from None
    except OSError as error:
        said = f"cannot read {path}: {error.strerror}"
        raise InputError(fault(path, "MW802", said, hint=f"try: ls -lL {path}")) from None
    except ValueError:  # a zero byte in the name
        said = f"{str(path)!r} is no file name: it holds a zero byte"
        raise InputError(Diagnostic("MW802", said, where=repr(str(path)), hint="remove it")) from None
    if not raw.strip():
        raise InputError(fault(path, "MW805", f"{path} is empty", hint="was it written to the end?"))
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError(
            fault(
                path,
                "MW804",
                f"{path} is not UTF-8 text: byte {error.start} is 0x{raw[error.start]:02x}",
                line=line,
                hint="save it as text in UTF-8",
            )
        ) from None
    if "\0" in text:
        said = f"{path} is binary: it holds zero bytes"
        raise InputError(fault(path, "MW804", said, hint="save it as text in UTF-8"))
    return text


def _neighbours(path: Path) -> str:
    """A hint with files of a close name in the same folder."""
    from difflib import get_close_matches

    try:
        names = [p.name for p in path.parent.iterdir()]
    except OSError:
        missing = not path.parent.exists()
        return f"the folder {path.parent} {'does not exist' if missing else 'cannot be listed'}"
    close = get_close_matches(path.name, names, n=2)
    if close:
        return f"did you mean {' or '.join(str(path.parent / c) for c in close)}?"
    return f"name a file that exists; {path.parent.resolve()} holds no file of a like name"


def write_text(path: Path, text: str) -> None:
    """Write `text` to `path` whole or not at all: to a temporary neighbour first, then renamed over it.

    A link stays one and its target is written; a device or a pipe is written to, never replaced.
    """
    temporary: str | None = None
    try:
        path = Path(os.path.realpath(path))
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        # mkstemp makes files private; a new plan is as readable as any file the user creates, and one that
        # is there stays as readable as it was.
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else 0o666 & ~_umask()
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            out.write(text)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(temporary, mode)
        os.replace(temporary, path)
        temporary = None
    except OSError as error:
        raise InputError(
            fault(
                path,
                "MW808",
                f"cannot write {path}: {error.strerror}",
                hint="name a file in a folder that exists and that you may write to",
            )
        ) from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def check_outputs(*paths: str | Path | None, read: str | None = None) -> None:
    """Whether files can be written, before the work that fills them: folders that are missing or shut, one
    file for two outputs, and the file that is `read`. InputError with every fault."""
    faults: list[Diagnostic] = []
    seen: set[Path] = set()
    for given in paths:
        if given is None:
            continue
        path = Path(os.path.realpath(given))
        hint = "name a file in a folder that exists and that you may write to"
        said = ""
        if cannot := _cannot_be(path):
            said = f"cannot write {given}: {cannot}"
        elif read is not None and os.path.isfile(read) and path == Path(os.path.realpath(read)):
            said, hint = f"{given} is read, and what is written would replace it", "name another file"
        elif path in seen and not (path.exists() and not path.is_file()):
            said, hint = (
                f"{given} is named for two outputs, and one would replace the other",
                "name two files",
            )
        elif path.is_dir():
            said = f"cannot write {given}: it is a folder"
        elif not path.parent.is_dir():
            said = f"cannot write {given}: the folder {path.parent} does not exist"
        elif not os.access(path if path.exists() else path.parent, os.W_OK):
            said = f"cannot write {given}: {os.strerror(errno.EACCES)}"
        if said:
            faults.append(fault(path, "MW808", said, hint=hint))
        seen.add(path)
    if faults:
        raise InputError(*faults)


def _cannot_be(path: Path) -> str:
    """Why no file can have this name; empty where one can."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        return str(error.strerror)
    return ""


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
