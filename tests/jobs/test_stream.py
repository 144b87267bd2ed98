"""Lines from untrusted pipes, the exact reading of stdin, and whose code a frame is."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest

from jobs.bootstrap import _Exactly, read_line
from jobs.channel import believable
from jobs.faults import describe, owner_of
from jobs.stream import EventStream, LineReader, encode


def test_lines_arrive_whole_however_they_are_cut() -> None:
    read, write = os.pipe()
    reader = LineReader(read, limit=100)
    os.write(write, b"one\ntw")
    assert list(reader.read()) == [b"one"]
    os.write(write, b"o\nthree\n")
    assert list(reader.read()) == [b"two", b"three"]
    assert not reader.closed
    os.close(write)
    assert list(reader.read()) == []
    assert reader.closed
    assert not reader.overrun
    os.close(read)


def test_a_line_without_end_is_cut_off_at_the_limit() -> None:
    read, write = os.pipe()
    reader = LineReader(read, limit=100)
    os.write(write, b"x" * 101)
    assert list(reader.read()) == []
    assert reader.overrun
    os.close(write)
    os.close(read)


def test_stdin_is_read_no_further_than_the_spec_says() -> None:
    read, write = os.pipe()
    os.write(write, b"spec\n" + b"t" * 10 + b"answer\n")
    os.close(write)
    assert read_line(read) == b"spec\n"
    source = _Exactly(read, 10)
    assert source.read(4) == b"tttt"
    assert source.read() == b"t" * 6
    assert source.read(1) == b""
    assert read_line(read) == b"answer\n"
    assert read_line(read) == b""
    os.close(read)


def test_an_event_is_one_line_and_refuses_what_json_has_no_form_for() -> None:
    read, write = os.pipe()
    EventStream(write).emit("log", text="a\nb", v=7)
    os.close(write)
    line = os.read(read, 100)
    assert line.count(b"\n") == 1
    assert json.loads(line) == {"v": 1, "t": "log", "text": "a\nb"}
    os.close(read)
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode({"x": float("nan")})


def test_frames_name_whose_code_they_are(tmp_path: Path) -> None:
    module = tmp_path / "pkg" / "mod.py"
    module.parent.mkdir()
    module.write_text("def fail():\n    raise KeyError('0')\n")
    scope: dict[str, object] = {}
    exec(compile(module.read_text(), str(module), "exec"), scope)  # noqa: S102 - the file is ours
    try:
        scope["fail"]()  # type: ignore[operator]
    except KeyError as error:
        fault = describe(error, str(tmp_path))
    assert fault["type"] == "KeyError"
    assert fault["frames"][-1] == {"file": "pkg/mod.py", "line": 2, "function": "fail", "owner": "subject"}
    packages = sysconfig.get_paths()["purelib"]
    assert owner_of(f"{packages}/torch/nn/x.py", str(tmp_path)) == ("torch", "torch/nn/x.py")
    assert owner_of(f"{packages}/einops/x.py", str(tmp_path)) == ("other", "einops/x.py")
    assert owner_of("<frozen importlib>", str(tmp_path)) == ("python", "<frozen importlib>")


def test_a_syntax_error_names_the_file_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "broken_module.py").write_text("def f(:\n")
    sys.path.insert(0, str(tmp_path))
    try:
        import broken_module  # type: ignore[import-not-found]  # noqa: F401
    except SyntaxError as error:
        fault = describe(error, str(tmp_path))
    finally:
        sys.path.remove(str(tmp_path))
    assert fault["frames"][-1]["file"] == "broken_module.py"
    assert fault["frames"][-1]["line"] == 1


@pytest.mark.parametrize(
    "pids", [[1, 5], [-1, 5], [os.getpid(), 5], [os.getppid(), 5], [5, 5], [5], "55", [5, "6"], [5, 6, 7]]
)
def test_a_strangers_word_for_a_process_to_signal_is_checked(pids: object) -> None:
    assert not believable(pids, 2)
    assert believable([54321, 54322], 2)
