"""`meshwright version`."""

from __future__ import annotations

import click

from meshwright.cli import output
from meshwright.cli.options import json_flag


@click.command("version")
@json_flag
def command(as_json: bool) -> None:
    """The version of Meshwright and what it runs on."""
    import platform
    from importlib.metadata import PackageNotFoundError, version

    from meshwright import __version__

    libraries = {}
    for name in ("numpy", "pydantic", "rich", "click", "ruamel.yaml"):
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = ""
    if as_json:
        output.print_json(
            {
                "schema": "meshwright.version/1", "version": __version__, "python": platform.python_version(),
                "platform": platform.platform(), "libraries": libraries,
            }
        )  # fmt: skip
        return
    click.echo(f"meshwright {__version__}")
    click.echo(f"python {platform.python_version()} on {platform.platform()}")
    for name, number in libraries.items():
        click.echo(f"{name} {number or 'not installed'}")
