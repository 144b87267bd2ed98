"""What an error is called: the same fault has the same name in every version, and machine trouble is told apart.

On the straight line this serves ``service.judge``. Pure: text in, text out. The signature is for grouping and names
neither lines nor numbers; the sentence beside it is for people and names both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from service.evidence import ErrorInfo, Frame
from service.imports import lacking

LENGTH = 160

_NORMAL: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"https?://\S+", "<url>"),
        (r"(?<![\w.])(?:/[\w.+@~-]+){2,}/?", "<path>"),
        (r"\b0x[0-9a-fA-F]+\b", "<address>"),
        (r"\b(?=[0-9a-f]*\d)[0-9a-f]{12,}\b", "<hex>"),
        (r"(?<![A-Za-z\d])[-+]?\d+(?:\.\d+)*(?:e[-+]?\d+)?", "<n>"),
        (r"<n>(?:, <n>)+", "<n>, …"),
        (r"\s+", " "),
    )
)
"""Applied in order. Digits inside a word stay: they are part of a name, as in float32."""

_MACHINE: tuple[tuple[str, str, str], ...] = (
    (r".*", r"\d+ active drivers", "triton is there and finds no GPU"),
    (r".*", r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver", "there is no GPU"),
    (r".*", r"NVML|nvml[A-Z]\w+|Driver/library version mismatch", "the GPU's management library failed"),
    (r".*", r"libcuda\.so[\w.]*: cannot open shared object file", "the GPU's driver is missing"),
    (r".*", r"CUDA_HOME (?:environment variable is not set|does not exist)", "there is no CUDA toolkit"),
    (r".*", r"No working C\+\+ compiler found|'which', '\w+\+\+'\]' returned non-zero", "there is no C++ compiler"),
    (r"FileNotFoundError", r"directory: '(?:\S*/)?(?:c\+\+|g\+\+|clang\+\+|cc|gcc|clang)'", "there is no C++ compiler"),
    (r".*", r"Ninja is required to load C\+\+ extensions", "ninja, which builds extensions, is not on the path"),
    (r".*", r"CUDA driver version is insufficient|CUDA unknown error", "the GPU's driver failed"),
    (r".*", r"No space left on device|\[Errno 28\]", "the disk is full"),
    (r".*", r"Disk quota exceeded|\[Errno 122\]", "the disk quota is used up"),
    (r".*", r"Cannot allocate memory|\[Errno 12\]|can't allocate memory|not enough memory", "memory ran out"),
    (r"MemoryError", r"", "memory ran out"),
    (r"(?:\w+\.)*OutOfMemoryError", r"", "the GPU's memory ran out"),
    (r".*", r"CUDA out of memory", "the GPU's memory ran out"),
    (r".*", r"Too many open files|\[Errno 2[34]\]", "no file can be opened any more"),
    (r".*", r"can't start new thread|Resource temporarily unavailable", "no thread or process can be started"),
    (r".*", r"Address already in use|\[Errno 98\]", "a port was taken"),
)  # fmt: skip
"""Errors that the machine makes: type, what the message holds, and what is wrong. Never the subject's."""

_MACHINE_COMPILED = tuple((re.compile(kind), re.compile(text), why) for kind, text, why in _MACHINE)


_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]+\b")

_WRAPPED = re.compile(r"(?:backend=\S+ raised|Failed running .*):\s*\n\s*(?:([A-Za-z_]\w*(?:Error|Exception)): )?(.+)")
"""How the tracer wraps what went wrong: the second line is the error."""

_RESUMED = re.compile(r"^(?:torch_dynamo_)?resume_in_|_at_\d+$")
"""What the tracer makes of a function's name after a graph break."""

_CONSEQUENCE = re.compile(
    r"Connection (?:closed|reset|refused)|Broken pipe|[Tt]imed out waiting|Socket Timeout|[Pp]eer (?:closed|reset)"
)
"""What a rank says when another one went away."""


@dataclass(frozen=True)
class Named:
    """An error's two names.

    signature  equal for equal faults in every version
    sentence   what happened and where, with line numbers
    """

    signature: str
    sentence: str


def normalise(message: str) -> str:
    """The first line of a message without addresses, paths, process numbers or any other number."""
    text = _first_line(message)
    for pattern, replacement in _NORMAL:
        text = pattern.sub(replacement, text)
    return _short(text.strip())


def name_error(error: ErrorInfo | None) -> Named:
    """The names of an error that a call raised."""
    if error is None:
        return Named("an error that was not described", "an error that was not described")
    frame = blamed(error)
    kind, message = _unwrapped(error)
    normal, plain = normalise(message), _short(_first_line(message))
    signature = f"{kind}: {normal}" if normal else kind
    sentence = f"{kind}: {plain.rstrip('.')}" if plain else kind
    if frame is None:
        return Named(signature, sentence)
    # Only the subject's own places are the same place in every torch version.
    place = f" in {frame.file} {_RESUMED.sub('', frame.function)}" if frame.owner == "subject" else ""
    return Named(f"{signature}{place}", f"{sentence}, at {frame.file}:{frame.line}")


def name_import_error(error: ErrorInfo | None) -> Named:
    """The names of an error that the import raised: the module, the line, and what was missing there, if that is it."""
    if error is None:
        return Named("unimportable", "the import failed with an error that was not described")
    frame = blamed(error)
    kind = error.type.rsplit(".", 1)[-1]
    where = f" in {_module(frame.file)}, line {frame.line}" if frame else ""
    if (lack := lacking(error)) is not None:
        return Named(lack, f"the import fails{where}: {lack}")
    normal = normalise(error.message)
    place = f" in {_module(frame.file)}" if frame else ""
    return Named(f"{kind}: {normal}{place}", f"the import fails{where}: {kind}: {_short(_first_line(error.message))}")


def machine_trouble(error: ErrorInfo | None) -> str | None:
    """What is wrong with the machine, if that is what this error says."""
    if error is None:
        return None
    for kind, text, why in _MACHINE_COMPILED:
        if kind.fullmatch(error.type) and text.search(error.message):
            return why
    return None


def is_consequence(error: ErrorInfo | None) -> bool:
    """Whether the error only says that another rank went away."""
    return error is not None and _CONSEQUENCE.search(error.message) is not None


def blamed(error: ErrorInfo) -> Frame | None:
    """The frame to name: the subject's innermost, else the innermost of all."""
    mine = [frame for frame in error.frames if frame.owner == "subject"]
    frames = mine or list(error.frames)
    return frames[-1] if frames else None


def _unwrapped(error: ErrorInfo) -> tuple[str, str]:
    """The error's own type and message, out of the tracer's wrapping."""
    kind = error.type.rsplit(".", 1)[-1]
    if (found := _WRAPPED.search(error.message)) is None:
        return kind, error.message
    return found[1] or kind, found[2]


def _module(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _first_line(message: str) -> str:
    line = next((line.strip() for line in message.splitlines() if line.strip()), "")
    return without_addresses(line)


def without_addresses(text: str) -> str:
    """``text`` without places in memory: other ones each time, and no help to anybody."""
    return _ADDRESS.sub("<address>", text)


def _short(text: str) -> str:
    return text if len(text) <= LENGTH else text[: LENGTH - 1] + "…"
