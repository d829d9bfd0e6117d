"""`meshwright completion`: the script a shell sources."""

from __future__ import annotations

import click

from meshwright.cli import output
from meshwright.cli.options import json_flag


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_flag
def command(shell: str, as_json: bool) -> None:
    """Print the completion script of a shell.

    \b
    bash: meshwright completion bash > ~/.local/share/bash-completion/completions/meshwright
    zsh:  meshwright completion zsh > ~/.zfunc/_meshwright
    fish: meshwright completion fish > ~/.config/fish/completions/meshwright.fish
    """
    from click.shell_completion import get_completion_class

    from meshwright import __version__
    from meshwright.cli.main import COMPLETE, cli

    found = get_completion_class(shell)
    assert found is not None  # click knows the three shells that the argument allows
    # The template alone: click's own `source` starts bash to look at its version.
    made = found(cli, {}, "meshwright", COMPLETE)
    script = made.source_template % made.source_vars()
    if as_json:
        output.print_json(
            {"schema": "meshwright.completion/1", "version": __version__, "shell": shell, "script": script}
        )
    else:
        click.echo(script)
