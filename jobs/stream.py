"""The event stream on stdout, owned by the launcher alone, and the line protocol between it and its children."""

from __future__ import annotations

import base64
import ctypes
import json
import os
from collections.abc import Iterator
from typing import Any

from jobs import accelerator
from jobs.contract import SCHEMA


def encode(message: dict[str, Any]) -> bytes:
    """One message as one line. NaN and Infinity have no JSON form and are refused by raising ValueError."""
    return json.dumps(message, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """One message from a process that may run a stranger's code. Raises ValueError unless it is a JSON object."""
    try:
        message = json.loads(line, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(message, dict):
        raise ValueError("not an object")
    return message


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} has no JSON form")


def write_all(fd: int, data: bytes) -> None:
    """Write every byte of ``data``; a pipe takes what it has room for."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def tensor_message(role: str, name: str, tensor: Any) -> dict[str, Any]:
    """A tensor (or None, for an absent gradient) as it travels: raw little-endian bytes in base64."""
    if tensor is None:
        return {"role": role, "name": name, "dtype": None, "shape": None, "data": None}
    if tensor.is_cuda:
        accelerator.settle()
    plain = tensor.detach().cpu().contiguous()
    # Straight from memory: numpy need not be there, and has no bfloat16.
    data = ctypes.string_at(plain.data_ptr(), plain.numel() * plain.element_size()) if plain.numel() else b""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {
        "role": role,
        "name": name,
        "dtype": dtype,
        "shape": list(tensor.shape),
        "data": base64.b64encode(data).decode(),
    }


def tensor_of(message: dict[str, Any]) -> Any:
    """The inverse of :func:`tensor_message`, for a tensor that has elements."""
    import torch

    data = bytearray(base64.b64decode(message["data"]))
    return torch.frombuffer(data, dtype=getattr(torch, message["dtype"])).reshape(message["shape"])


class EventStream:
    """Writes events to the stream that the outside reads."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """The descriptor written to."""
        return self._fd

    def emit(self, kind: str, **fields: Any) -> None:
        """Write one event of type ``kind``."""
        write_all(self._fd, encode({**fields, "v": SCHEMA, "t": kind}))


class LineReader:
    """Splits what arrives on a non-blocking file descriptor into lines; ``closed`` once its writer is gone."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.closed = False
        self.overrun = False
        self._limit = limit
        self._rest = b""
        os.set_blocking(fd, False)

    def read(self) -> Iterator[bytes]:
        """Yield the complete lines that are there now."""
        while not self.closed:
            try:
                data = os.read(self.fd, 1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > self._limit:
                self.overrun = self.closed = True
                return
            yield from lines

    def close(self) -> None:
        """Give the descriptor back."""
        self.closed = True
        os.close(self.fd)
