"""What an import lacked, and what would make it go well."""

from __future__ import annotations

import pytest

from service.evidence import ErrorInfo, Frame
from service.imports import Import, Need, current, import_columns, lacking, need, need_text, reasons

OWN = (
    Frame("deepspeed/__init__.py", 2, "<module>", "subject"),
    Frame("torch/library.py", 99, "custom_op", "torch"),
)
CUSTOM_OP = "needs another torch: torch.library.custom_op"
SCHEMA = "needs another torch: torch.library.infer_schema to take list[int]"
SOCKET = "needs another torch: torch.distributed.elastic.agent.server.api._get_socket_with_port"
CATALOGUE = ("2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.1")


@pytest.mark.parametrize(
    ("message", "signature"),
    [
        # a name of torch's
        ("module 'torch.library' has no attribute 'custom_op'", CUSTOM_OP),
        ("cannot import name '_get_socket_with_port' from 'torch.distributed.elastic.agent.server.api' (/x/api.py)",
         SOCKET),
        ("infer_schema(func): Parameter input_split_sizes has unsupported type list[int]. The valid types are: …",
         SCHEMA),
        ("No module named 'torch._six'", "needs another torch: torch._six"),
        ("'_OpNamespace' 'c10d' object has no attribute 'nothing_'", "needs another torch: torch.ops.c10d.nothing_"),
        ("cannot import name 'x' from partially initialized module 'torch._C' (most likely …)",
         "needs another torch: torch._C.x"),
        # another package, absent or of another version
        ("No module named 'hjson'", "needs package: hjson"),
        ("No module named 'torchvision.ops'", "needs package: torchvision.ops"),
        ("cannot import name 'BaseSettings' from 'pydantic' (/x/__init__.py)", "needs package: pydantic.BaseSettings"),
        ("module 'numpy' has no attribute 'bool'.\n`np.bool` was a deprecated alias …", "needs package: numpy.bool"),
        ("No package metadata was found for py-cpuinfo", "needs package: py-cpuinfo"),
        ("The 'apex>=1.0' distribution was not found and is required by the application", "needs package: apex"),
        ("tokenizers>=0.14,<0.19 is required for a normal functioning of this module, but found …",
         "needs package: tokenizers"),
        # the subject's own, Python's own, and anything else
        ("No module named 'deepspeed.ops.nothing'", None),
        ("cannot import name 'f' from 'deepspeed.utils' (/x/utils.py)", None),
        ("No module named 'distutils'", None),
        ("cannot import name 'override' from 'typing' (/usr/lib/python3.11/typing.py)", None),
        ("name 'Literal' is not defined", None),
        ("'NoneType' object has no attribute 'shape'", None),
        ("a value is required here", None),
    ],
)  # fmt: skip
def test_what_is_missing_and_whose_it_is(message: str, signature: str | None) -> None:
    assert lacking(ErrorInfo("E", message, OWN)) == signature


def test_only_a_traceback_says_what_is_the_subjects_own() -> None:
    missing = "No module named 'tinysp.ring'"
    adapter = Frame("gradmatrix_adapter.py", 3, "load", "subject")
    own = Frame("tinysp/__init__.py", 1, "<module>", "subject")
    assert lacking(ErrorInfo("ModuleNotFoundError", missing, (adapter,))) == "needs package: tinysp.ring"
    assert lacking(ErrorInfo("ModuleNotFoundError", missing, (adapter, own))) is None
    assert lacking(ErrorInfo("ModuleNotFoundError", "No module named 'gradmatrix_adapter'", (adapter,))) is None


def test_what_older_results_say_is_read_in_todays_words() -> None:
    assert current("needs torch.library.custom_op") == CUSTOM_OP
    assert current("needs torch.library.infer_schema to take list[int]") == SCHEMA
    assert current("needs hjson") == "needs package: hjson"
    for today in (CUSTOM_OP, "needs package: hjson", "ValueError: it needs care", "unimportable"):
        assert current(today) == today


