"""The commands and their options. Each imports what it does when it is called, so that `--help` costs nothing."""

from __future__ import annotations

from enum import StrEnum
from types import ModuleType
from typing import Annotated

import typer

from workers.cli.console import Group

app = typer.Typer(
    name="gradmatrix",
    cls=Group,
    help="Is the gradient right, since when, and who broke it?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
runtimes = typer.Typer(
    help="The torch environments: list, add, build, check, remove, lock, base.", no_args_is_help=True, cls=Group
)
app.add_typer(runtimes, name="runtimes")

CASE_HELP = (
    "Only cases whose id matches; * and ? are wildcards, brackets are literal. The probe alone is enough: dim0 means "
    "every exchange/dim0[...]. Repeatable."
)
KEEP_HELP = (
    "no: take the runtimes one after the other, and remove each that this run had to build when its jobs are done, so "
    "that the disk holds one of them at a time; those that were there before stay. Also with --resume."
)
SELFTEST = "With --selftest"
SELFTEST_HELP = (
    "Run every control instead, over several sets of values, and show which mutants are caught and which right "
    "implementations raise a false alarm."
)
COVERAGE_HELP = (
    "List instead what of this subject holds a collective and has a derivative or is public, and which probes reach it."
)
Globs = Annotated[list[str] | None, typer.Option("--case", metavar="GLOB", help=CASE_HELP)]
AllRows = Annotated[bool, typer.Option("--all-rows", help="Show every row, also those that agree everywhere.")]
JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write the cells as JSON; - is stdout.")]
JunitFile = Annotated[str | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML; - is stdout.")]


class YesNo(StrEnum):
    """An option's two answers."""

    YES = "yes"
    NO = "no"


class Executor(StrEnum):
    """What jobs run in."""

    VENV = "venv"
    DOCKER = "docker"


ExecutorName = Annotated[
    Executor | None,
    typer.Option("--executor", help="venv: virtual environments; docker: images. Default: the configured one."),
]


def _version(asked: bool) -> None:
    if asked:
        from workers.cli.console import version as installed

        typer.echo(f"gradmatrix {installed()}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """What every command shares."""


@app.command()
def run(
    subjects: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SUBJECT...",
            help="deepspeed==0.18.3, git+https://...@REF, a full SHA, a path, or torch (what is torch's own).",
            show_default=False,
        ),
    ] = None,
    torch: Annotated[
        list[str] | None,
        typer.Option(
            "--torch", metavar="V", help="2.11.0, 2.11, 2.2..2.11, latest or all; each may end in -VARIANT; repeatable."
        ),
    ] = None,
    world_size: Annotated[
        list[str] | None, typer.Option("--world-size", metavar="N", help="Ranks: 2, 4 or 8; repeatable. Default: 2.")
    ] = None,
    transport: Annotated[
        list[str] | None,
        typer.Option(
            "--transport",
            metavar="T",
            help="gloo, nccl or nccl-dispatch (torch's NCCL branches over gloo); repeatable. Default: all here.",
        ),
    ] = None,
    mode: Annotated[
        list[str] | None,
        typer.Option("--mode", metavar="M", help="eager, aot_eager or inductor; repeatable. Default: all."),
    ] = None,
    case: Globs = None,
    suite: Annotated[
        str | None,
        typer.Option(
            "--suite",
            metavar="S",
            help="default (each axis in pairs) or full. Default: default; full where cases are named.",
            show_default=False,
        ),
    ] = None,
    json: JsonFile = None,
    junit: JunitFile = None,
    all_rows: AllRows = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Finish the newest unfinished submission, as it was asked for.")
    ] = False,
    rerun: Annotated[bool, typer.Option("--rerun", help="Run again what already has an answer.")] = False,
    keep_runtimes: Annotated[YesNo, typer.Option("--keep-runtimes", help=KEEP_HELP)] = YesNo.YES,
) -> None:
    """Test subjects on torch versions and show which gradients agree.

    Exit status: 0 all agree; 1 at least one does not; 2 incomplete, misused, or nothing compared.
    """
    from workers.cli import run as command

    asked = command.Asked(
        subjects=tuple(subjects or ()),
        torch=tuple(torch or ()),
        world_sizes=tuple(world_size or ()),
        transports=tuple(transport or ()),
        modes=tuple(mode or ()),
        cases=tuple(case or ()),
        suite=suite,
        resume=resume,
        rerun=rerun,
    )
    shown = command.Shown(json=json, junit=junit, all_rows=all_rows)
    raise typer.Exit(command.run(asked, shown, keep_runtimes=keep_runtimes is YesNo.YES))


@app.command()
def show(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ID",
            help="A submission (s3) or a cell: 17, or words that fit one cell (label, torch, case, mode ...).",
        ),
    ] = None,
    json: JsonFile = None,
    junit: JunitFile = None,
    all_rows: AllRows = False,
) -> None:
    """Show a submission's grid, or one cell in full; without ID list the newest submissions."""
    from workers.cli import show as command

    raise typer.Exit(command.show(" ".join(words or ()), json=json, junit=junit, all_rows=all_rows))


@app.command()
def logs(
    words: Annotated[list[str], typer.Argument(metavar="CELL", help="A cell: 17, or words that fit one cell.")],
) -> None:
    """Show what a cell's processes wrote, and the stacks of those that hung."""
    from workers.cli import show as command

    raise typer.Exit(command.logs(" ".join(words)))


@app.command()
def diff(
    before: Annotated[str, typer.Argument(metavar="A", help="A submission (s3), a checkout's label, or LABEL@TORCH.")],
    after: Annotated[str, typer.Argument(metavar="B", help="The same, for what is compared with it.")],
    case: Globs = None,
    all_rows: AllRows = False,
) -> None:
    """Compare two submissions, checkouts or torch versions, cell by cell.

    Exit status: 0 B is as A or better; 1 at least one regression or new failure; 2 nothing in common.
    """
    from workers.cli import diff as command

    raise typer.Exit(command.diff(before, after, tuple(case or ()), all_rows=all_rows))


@app.command()
def cases(
    globs: Annotated[list[str] | None, typer.Argument(metavar="GLOB...", help=CASE_HELP)] = None,
    json: Annotated[
        str | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON; - is stdout.")
    ] = None,
    selftest: Annotated[bool, typer.Option("--selftest", help=SELFTEST_HELP)] = False,
    torch: Annotated[
        str | None,
        typer.Option(
            "--torch", metavar="V", help="On which torch. Default: the newest that is built.", rich_help_panel=SELFTEST
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option("--seeds", metavar="N", help="How many sets of values. Default: 3.", rich_help_panel=SELFTEST),
    ] = None,
    family: Annotated[
        list[str] | None,
        typer.Option("--family", metavar="F", help="Only this family's; repeatable.", rich_help_panel=SELFTEST),
    ] = None,
    world_size: Annotated[
        list[int] | None,
        typer.Option(
            "--world-size", metavar="N", help="Ranks; repeatable. Default: 2 and 4.", rich_help_panel=SELFTEST
        ),
    ] = None,
    markdown: Annotated[
        str | None,
        typer.Option(
            "--markdown", metavar="FILE", help="Write the table as a page; - is stdout.", rich_help_panel=SELFTEST
        ),
    ] = None,
    coverage: Annotated[str | None, typer.Option("--coverage", metavar="SUBJECT", help=COVERAGE_HELP)] = None,
) -> None:
    """List the cases: what each exercises, in which modes and world sizes.

    Exit status with --selftest: 0 every mutant caught and no false alarm; 1 otherwise; 2 misused or not run to its end.
    """
    from workers.cli import cases as command

    tested = {
        "--torch": torch,
        "--seeds": seeds,
        "--family": family,
        "--world-size": world_size,
        "--markdown": markdown,
    }
    command.check_options(globs=globs, selftest=selftest, coverage=coverage, tested=tested)
    if selftest:
        from workers.cli import selftest as test

        asked = test.Asked(
            torch=torch,
            seeds=test.DEFAULT_SEEDS if seeds is None else seeds,
            families=tuple(family or ()),
            world_sizes=tuple(world_size or ()),
            json=json,
            markdown=markdown,
        )
        raise typer.Exit(test.selftest(asked))
    if coverage is not None:
        from workers.cli import coverage as covered

        raise typer.Exit(covered.coverage(coverage, json=json))
    raise typer.Exit(command.cases(tuple(globs or ()), json_file=json))


@app.command()
def repro(
    words: Annotated[list[str], typer.Argument(metavar="CELL", help="A cell: 17, or words that fit one cell.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is stdout.")] = "-",
) -> None:
    """Write one cell as a Python file that needs torch and the subject alone, and prints the same numbers."""
    from workers.cli import repro as command

    raise typer.Exit(command.write(" ".join(words), output))


@app.command()
def judge(
    policy: Annotated[
        str, typer.Option("--policy", metavar="FILE", help="The policy, of the form of service/policies/v1.toml.")
    ],
    apply: Annotated[
        bool, typer.Option("--apply", help="Make the new judgements the current answers; the old ones are kept.")
    ] = False,
    json: Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write it as JSON; - is stdout.")] = None,
    all_rows: Annotated[bool, typer.Option("--all-rows", help="List every cell that changes.")] = False,
) -> None:
    """Judge everything stored again, from its evidence, under another policy; without --apply only show what changes.

    Exit status: 0 nothing would change; 1 something would; 2 misused.
    """
    from workers.cli import judge as command

    raise typer.Exit(command.judge(policy, apply=apply, target=json, all_rows=all_rows))


@app.command()
def export(
    idents: Annotated[
        list[str] | None, typer.Argument(metavar="ID...", help="Submissions (s3); all of them when none is named.")
    ] = None,
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is stdout.")] = "-",
) -> None:
    """Write results as JSON lines that `import` reads."""
    from workers.cli import transfer as command

    raise typer.Exit(command.export(tuple(idents or ()), output))


@app.command("import")
def import_(source: Annotated[str, typer.Argument(metavar="FILE", help="JSON lines of `export`; - is stdin.")]) -> None:
    """Take results in that `export` wrote; what is here already stays as it is."""
    from workers.cli import transfer as command

    raise typer.Exit(command.import_(source))


@app.command()
def page(
    source: Annotated[str, typer.Argument(metavar="FILE", help="A TOML file that describes the page.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="FILE", help="Where to; - is stdout.")] = "-",
) -> None:
    """Write a page of results in Markdown: tables over torch versions, and every distinct fault in a sentence."""
    from workers.cli import page as command

    raise typer.Exit(command.page(source, output))


@app.command()
def doctor() -> None:
    """Look at what this machine has of what a run needs, and name the remedy for what is missing."""
    from workers.cli import doctor as command

    raise typer.Exit(command.doctor())


Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUNTIME...", help="2.11.0, 2.11, 2.2..2.11, latest or all; each may end in -VARIANT."),
]


@runtimes.command("list")
def runtimes_list(
    everything: Annotated[bool, typer.Option("--all", help="Every variant, not only the configured one.")] = False,
    json: Annotated[bool, typer.Option("--json", help="As JSON, every variant.")] = False,
    executor: ExecutorName = None,
) -> None:
    """List the catalogue, what is built, and its size."""
    raise typer.Exit(_stock(executor).list_(everything=everything, as_json=json))


def _stock(executor: Executor | None) -> ModuleType:
    """The commands on what is built, for virtual environments or for images."""
    from service.config import load_settings
    from workers.cli import images, runtimes

    return images if runtimes.in_containers(load_settings(), executor) else runtimes


@runtimes.command("add")
def runtimes_add(
    version: Annotated[
        str, typer.Argument(metavar="VERSION", help="2.12.1; with its end, 2.12.1+cu130, where builds differ in it.")
    ],
    variant: Annotated[
        str | None, typer.Option("--variant", metavar="V", help="Which build. Default: the configured variant.")
    ] = None,
) -> None:
    """Add a torch version to the catalogue: resolve, lock, build, check, and show the difference."""
    from workers.cli import runtimes as command

    raise typer.Exit(command.add(version, variant=variant))


@runtimes.command("build")
def runtimes_build(
    names: Names = None,
    everything: Annotated[bool, typer.Option("--all", help="All of the configured variant.")] = False,
    push: Annotated[bool, typer.Option("--push", help="Push images to the configured registry.")] = False,
    executor: ExecutorName = None,
) -> None:
    """Build runtimes that are not built yet. One that fails does not keep the others from it."""
    from workers.cli import runtimes as command

    raise typer.Exit(command.build(tuple(names or ()), executor=executor, everything=everything, push=push))


@runtimes.command("check")
def runtimes_check(names: Names = None, executor: ExecutorName = None) -> None:
    """Check that built runtimes are whole and import torch; all built ones when none is named."""
    from workers.cli import runtimes as command

    raise typer.Exit(command.check(tuple(names or ()), executor=executor))


@runtimes.command("remove")
def runtimes_remove(
    names: Names = None,
    unused: Annotated[bool, typer.Option("--unused", help="Those that no catalogue entry describes any more.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="All of them, and the package cache.")] = False,
    executor: ExecutorName = None,
) -> None:
    """Remove built runtimes and give their disk space back."""
    raise typer.Exit(_stock(executor).remove(tuple(names or ()), unused=unused, everything=everything))


@runtimes.command("base")
def runtimes_base() -> None:
    """Make a base image from Debian's packages, where no registry has one."""
    from workers.cli import images as command

    raise typer.Exit(command.base())


@runtimes.command("lock")
def runtimes_lock(
    names: Names = None,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="Take newer releases than the lock has.")] = False,
) -> None:
    """Write the lock files of catalogue entries anew."""
    from workers.cli import runtimes as command

    raise typer.Exit(command.lock(tuple(names or ()), upgrade=upgrade))
