"""The commands of those who keep the service: serve, token, db, workers."""

from __future__ import annotations

from typing import Annotated

import typer

from workers.cli.console import Group

token = typer.Typer(help="Bearer tokens for the interface: create, list, revoke.", no_args_is_help=True, cls=Group)
database = typer.Typer(help="The database's schema.", no_args_is_help=True, cls=Group)
workers = typer.Typer(help="The hosts of a fleet and their devices: list, well, sick.", no_args_is_help=True, cls=Group)


def register(app: typer.Typer) -> None:
    """Add these commands to the application."""
    for command in (serve, api, worker, beat, submit, cancel, approve, rerun, retention, healthy):
        app.command()(command)
    app.add_typer(token, name="token")
    app.add_typer(database, name="db")
    app.add_typer(workers, name="workers")


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


Address = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="The service. Default: the setting server, or listen's.")
]


def submit(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(metavar="SUBJECT...", help="As of run; a folder only where the service is one's own."),
    ] = None,
    torch: Annotated[list[str] | None, typer.Option("--torch", metavar="V", help="As of run; repeatable.")] = None,
    world_size: Annotated[list[str] | None, typer.Option("--world-size", metavar="N", help="2, 4 or 8.")] = None,
    transport: Annotated[list[str] | None, typer.Option("--transport", metavar="T", help="As of run.")] = None,
    mode: Annotated[list[str] | None, typer.Option("--mode", metavar="M", help="As of run.")] = None,
    case: Annotated[list[str] | None, typer.Option("--case", metavar="GLOB", help="As of run.")] = None,
    suite: Annotated[str | None, typer.Option("--suite", metavar="S", help="default or full.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end, and exit as run does.")] = False,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="With --wait: the cells.")] = None,
    junit: Annotated[str | None, typer.Option("--junit", metavar="FILE", help="With --wait: JUnit XML.")] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run again what already has an answer.")] = False,
    priority: Annotated[int | None, typer.Option("--priority", metavar="N", help="Higher goes first.")] = None,
    server: Address = None,
) -> None:
    """Ask a service for an evaluation.

    Exit status with --wait: 0 all agree; 1 at least one does not; 2 incomplete, misused, or nothing compared.
    """
    from workers.cli import remote as command
    from workers.cli.run import Asked, Shown

    asked = Asked(
        subjects=tuple(subjects or ()),
        torch=tuple(torch or ()),
        world_sizes=tuple(world_size or ()),
        transports=tuple(transport or ()),
        modes=tuple(mode or ()),
        cases=tuple(case or ()),
        suite=suite,
        rerun=rerun,
    )
    shown = Shown(json=json, junit=junit)
    raise typer.Exit(command.submit(asked, shown, command.Server(server), wait=wait, priority=priority))


def cancel(
    number: Annotated[str, typer.Argument(metavar="ID", help="A submission: s3.")], server: Address = None
) -> None:
    """Cancel a submission, and the jobs that no other waits for."""
    from workers.cli import remote as command

    raise typer.Exit(command.cancel(number, command.Server(server)))


def approve(
    number: Annotated[str, typer.Argument(metavar="ID", help="A submission: s3.")], server: Address = None
) -> None:
    """Let a stranger's pull request be tested that is held: the commit that was proposed, and no other."""
    from workers.cli import remote as command

    raise typer.Exit(command.approve(number, command.Server(server)))


def rerun(
    number: Annotated[str, typer.Argument(metavar="ID", help="A cell (17), a job (j4) or a submission (s3).")],
    wait: Annotated[bool, typer.Option("--wait", help="Follow it to its end, and exit as run does.")] = False,
    server: Address = None,
) -> None:
    """Run a cell, a job or a submission again."""
    from workers.cli import remote as command

    raise typer.Exit(command.rerun(number, command.Server(server), wait=wait))


def retention(
    apply: Annotated[bool, typer.Option("--apply", help="Remove it now.")] = False,
) -> None:
    """Show which tensors, logs and attempts are older than they are kept, as the settings say."""
    from workers.cli import serving as command

    raise typer.Exit(command.retention(apply))


def healthy(
    part: Annotated[str, typer.Argument(metavar="PART", help="api, beat or worker.")],
) -> None:
    """Say whether a part of the service works on this host; exit status 0 if so, for container health checks."""
    from workers.cli import healthy as command

    raise typer.Exit(command.healthy(part))


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


Host = Annotated[str, typer.Argument(metavar="HOST", help="As `workers list` shows it.")]
Device = Annotated[str, typer.Argument(metavar="DEVICE", help="A GPU's UUID, or enough of its beginning.")]


@workers.command("list")
def workers_list(server: Address = None) -> None:
    """List the hosts with their devices: how each is, since when and why, and what runs on it."""
    from workers.cli import remote as command

    raise typer.Exit(command.list_workers(command.Server(server)))


@workers.command("well")
def workers_well(host: Host, device: Device, server: Address = None) -> None:
    """Let a device have jobs again."""
    from workers.cli import remote as command

    raise typer.Exit(command.set_device(host, device, "well", "", command.Server(server)))


@workers.command("sick")
def workers_sick(
    host: Host,
    device: Device,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for whoever finds it so.")],
    server: Address = None,
) -> None:
    """Give a device no more jobs; what runs on it goes on."""
    from workers.cli import remote as command

    raise typer.Exit(command.set_device(host, device, "sick", reason, command.Server(server)))
