"""The commands of those who keep the service: serve, token, db."""

from __future__ import annotations

from typing import Annotated

import typer

from workers.cli.console import Group

token = typer.Typer(help="Bearer tokens for the interface: create, list, revoke.", no_args_is_help=True, cls=Group)
database = typer.Typer(help="The database's schema.", no_args_is_help=True, cls=Group)


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    for command in (serve, api, worker, beat):
        app.command()(command)
    app.add_typer(token, name="token")
    app.add_typer(database, name="db")


def serve(
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Port 0 is any free one. Default: the setting listen."),
    ] = None,
) -> None:
    """Serve the interface with a worker beside it, for one person: nothing else is needed."""
    from workers.cli import serving as command

    raise typer.Exit(command.serve(listen))


def api(
    listen: Annotated[
        str | None,
        typer.Option("--listen", metavar="HOST:PORT", help="Port 0 is any free one. Default: the setting listen."),
    ] = None,
) -> None:
    """Serve the interface of a fleet: the part that people and programs talk to."""
    from workers.cli import serving as command

    raise typer.Exit(command.api(listen))


def worker() -> None:
    """Work for a fleet on this host: claim jobs, fetch subjects, run."""
    from workers.cli import serving as command

    raise typer.Exit(command.worker())


def beat() -> None:
    """Run the fleet's reconciler; of several one acts."""
    from workers.cli import serving as command

    raise typer.Exit(command.beat())


@token.command("create")
def token_create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, so that it is found again.")],
    scope: Annotated[str, typer.Option("--scope", metavar="S", help="read, submit or admin.")] = "read",
) -> None:
    """Make a token; its secret is shown this once."""
    from workers.cli import serving as command

    raise typer.Exit(command.token_create(name, scope))


@token.command("list")
def token_list() -> None:
    """List the tokens, without their secrets."""
    from workers.cli import serving as command

    raise typer.Exit(command.token_list())


@token.command("revoke")
def token_revoke(number: Annotated[int, typer.Argument(metavar="ID", help="As `token list` shows it.")]) -> None:
    """Have a token open nothing any more."""
    from workers.cli import serving as command

    raise typer.Exit(command.token_revoke(number))


@database.command("upgrade")
def db_upgrade() -> None:
    """Bring the database's schema up to this program's."""
    from workers.cli import serving as command

    raise typer.Exit(command.db_upgrade())