def facts(**said: str) -> list[Import]:
    """``v2_2_2="…"``: why the import fails there; empty where it goes well."""
    torches = {name.removeprefix("v").replace("_", "."): why for name, why in said.items()}
    return [Import("c" * 64, torch, f"{torch}-index", "release", why) for torch, why in torches.items()]


LATE = facts(v2_2_2=CUSTOM_OP, v2_3_1=CUSTOM_OP, v2_4_1=SCHEMA, v2_5_1=SCHEMA, v2_6_0="", v2_7_1="")


def wants(given: list[Import], signature: str) -> tuple[Need, str]:
    columns = import_columns(given, signature, CATALOGUE)
    return need(signature, columns), need_text(signature, columns)


def test_a_newer_torch_and_each_reason_for_it() -> None:
    assert reasons(LATE[::-1]) == [CUSTOM_OP, SCHEMA]
    assert wants(LATE, CUSTOM_OP) == (
        Need("newer torch", "torch.library.custom_op", "2.6.0", "2.7.1"),
        "needs a newer torch (2.6.0 is the first in the catalogue that imports it; missing: torch.library.custom_op)",
    )
    assert wants(LATE, SCHEMA) == (
        Need("newer torch", "torch.library.infer_schema to take list[int]", "2.6.0", "2.7.1"),
        "needs a newer torch (2.6.0 is the first in the catalogue that imports it; "
        "missing: torch.library.infer_schema to take list[int])",
    )


def test_versions_that_were_not_tried_leave_the_minimum_open() -> None:
    given = facts(v2_2_2=CUSTOM_OP, v2_4_1=SCHEMA, v2_7_1="")
    wanted, text = wants(given, CUSTOM_OP)
    assert (wanted.first_torch, wanted.untried) == ("2.7.1", ("2.5.1", "2.6.0"))
    assert text == "needs a newer torch (2.7.1 imports it, 2.5.1 and 2.6.0 untried; missing: torch.library.custom_op)"


def test_an_older_torch() -> None:
    given = facts(v2_2_2="", v2_3_1="", v2_5_1=SOCKET, v2_6_0=SOCKET)
    assert wants(given, SOCKET) == (
        Need("older torch", SOCKET.removeprefix("needs another torch: "), "2.2.2", "2.3.1", ("2.4.1",)),
        "needs an older torch (2.3.1 imports it, 2.4.1 untried; "
        "missing: torch.distributed.elastic.agent.server.api._get_socket_with_port)",
    )
    told = wants(facts(v2_2_2="", v2_3_1="", v2_4_1=SOCKET), SOCKET)[1]
    assert told.startswith("needs an older torch (2.3.1 is the last in the catalogue that imports it; ")


def test_which_torch_is_not_known_where_none_imports_it_or_both_sides_do() -> None:
    assert wants(facts(v2_2_2=CUSTOM_OP), CUSTOM_OP) == (
        Need("another torch", "torch.library.custom_op", None, None),
        "needs another torch (missing: torch.library.custom_op)",
    )
    wanted, text = wants(facts(v2_2_2="", v2_3_1="", v2_4_1=SCHEMA, v2_5_1=""), SCHEMA)
    assert (wanted.kind, wanted.first_torch, wanted.last_torch) == ("another torch", "2.2.2", "2.5.1")
    assert text == (
        "needs another torch (2.2.2, 2.3.1 and 2.5.1 import it; missing: torch.library.infer_schema to take list[int])"
    )


def test_a_package_and_an_error_are_no_torchs_matter() -> None:
    given = facts(v2_2_2="needs package: hjson", v2_3_1="")
    assert wants(given, "needs package: hjson") == (
        Need("package", "hjson", "2.3.1", "2.3.1"), "needs the package hjson",
    )  # fmt: skip
    assert wants(facts(v2_2_2="ValueError: no"), "ValueError: no") == (Need("error", "", None, None), "")


def test_of_several_builds_one_that_fails_counts() -> None:
    given = [*facts(v2_2_2=CUSTOM_OP, v2_3_1=""), Import("c" * 64, "2.3.1", "2.3.1-cpu", "release", SCHEMA)]
    assert wants(given, CUSTOM_OP)[0].kind == "another torch"
