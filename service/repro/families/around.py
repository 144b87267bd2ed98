"""What cases have around a call: a layer's factors, a frozen input beside the other, activation checkpointing."""

from __future__ import annotations

from service.repro.given import Given

BEFORE, AFTER = "0.5", "4.0"
"""The factors of a layer: powers of two, which round nothing."""


def called(given: Given, inner: str, first: str = "") -> str:
    """``call``, from lines that define ``inner`` with the same arguments; ``first``: what ``call`` runs before."""
    names, wrap = given.arguments, given.params.get("wrap", "call")
    if wrap == "checkpoint":
        again = "torch.utils.checkpoint.checkpoint(inner, *tensors, use_reentrant=False)"
        return f"{inner}def call(*tensors):\n    return {again}\n"
    beside = given.loss == "frozen" and "c" in names
    if wrap == "call" and not beside and not first:
        return inner.replace("def inner(", "def call(")
    rest = [name for name in names[1:] if name not in ("c", "u")]
    inside = (f"inner({', '.join([around('{}', given), *rest])}){f' * {AFTER}' if wrap == 'layer' else ''}").format
    result = inside(names[0]) + (f" + {inside('c')}" if beside else "")
    return f"{inner}def call({', '.join(names)}):\n{first}    return {result}\n"


def around(text: str, given: Given) -> str:
    """``text``, as a layer hands it on."""
    return f"{text} * {BEFORE}" if given.params.get("wrap") == "layer" else text


def part(given: Given, name: str = "x") -> str:
    """Of ``h``, what one process holds, that goes into the call: beside a frozen input or not, in a layer or not."""
    text = f'(h["{name}"] + h["c"])' if given.loss == "frozen" and "c" in given.arguments else f'h["{name}"]'
    layer = given.params.get("wrap") == "layer"
    return f"{text} * {BEFORE}" if layer else text.strip("()")


def out(given: Given, text: str = "y") -> str:
    """What comes out of a call, as a layer hands it on."""
    return f"{text} * {AFTER}" if given.params.get("wrap") == "layer" else text
