"""``gradmatrix cases --selftest``: whether every mutant is caught, and nothing that is right raises an alarm."""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.text import Text

from jobs.contract import WORLD_SIZES
from service import catalog
from service.cases import catalogue
from service.catalog import RuntimeSpec
from service.config import Settings, load_settings
from service.detection import Count, Detection, Line, Setting, detection, trials
from service.errors import UsageError
from service.judge import ControlVerdict
from service.policy import load_policy
from service.words import human_seconds, inert, plural
from workers.cli.console import DISAGREE, OK, check_writable, console, show, write_text
from workers.cli.progress import Watcher, watcher
from workers.cli.runtimes import ensure, locked
from workers.runtimes.venv import VenvExecutor
from workers.selftest import SelfTest, families_of

DEFAULT_SEEDS = 3
DEFAULT_WORLD_SIZES = (2, 4)
MOST_SHOWN = 20
QUIET_S, LIVE_S = 15.0, 0.5
"""Seconds between two words about how far a seed is: in a log, and on a terminal."""
NEVER = "·"
"""In the table: no control of this kind stands on a case of this type."""


@dataclass(frozen=True)
class Asked:
    """The words of the command line."""

    torch: str | None = None
    seeds: int = DEFAULT_SEEDS
    families: tuple[str, ...] = ()
    world_sizes: tuple[int, ...] = ()
    json: str | None = None
    markdown: str | None = None


def selftest(asked: Asked) -> int:
    """Run every control with every seed, print the table; 0 where all is as it should be."""
    if asked.seeds < 1:
        raise UsageError(f"--seeds {asked.seeds}: at least one is needed; 20 is what a claim rests on")
    if wrong := [size for size in asked.world_sizes if size not in WORLD_SIZES]:
        raise UsageError(f"world size {wrong[0]} is not known: there are {', '.join(map(str, WORLD_SIZES))}")
    for target in (asked.json, asked.markdown):
        check_writable(target)
    settings = load_settings()
    executor = VenvExecutor(settings)
    known = catalogue()
    families = families_of(known, asked.families)
    world_sizes = tuple(sorted(set(asked.world_sizes))) or DEFAULT_WORLD_SIZES
    began = time.monotonic()
    with watcher(console(stderr=True)) as watch:
        runtime = _runtime(asked.torch, settings, executor, watch)
        test = SelfTest(settings, executor, runtime, known, load_policy(), families, world_sizes)
        found, compiler = _tried(test, asked.seeds, watch)
    controls = [control for control in known.controls if control.family in families]
    setting = Setting(runtime.torch, world_sizes, asked.seeds, compiler)
    table = detection(controls, {case.id: case for case in known.cases}, setting, found)
    if asked.json is not None:
        write_text(asked.json, json_module.dumps(table.to_json(), indent=1) + "\n")
    if asked.markdown is not None:
        write_text(asked.markdown, markdown(table))
    if "-" not in (asked.json, asked.markdown):
        show(console(), printed(table, time.monotonic() - began))
    return OK if table.ok else DISAGREE


def _runtime(name: str | None, settings: Settings, executor: VenvExecutor, watch: Watcher) -> RuntimeSpec:
    """The named runtime, built if it is not; without a name the newest of those that are built."""
    known = catalog.load(settings)
    if name is None:
        built = [spec for spec in known.bare() if executor.ready(spec)]
        if not built:
            raise UsageError("no runtime is built yet: say on which torch, --torch V, or gradmatrix runtimes build V")
        return built[-1]
    chosen = known.select([name])
    if len(chosen) != 1:
        raise UsageError(f"--torch {name} is {plural(len(chosen), 'runtime')}; a self-test runs on one")
    specs = locked(chosen, settings, watch)
    ensure(executor, specs, watch)
    return specs[0]


def _tried(test: SelfTest, seeds: int, watch: Watcher) -> tuple[dict[tuple[str, str, int, int], ControlVerdict], bool]:
    """The verdict of every trial, seed after seed, and whether there is a compiler."""
    found: dict[tuple[str, str, int, int], ControlVerdict] = {}
    cases = {case.id: case for case in test.catalogue.cases}
    controls = [control for control in test.catalogue.controls if control.family in test.families]
    each = len(list(trials(controls, cases, Setting(test.runtime.torch, test.world_sizes, 1))))
    name, compiler = f"self-test on torch {test.runtime.torch}", True
    every = LIVE_S if watch.console.is_terminal else QUIET_S
    for seed in range(seeds):
        began = said = time.monotonic()
        watch.growing(name)(f"seed {seed + 1} of {seeds}: starting", 0, None)

        def heard(count: int, seed: int = seed) -> None:
            nonlocal said
            if time.monotonic() - said >= every:
                said = time.monotonic()
                watch.growing(name)(f"seed {seed + 1} of {seeds}: {count} of {each} controls", 0, None)

        tried = test.run(seed, heard)
        compiler = tried.facts.get("compiler") is not None
        wrong = sum(not verdict.ok for verdict in tried.found.values())
        took = human_seconds(time.monotonic() - began)
        watch.ended(
            name,
            f"seed {seed + 1} of {seeds}: {plural(len(tried.found), 'control')} in {took}"
            + (f", {wrong} not as they should be" if wrong else ""),
        )
        found |= tried.found
    return found, compiler


