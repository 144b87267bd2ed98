"""Equal faults have equal names, unlike ones have not, and what the machine does is told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.evidence import ErrorInfo, Frame
from service.signature import (
    blamed,
    is_consequence,
    machine_trouble,
    name_error,
    name_import_error,
    normalise,
)


def frames(*lines: tuple[str, int, str, str]) -> tuple[Frame, ...]:
    return tuple(Frame(*line) for line in lines)


IN_TOY = ("deepspeed/sequence/layer.py", 330, "single_all_to_all", "subject")
IN_TORCH = ("torch/distributed/distributed_c10d.py", 4321, "all_to_all_single", "torch")


def test_the_signature_has_no_lines_and_the_sentence_has() -> None:
    named = name_error(ErrorInfo("KeyError", "'0'", frames(IN_TOY, IN_TORCH)))
    assert named.signature == "KeyError: '<n>' in deepspeed/sequence/layer.py single_all_to_all"
    assert named.sentence == "KeyError: '0', at deepspeed/sequence/layer.py:330"


def test_torchs_places_are_not_in_the_signature() -> None:
    old = name_error(ErrorInfo("RuntimeError", "no", frames(IN_TORCH)))
    new = name_error(ErrorInfo("RuntimeError", "no", frames(("torch/x/other.py", 1, "renamed", "torch"))))
    assert old.signature == new.signature == "RuntimeError: no"
    assert old.sentence.endswith("at torch/distributed/distributed_c10d.py:4321")


def test_a_new_line_number_or_rank_is_the_same_fault_and_another_function_is_not() -> None:
    def of(line: int, message: str, function: str = "f") -> str:
        return name_error(ErrorInfo("ValueError", message, frames(("toy/a.py", line, function, "subject")))).signature

    assert of(10, "rank 3 of 4 is wrong") == of(12, "rank 1 of 2 is wrong")
    assert of(10, "x") != of(10, "x", "g")
    assert of(10, "x") != of(10, "y")


@pytest.mark.parametrize(
    ("message", "normal"),
    [
        ("shape [2, 8, 4] and [16] for 64", "shape [<n>, …] and [<n>] for <n>"),
        ("<Group object at 0x7f3a2b1c>", "<Group object at <address>>"),
        ("cannot open /tmp/work/x-12/layer.py", "cannot open <path>"),
        ("pid 4242 at 127.0.0.1:29500", "pid <n> at <n>:<n>"),
        ("float32 is not int64", "float32 is not int64"),
        ("off by -1.5e-07", "off by <n>"),
        ("commit 0123456789abcdef0123", "commit <hex>"),
        ("first\nsecond", "first"),
        ("\n\n  a   b ", "a b"),
        ("", ""),
        ("a" * 500, "a" * 159 + "…"),
    ],
)
def test_normalise(message: str, normal: str) -> None:
    assert normalise(message) == normal


@given(st.integers(0, 10**9), st.integers(0, 10**9))
def test_numbers_never_matter(a: int, b: int) -> None:
    assert normalise(f"rank {a} of {b}, [{a}, {b}]") == normalise(f"rank {b} of {a}, [{b}, {a}]")


@given(st.text(max_size=200))
def test_any_text_has_a_stable_name(text: str) -> None:
    assert normalise(normalise(text)) == normalise(text)
    assert "\n" not in name_error(ErrorInfo("E", text)).signature


def test_the_tracers_wrapping_is_taken_off() -> None:
    wrapped = ErrorInfo("BackendCompilerFailed", "backend='_record' raised:\nKeyError: '0'\n\nSet TORCH_LOGS=…")
    assert name_error(wrapped).signature == "KeyError: '<n>'"
    fake = ErrorInfo("TorchRuntimeError", "Failed running call_function f(*(FakeTensor(...),)):\nno such group")
    assert name_error(fake).signature == "TorchRuntimeError: no such group"


def test_a_function_resumed_after_a_graph_break_is_the_same_function() -> None:
    for function in ("resume_in_single_all_to_all", "torch_dynamo_resume_in_single_all_to_all_at_245"):
        resumed = ErrorInfo("KeyError", "'0'", frames((IN_TOY[0], 250, function, "subject")))
        assert name_error(resumed).signature == name_error(ErrorInfo("KeyError", "'0'", frames(IN_TOY))).signature


def test_errors_with_nothing_to_tell() -> None:
    assert name_error(None).signature == "an error that was not described"
    assert name_error(ErrorInfo("builtins.KeyError", "")).sentence == "KeyError"
    assert name_import_error(None).signature == "unimportable"
    assert blamed(ErrorInfo("E", "")) is None


@pytest.mark.parametrize(
    ("kind", "message", "signature"),
    [
        ("AttributeError", "module 'torch.library' has no attribute 'custom_op'",
         "needs another torch: torch.library.custom_op"),
        ("ModuleNotFoundError", "No module named 'hjson'", "needs package: hjson"),
        ("ModuleNotFoundError", "No module named 'deepspeed.nothing'",
         "ModuleNotFoundError: No module named 'deepspeed.nothing' in deepspeed.compile.ops"),
        ("NameError", "name 'Literal' is not defined",
         "NameError: name 'Literal' is not defined in deepspeed.compile.ops"),
        ("ValueError", "something else", "ValueError: something else in deepspeed.compile.ops"),
    ],
)  # fmt: skip
def test_an_import_is_named_by_what_it_lacks_else_by_its_error(kind: str, message: str, signature: str) -> None:
    error = ErrorInfo(kind, message, frames(("deepspeed/__init__.py", 2, "<module>", "subject"),
                                            ("deepspeed/compile/ops.py", 12, "<module>", "subject"),
                                            ("torch/library.py", 99, "custom_op", "torch")))  # fmt: skip
    named = name_import_error(error)
    assert named.sentence.startswith("the import fails in deepspeed.compile.ops, line 12: ")
    assert named.signature == signature
    assert named.sentence.endswith(signature.removesuffix(" in deepspeed.compile.ops"))
    package = ErrorInfo(kind, message, frames(("deepspeed/compile/__init__.py", 3, "<module>", "subject")))
    assert "in deepspeed.compile, line 3" in name_import_error(package).sentence


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("RuntimeError", "0 active drivers ([]). There should only be one."),
        ("RuntimeError", "No CUDA GPUs are available"),
        ("RuntimeError", "Found no NVIDIA driver on your system."),
        ("NVMLError_LibraryNotFound", "NVML Shared Library Not Found"),
        ("OSError", "[Errno 28] No space left on device"),
        ("OSError", "[Errno 12] Cannot allocate memory"),
        ("MemoryError", ""),
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB"),
        ("ImportError", "libcuda.so.1: cannot open shared object file: No such file or directory"),
        ("OSError", "CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
        ("MissingCUDAException", "CUDA_HOME does not exist, unable to compile CUDA op(s)"),
        ("InvalidCxxCompiler", "No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')"),
        ("CalledProcessError", "Command '['which', 'g++']' returned non-zero exit status 1."),
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/usr/bin/c++'"),
        ("RuntimeError", "Ninja is required to load C++ extensions"),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"),
    ],
)
def test_machine_trouble(kind: str, message: str) -> None:
    assert machine_trouble(ErrorInfo(kind, message, frames(IN_TOY))) is not None


@pytest.mark.parametrize(
    ("kind", "message"),
    [("KeyError", "'0'"), ("OSError", "[Errno 2] No such file or directory"), ("RuntimeError", "no drivers at all"),
     ("FileNotFoundError", "[Errno 2] No such file or directory: '/x/notcc'"),
     ("CalledProcessError", "Command '['which', 'git']' returned non-zero exit status 1."),
     ("OSError", "libmine.so: cannot open shared object file"), ("MyMemoryErrorLike", "x"),
     ("AttributeError", "'NoneType' object has no attribute 'memory'")],
)  # fmt: skip
def test_what_is_the_subjects_stays_the_subjects(kind: str, message: str) -> None:
    assert machine_trouble(ErrorInfo(kind, message)) is None
    assert machine_trouble(None) is None


def test_a_peer_that_went_away_is_a_consequence() -> None:
    assert is_consequence(ErrorInfo("RuntimeError", "[gloo] Connection closed by peer [127.0.0.1]:1"))
    assert not is_consequence(ErrorInfo("KeyError", "'0'"))
    assert not is_consequence(None)
