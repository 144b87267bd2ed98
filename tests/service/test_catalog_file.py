"""Writing one more build into the catalogue's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.catalog_file import Build, parse, with_build

HEAD = """# About the file.
python = "3.11"
needs = ["numpy"]

[variants.index]
summary = "one"
local = ""
without = []

[variants.cuda]
summary = "two"
without = []
"""
TEXT = f"""{HEAD}
# About sizes.

[[runtimes]]
torch = "2.9.1" # nine
builds.index = {{ download_bytes = 1, installed_bytes = 2 }}

# Why eleven.
[[runtimes]]
torch = "2.11.0"
channel = "release"
builds.index = {{ download_bytes = 3, installed_bytes = 4 }} # eleven

# The end.
"""
NEW = Build(download_bytes=2_600_000_000, installed_bytes=4_500_000)
ROW = "builds.index = { download_bytes = 2_600_000_000, installed_bytes = 4_500_000 }"


def inserted(text: str, torch: str, variant: str = "index", build: Build = NEW) -> str:
    """What was added, with the line before it; all that was there before is still there, in its order."""
    result = with_build(text, torch, variant, build)
    old, new = text.splitlines(), result.splitlines()
    at = next(n for n, (a, b) in enumerate(zip([*old, None], new, strict=False)) if a != b)
    count = len(new) - len(old)
    assert [*new[:at], *new[at + count :]] == old
    entry = next(entry for entry in parse(result, Path("x")).runtimes if entry.torch == torch)
    assert entry.builds[variant] == build
    return "\n".join(new[at - 1 : at + count])


def order(text: str) -> list[str]:
    return [entry.torch for entry in parse(text, Path("x")).runtimes]


@pytest.mark.parametrize(
    ("torch", "versions"),
    [
        ("2.2.2", ["2.2.2", "2.9.1", "2.11.0"]),
        ("2.10.0", ["2.9.1", "2.10.0", "2.11.0"]),
        ("2.12.1", ["2.9.1", "2.11.0", "2.12.1"]),
    ],
)
def test_a_version_comes_where_its_number_says(torch: str, versions: list[str]) -> None:
    assert order(with_build(TEXT, torch, "index", NEW)) == versions


def test_a_tables_comment_stays_with_it() -> None:
    lines = with_build(TEXT, "2.10.0", "index", NEW).splitlines()
    at = lines.index('torch = "2.10.0"')
    assert lines[at - 2 : at + 5] == ["", "[[runtimes]]", 'torch = "2.10.0"', ROW, "", "# Why eleven.", "[[runtimes]]"]


def test_the_newest_comes_after_the_last_table() -> None:
    lines = with_build(TEXT, "2.12.1", "index", NEW).splitlines()
    assert lines[-7:] == [
        "builds.index = { download_bytes = 3, installed_bytes = 4 } # eleven",
        "",
        "# The end.",
        "",
        "[[runtimes]]",
        'torch = "2.12.1"',
        ROW,
    ]


def test_another_variant_comes_into_the_versions_own_table() -> None:
    cuda = Build(local="+cu130", download_bytes=5, installed_bytes=6)
    assert inserted(TEXT, "2.11.0", "cuda", cuda).splitlines() == [
        "builds.index = { download_bytes = 3, installed_bytes = 4 } # eleven",
        'builds.cuda = { local = "+cu130", download_bytes = 5, installed_bytes = 6 }',
    ]
    assert inserted(TEXT, "2.9.1", "cuda", cuda).startswith("builds.index")


def test_a_versions_builds_are_in_the_order_of_the_variants() -> None:
    cuda = Build(local="+cu130", download_bytes=5, installed_bytes=6)
    only_cuda = TEXT.replace(
        "builds.index = { download_bytes = 3", 'builds.cuda = { local = "+cu1", download_bytes = 3'
    )
    text = with_build(only_cuda, "2.11.0", "index", NEW)
    assert [list(entry.builds) for entry in parse(text, Path("x")).runtimes] == [["index"], ["index", "cuda"]]
    assert inserted(only_cuda, "2.11.0").splitlines() == ['channel = "release"', ROW]
    text = with_build(TEXT, "2.9.1", "cuda", cuda)
    assert [list(entry.builds) for entry in parse(text, Path("x")).runtimes] == [["index", "cuda"], ["index"]]


def test_the_first_version_of_all() -> None:
    assert order(with_build(HEAD, "2.9.1", "index", NEW)) == ["2.9.1"]


def test_tables_written_in_another_order_keep_it() -> None:
    first, nine, eleven = TEXT.split("[[runtimes]]")
    text = "[[runtimes]]".join([first, eleven, nine])
    assert order(with_build(text, "2.12.1", "index", NEW)) == ["2.11.0", "2.9.1", "2.12.1"]
    assert order(with_build(text, "2.10.0", "index", NEW)) == ["2.10.0", "2.11.0", "2.9.1"]


def test_a_table_after_the_runtimes_stays_after_them() -> None:
    text = TEXT + '\n[[bounds]]\ntorch = "<2.3"\nadd = ["numpy<2"]\n'
    added = with_build(text, "2.12.1", "index", NEW)
    assert order(added) == ["2.9.1", "2.11.0", "2.12.1"]
    assert added.endswith('[[bounds]]\ntorch = "<2.3"\nadd = ["numpy<2"]\n')
    assert parse(added, Path("x")).bounds == parse(text, Path("x")).bounds
