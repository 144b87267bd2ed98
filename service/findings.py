"""What differs between versions, said once per distinct fault and not once per cell.

On the straight line a part of ``service.compare``; pure. A site is a cell without its checkout and its runtime; the
answers at a site are a table of checkouts by torch versions. Sites whose table has the same fault of the same
checkouts on the same torch versions are one finding; what the other columns and the other checkouts say there ends
its sentence. Only what a submission itself found makes a finding; what is known beside it, of the same checkouts on
other torch versions, says how far the finding reaches. ``service.telling`` has the words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from packaging.version import Version

from service.alike import same_name
from service.edges import BAD, GOOD, NO_IMPORT, NOTHING, OTHER, UNTRIED, Known, in_order, merged, shows_import, state
from service.telling import EVERYTHING, FACTOR, Fault, Group, head, instance, release, smallest, told
from service.training import meaning
from service.verdicts import Verdict
from service.wording import OUTSIDE

if TYPE_CHECKING:
    from service.compare import Row


@dataclass(frozen=True)
class Finding:
    """One distinct difference.

    axis   what it differs along, torch before checkout; ``throughout``: the same fault wherever it was tried
    text   one sentence
    cell   one cell that shows it: the smallest
    cells  how many do
    why    what ``cell`` said of it, its worst tensor or its error with its own numbers: may be long
    means  what that means for training; with the first finding of which it is so
    case   which case ``cell`` is of, and where
    """

    axis: Literal["torch", "checkout", "throughout"]
    text: str
    cell: int
    cells: int
    why: str = ""
    means: str = ""
    case: str = ""

    @property
    def example(self) -> str:
        """The case that shows it, and what its cell said; for a failed import, which is of every case, only that."""
        return ": ".join(part for part in (self.case, self.why) if part)

    def __str__(self) -> str:
        return f"{self.text}{f' ({self.why})' if self.why else ''} (cell {self.cell})"


_Place = tuple[str, str]
"""(checkout's name, torch version)."""


@dataclass
class _Site:
    """The submission's own rows at one site, and all answers known there by place and runtime."""

    own: list[Row] = field(default_factory=list)
    answers: dict[_Place, dict[str, Row]] = field(default_factory=dict)

    def add(self, place: _Place, row: Row) -> None:
        self.answers.setdefault(place, {})[row.runtime] = row


_Imports = Mapping[_Place, Mapping[str, set[str]]]
"""Per place and runtime why the import failed; an empty reason where it went well."""


def sentences(rows: Sequence[Row], known: Known = Known()) -> list[Finding]:  # noqa: B008 - frozen
    """Every fault once: silent ones first, then by what it differs along; newly broken before fixed."""
    labels = _labels(rows)
    names = {row.checkout: labels.of(row) for row in rows}
    past = [row for row in known.past if row.checkout in names]
    sites: dict[tuple[str, int, str, int, str], _Site] = {}
    for row in rows:
        sites.setdefault(_site(row), _Site()).own.append(row)
    for row in (*past, *rows):  # in this order: of one runtime the submission's own answer counts
        if (site := sites.get(_site(row))) is not None:
            site.add((names[row.checkout], row.torch), row)
    imports = _imports([*past, *rows], known, names)
    tried = {torch for _, torch in imports} | {row.torch for row in (*past, *rows)}
    torches = in_order([*tried, *known.torches])
    found = []
    for group in _groups(sites.values(), labels, torches, imports):
        text = told(group, several=len(tried) > 1 or len(labels.names) > 1)
        shown = smallest(group.rows)
        case = "" if group.fault.verdict is Verdict.UNIMPORTABLE else instance(shown)
        finding = Finding(group.axis, text, shown.cell, len(group.rows), _why(shown), _means(group), case)
        found.append((_importance(group), finding))
    return _once([finding for _, finding in sorted(found, key=lambda pair: pair[0])])


def _once(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, each meaning with the first that has it: more would only be in the way."""
    said: set[str] = set()
    kept = []
    for finding in findings:
        kept.append(replace(finding, means="") if finding.means in said else finding)
        said.add(finding.means)
    return kept


def _why(row: Row) -> str:
    """What a cell says of its fault: its worst tensor, or its error, with the numbers that a group's key leaves out."""
    said = head(row.detail)
    return said if said or Verdict(row.verdict or "").info.group != "no answer" else row.signature


def _means(group: Group) -> str:
    """What it means for training."""
    verdict, factor = group.fault.verdict, FACTOR.match(group.fault.signature)
    right = {row.forward_ok for row in group.rows} == {True}
    ratio = float(factor[1]) if factor else None
    return meaning(verdict, forward_ok=right, alpha=ratio, outside=group.fault.outside)


def _site(row: Row) -> tuple[str, int, str, int, str]:
    return row.transport, row.world_size, row.case, row.version, row.mode


def _imports(rows: Iterable[Row], known: Known, names: Mapping[str, str]) -> _Imports:
    """What is known of imports, from the rows and from the store."""
    found: dict[_Place, dict[str, set[str]]] = {}
    for fact in known.imports:
        if fact.checkout in names:
            reasons = found.setdefault((names[fact.checkout], fact.torch), {})
            reasons.setdefault(fact.runtime, set()).add(same_name(fact.signature))
    for row in rows:
        failed = row.verdict == Verdict.UNIMPORTABLE
        if failed or shows_import(row.verdict):
            reasons = found.setdefault((names[row.checkout], row.torch), {})
            reasons.setdefault(row.runtime, set()).add(same_name(row.signature) if failed else "")
    return found


def _importance(group: Group) -> tuple[int, int, int]:
    """Smaller comes first."""
    silent = group.fault.verdict.info.group == "gradient" and any(row.forward_ok is True for row in group.rows)
    tier = 0 if silent else 1 + ("torch", "checkout", "throughout").index(group.axis)
    return tier, 0 if group.regressed else 2 if group.fixed else 1, -len(group.rows)


# -- checkouts -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Labels:
    """The checkouts' names in order; ``of`` names a row's."""

    names: tuple[str, ...]
    of: Callable[[Row], str]


def _labels(rows: Iterable[Row]) -> _Labels:
    """Checkouts by label; where one label stands for several contents, the content is said too."""
    contents: dict[str, dict[str, None]] = {}
    for row in rows:
        contents.setdefault(row.label, {})[row.checkout] = None

    def of(row: Row) -> str:
        return row.label if len(contents[row.label]) == 1 else f"{row.label} ({row.checkout[:12]})"

    known = dict.fromkeys(of(row) for row in rows)
    return _Labels(tuple(in_release_order(known)), of)


def in_release_order(names: Iterable[str]) -> list[str]:
    """Releases of one thing by version; what is none by name."""
    return sorted(names, key=_order)


def _order(name: str) -> tuple[str, bool, Version, str]:
    """Releases of one thing in their order; what is none by name."""
    text, _, rest = name.partition(" (")
    known = release(text)
    return (known[0], False, known[1], rest) if known else (text, True, Version("0"), rest)


# -- groups ----------------------------------------------------------------------------------------------------------

_States = dict[_Place, dict[str, str]]
"""What each runtime at a place says of one fault."""


def _groups(sites: Iterable[_Site], labels: _Labels, torches: Sequence[str], imports: _Imports) -> list[Group]:
    """The sites by fault, by the checkouts that have it, and by the torch versions on which they do."""
    groups: dict[tuple[Any, ...], Group] = {}
    for site in sites:
        # A checkout of another subject was never asked this.
        asked = tuple(label for label in labels.names if any(label == place[0] for place in site.answers))
        for fault in dict.fromkeys(_fault(row) for row in site.own if _failing(row)):
            said = {(label, torch): _said(site, (label, torch), fault, imports) for label in asked for torch in torches}
            states = {place: merged(runtimes.values()) for place, runtimes in said.items()}
            mine = [row for row in site.own if _failing(row) and _fault(row) == fault]
            importing = fault.verdict is Verdict.UNIMPORTABLE
            for pattern, having in _patterns(said, states, asked, torches, importing=importing).items():
                # What only older answers show makes no finding of this submission's.
                if not (rows := [row for row in mine if labels.of(row) in having]):
                    continue
                fresh = Group(fault, having, asked, tuple(torches), pattern.bad, pattern.apart)
                group = groups.setdefault((fault, asked, having, pattern), fresh)
                group.tables.append(states)
                group.rows += rows
                if not importing:
                    group.untraced |= _untraced(site, having)
                    group.elsewhere_untraced += _untraced_elsewhere(site, states, having, pattern.bad)
    return list(groups.values())


def _untraced(site: _Site, having: Sequence[str]) -> set[str]:
    return {
        torch
        for (label, torch), answers in site.answers.items()
        if label in having and any(row.verdict == Verdict.AGREE_UNTRACED for row in answers.values())
    }


def _untraced_elsewhere(
    site: _Site, states: Mapping[_Place, str], having: Sequence[str], bad: Sequence[str]
) -> Counter[str]:
    """Of the other checkouts, on the versions that have the fault, which agree in no traced graph."""
    return Counter(
        label
        for (label, torch), answers in site.answers.items()
        if label not in having and torch in bad and states[label, torch] == GOOD
        if any(row.verdict == Verdict.AGREE_UNTRACED for row in answers.values())
    )


@dataclass(frozen=True)
class _Pattern:
    """Where along torch a fault is, another one is, and no import was; and which builds of a version differ.

    imports  for a failed import, where one went well: what it needs is read from that, and is each checkout's own
    """

    bad: tuple[str, ...]
    other: tuple[str, ...]
    no_import: tuple[str, ...]
    imports: tuple[str, ...]
    apart: tuple[tuple[str, str], ...]


def _patterns(
    said: _States, states: Mapping[_Place, str], labels: Sequence[str], torches: Sequence[str], *, importing: bool
) -> dict[_Pattern, tuple[str, ...]]:
    """Every pattern with the checkouts of which it is so."""
    found: dict[_Pattern, tuple[str, ...]] = {}
    for label in labels:
        bad, other, none, good = (
            tuple(torch for torch in torches if states[label, torch] == state)
            for state in (BAD, OTHER, NO_IMPORT, GOOD)
        )
        if bad:
            apart = tuple(
                (runtime, its)
                for torch in torches
                for runtime, its in sorted(said[label, torch].items())
                if its in (GOOD, OTHER, NO_IMPORT) and its != states[label, torch]
            )
            pattern = _Pattern(bad, other, none, good if importing else (), apart)
            found[pattern] = (*found.get(pattern, ()), label)
    return found


def _fault(row: Row) -> Fault:
    verdict = Verdict(row.verdict or "infra")
    probe = EVERYTHING if verdict is Verdict.UNIMPORTABLE else row.case.partition("[")[0]
    return Fault(verdict, same_name(row.signature), probe, row.detail.startswith(OUTSIDE))


def _failing(row: Row) -> bool:
    return row.verdict is not None and Verdict(row.verdict).failing


def _said(site: _Site, place: _Place, fault: Fault, imports: _Imports) -> dict[str, str]:
    """What the runtimes at a place say of ``fault``.

    For a failing import only the import counts: what cases say after one that went well is another matter. And where
    the import is known to fail, that is so for a case that was never tried there.
    """
    answers = site.answers.get(place, {})
    if fault.verdict is Verdict.UNIMPORTABLE:
        silent = dict.fromkeys(answers, NOTHING)
        return silent | {runtime: _import_state(reasons, fault) for runtime, reasons in imports.get(place, {}).items()}
    if answers:
        return {
            runtime: state(row, same=_failing(row) and _fault(row) == fault, of_import=False)
            for runtime, row in answers.items()
        }
    reasons = imports.get(place, {})
    return {runtime: NO_IMPORT if any(why) else UNTRIED for runtime, why in reasons.items()}


def _import_state(reasons: set[str], fault: Fault) -> str:
    return BAD if fault.signature in reasons else NO_IMPORT if any(reasons) else GOOD