def printed(table: Detection, seconds: float) -> list[Text]:
    """The table for people."""
    setting = table.setting
    sizes = " and ".join(map(str, setting.world_sizes))
    lines = [Text(f"torch {setting.torch} · {plural(setting.seeds, 'seed')} · {sizes} ranks · "
                  f"{human_seconds(seconds)}", style="bold")]  # fmt: skip
    for title, rows in ((CAUGHT, table.mutants), (QUIET, table.clean)):
        lines += [Text(""), Text(title, style="bold"), *_table(rows, table.types)]
    for title, misses in (("not caught", table.missed), ("false alarms", table.alarms)):
        if misses:
            lines += [Text(""), Text(title, style="bold red")]
            lines += [Text(f"  {inert(miss.sentence)}") for miss in misses[:MOST_SHOWN]]
            if len(misses) > MOST_SHOWN:
                lines.append(Text(f"  and {len(misses) - MOST_SHOWN} more (--json has them all)"))
    lines += [Text(""), *(Text(inert(text)) for text in remarks(table))]
    return lines


CAUGHT = "mutants: caught, of all trials"
QUIET = "right implementations: said to be right, of all trials"


def _table(rows: Sequence[Line], types: Sequence[str]) -> Iterator[Text]:
    width = max((len(line.name) for line in rows), default=0) + 2
    yield Text(" " * width + "".join(f"{dtype:>10}" for dtype in types), style="dim")
    for family, group in groupby(rows, lambda line: line.family):
        yield Text(family, style="bold")
        for line in group:
            yield Text(f"  {line.name:<{width - 2}}" + "".join(f"{_cell(line, dtype):>10}" for dtype in types))


def _cell(line: Line, dtype: str) -> str:
    count = line.counts.get(dtype)
    if count is None:
        return NEVER
    return _said(count)


def _said(count: Count) -> str:
    if not count.of:
        return "absent"
    return f"{count.right}/{count.of}" + ("*" if count.hidden and count.right < count.of else "")


def remarks(table: Detection) -> list[str]:
    """What stands below the table: hidden mutants, what is absent here, and the sums."""
    said = [f"* {where}: {count.hidden}" for where, count in table.hidden if count.right < count.of]
    said += [f"absent here: {', '.join(names)}: {reason}" for reason, names in table.absent.items()]
    if not table.setting.compiler:
        said.append("there is no C++ compiler: no control ran in inductor")
    pairs = [count for line in table.mutants for count in line.counts.values() if count.of]
    caught = sum(count.right == count.of for count in pairs)
    hiding = sum(bool(count.hidden) and count.right < count.of for count in pairs)
    trials_of = [sum(c.of for line in lines for c in line.counts.values()) for lines in (table.mutants, table.clean)]
    said.append(
        f"{caught} of {len(pairs)} mutants by type caught in every trial"
        + (f", {hiding} hidden by their type" if hiding else "")
        + f" ({trials_of[0]} trials); {plural(len(table.alarms), 'false alarm')} in {trials_of[1]} trials"
    )
    return said


def markdown(table: Detection) -> str:
    """The same as a page."""
    setting = table.setting
    sizes = " and ".join(map(str, setting.world_sizes))
    command = f"gradmatrix cases --selftest --torch {setting.torch} --seeds {setting.seeds}"
    out = [
        "# What the controls catch",
        "",
        f"Made by `{command} --markdown docs/detection.md`, on torch {setting.torch}, with {sizes} ranks and "
        f"{plural(setting.seeds, 'seed')}: other values of every input each time.",
        "",
        "A mutant is an implementation of ours that is wrong in one way; it is caught when the verdict on it is one "
        "that is right for this way. A cell says in how many of all trials (seeds, numbers of ranks, modes and cases "
        f"that it stands on) that was so. {NEVER} means that no case of this type at these numbers of ranks has it.",
        "",
    ]
    for title, rows in (("Mutants", table.mutants), ("Right implementations", table.clean)):
        out += [f"## {title}", ""]
        if rows is table.clean:
            out += ["These must be said to be right; every other answer is a false alarm.", ""]
        out += [f"| | {' | '.join(table.types)} | what it does |", "| --- |" + " --- |" * (len(table.types) + 1)]
        for line in rows:
            cells = " | ".join(_cell(line, dtype).replace("*", "\\*") for dtype in table.types)
            out.append(f"| {line.family}/{line.name} | {cells} | {line.summary} |")
        out.append("")
    out += ["## In all", "", *(f"- {text.replace('*', chr(92) + '*', 1)}" for text in remarks(table))]
    for title, misses in (("Not caught", table.missed), ("False alarms", table.alarms)):
        if misses:
            out += ["", f"## {title}", "", *(f"- {inert(miss.sentence)}" for miss in misses)]
    return "\n".join(out) + "\n"
