from __future__ import annotations

from pathlib import Path

import pytest

from service.errors import UsageError
from service.repro.source import Module, Source
from tests.service.repro.made import source

TEXT = """
import torch as t
from a.b import c as d
x = 1
if t:
    def under_if(a, b=1, *, c, e=2): pass
try:
    class Found:
        def method(self, a, b=0): pass
except ImportError:
    pass
"""


def test_names_are_those_at_the_top_whatever_guards_them() -> None:
    module = Module(TEXT)
    assert all(name in module for name in ("t", "d", "x", "under_if", "Found"))
    assert not any(name in module for name in ("method", "torch", "c", "a"))


def test_parameters_of_functions_and_methods_and_those_without_a_default() -> None:
    module = Module(TEXT)
    assert module.parameters("under_if") == ("a", "b", "c", "e")
    assert module.demanded("under_if") == ("a", "c")
    assert module.parameters("Found.method") == ("self", "a", "b")
    assert module.demanded("Found.method") == ("self", "a")
    assert module.parameters("x") == module.parameters("Found.other") == module.demanded("nothing") == ()


def test_what_is_no_python_has_no_names() -> None:
    assert "x" not in Module("x = (")


def test_a_module_is_a_file_or_a_package_and_may_be_missing(tmp_path: Path) -> None:
    found = source(tmp_path, {"a/b.py": "x = 1", "a/c/__init__.py": "y = 1"})
    assert found.has("a.b", "x")
    assert found.has("a.c", "y")
    assert not found.has("a.b", "y")
    assert found.module("a.d") is None


def test_files_that_are_not_here_are_named_with_how_to_get_them(tmp_path: Path) -> None:
    gone = Source(tmp_path / "none.tar", "deepspeed==0.1")
    with pytest.raises(UsageError, match=r"deepspeed==0\.1 are not on this machine.*gradmatrix run deepspeed==0\.1"):
        gone.module("a")
