"""The `meshwright` command: verbs loaded when they are called, exit codes, and what happens on a fault."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

import click

from meshwright import __version__

# Verb -> (module, one line of help). The line stands here so that `--help` loads no verb.
VERBS: dict[str, tuple[str, str]] = {
    "plan": ("plan", "Search for the fastest strategy that fits."),
    "guide": ("guide", "Which mix of parallelism to take, in words: the golden rule."),
    "estimate": ("estimate", "Step time, throughput and memory of one strategy."),
    "explain": ("explain", "Where an estimate comes from: the tree of its terms, with formulas."),
    "compare": ("compare", "Plans, models or clusters side by side, term by term."),
    "sweep": ("sweep", "The best plan along one field or two, and where it changes."),
    "report": ("report", "Everything about one plan in one offline HTML page."),
    "check": ("check", "What is wrong or unwise in a strategy. Exit 1 on an error."),
    "improve": ("improve", "What one step away from a strategy helps most, and how far the best plan is."),
    "max": ("max", "The largest sequence, microbatch, depth or batch that fits, and with which strategy."),
    "ranks": ("ranks", "Which rank sits where, and which groups cross which link."),
    "validate": ("validate", "The cost model against measured runs."),
    "calibrate": ("calibrate", "Fit an efficiency profile to your own measured runs."),
    "models": ("models", "Model presets and their sizes."),
    "chips": ("chips", "Chips, their figures, sources and aliases."),
    "clusters": ("clusters", "Named machines, and how to spell a cluster."),
    "completion": ("completion", "Shell completion script for bash, zsh or fish."),
    "version": ("version", "The version of Meshwright and what it runs on."),
}


COMPLETE = "_MESHWRIGHT_COMPLETE"


class Verbs(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        import importlib

        module = importlib.import_module(f"meshwright.cli.{VERBS[cmd_name][0]}")
        command: click.Command = module.command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in VERBS and not args[0].startswith("-"):
            from meshwright.errors import did_you_mean

            hint = did_you_mean(args[0], list(VERBS)) or "meshwright --help lists the commands"
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 fine, 1 the answer is no, 2 bad usage or file, 3 a bug of ours, 130 interrupted.",
)
@click.version_option(__version__, prog_name="meshwright", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an unexpected error.")
def cli(debug: bool) -> None:
    """Plan, explain, check and validate hybrid-parallel training of large language models.

    \b
    meshwright plan llama-3.1-405b --on 16384xh100 --seq-len 8192 --tokens-per-step 16M
    meshwright estimate llama-3.1-8b --on 8xh100 --seq-len 8k --global-batch 128
    """


def main() -> None:
    """Entry point of the console script."""
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a bar that the encoding lacks is no reason to fail
    signal.signal(signal.SIGTERM, _terminated)
    sys.exit(run(sys.argv[1:]))


def _terminated(number: int, frame: object) -> None:
    """Ends as an exception does, so that half-written files are cleared away."""
    sys.exit(128 + number)


def run(argv: Sequence[str]) -> int:
    """Run the command line on `argv` and return its exit code."""
    args = [a for a in argv if a != "--debug"]
    debug = len(args) != len(argv)
    as_json = "--json" in args
    try:
        if COMPLETE in os.environ:
            cli.main(args=args, prog_name="meshwright", complete_var=COMPLETE)
        # Not `cli.main`: it would turn a closed pipe into exit code 1, which means "no" here.
        with cli.make_context("meshwright", args) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except click.exceptions.Exit as exit_:
        return exit_.exit_code
    except click.UsageError as error:
        return _usage(error, as_json)
    except click.ClickException as error:
        _say(f"error: {error.format_message()}")
        return 2
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return 130
    except BrokenPipeError:
        # Whoever read us has enough; closing stdout quietly keeps the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
            return _fault(error, as_json, debug)
        _say(f"error[MW907]: cannot write the output: {error.strerror}")
        _say("  hint: make room, or send the output elsewhere")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 2
    except Exception as error:
        return _fault(error, as_json, debug)


def _usage(error: click.UsageError, as_json: bool) -> int:
    from meshwright.errors import Diagnostic

    command = error.ctx.command_path if error.ctx is not None else "meshwright"
    hint = f"{command} --help lists what it takes"
    if isinstance(error, click.MissingParameter) and error.ctx is not None and error.ctx.command.epilog:
        hint = f"{error.ctx.command.epilog}; {hint}"
    found = Diagnostic("MW900", error.format_message(), hint=hint)
    return _report([found], as_json)


def _fault(error: Exception, as_json: bool, debug: bool) -> int:
    """A fault of the request (2), or one of ours (3)."""
    from meshwright.errors import Diagnostic, InputError, MeshwrightError

    if isinstance(error, MeshwrightError):
        found = error.diagnostics if isinstance(error, InputError) else (Diagnostic("MW900", str(error)),)
        return _report(found, as_json)
    if debug:
        import traceback

        traceback.print_exception(error)
    message = " ".join(f"{type(error).__name__}: {error}".split())
    way_out = "report it with the command and what the same command prints with --debug"
    _say(f"bug[MW999]: {message}; this is our fault, please {way_out}")
    if as_json:
        _print_json([Diagnostic("MW999", message, hint=way_out)])
    return 3


def _report(found: Sequence[Any], as_json: bool) -> int:
    if as_json:
        _print_json(found)
    else:
        from meshwright.report.terminal.findings import findings_text

        _say(findings_text(found))
    return 2


def _print_json(found: Sequence[Any]) -> None:
    import json

    from meshwright.report.error_json import error_object

    try:
        print(json.dumps(error_object(found), indent=2), flush=True)
    except OSError:  # a closed pipe or a full disk: the exit code still says it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(text: str) -> None:
    """Narration goes to stderr; a closed stderr is no reason to fail."""
    from meshwright.cli import output

    output.say(text)
