"""Which errors are one although torch's versions word them in several ways.

On the straight line this stands before whatever compares two signatures: ``service.edges``, ``service.findings`` and
``service.distinct``. Pure; the words are one table.
"""

from __future__ import annotations

import re

_TORCH_SAYS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^ValueError: (?=torch\.cat\(\): )", "RuntimeError: "),  # the type is another one from 2.9 on
        (r"^TorchRuntimeError: ", "RuntimeError: "),  # the tracer's, for what a call on fake tensors raised
        (r"(?<=: )(?:addmm|baddbmm|bmm|mm): (?=mat1 and mat2 )", ""),  # 2.15 names the operator
        (r"<n>(?:x\d+)+", "<n>x<n>"),
        (r"(?<=[\[(*, ])s\d+\b", "<n>"),  # a traced size that is not known
        (r"\(<n>//<n>\)", "<n>"),
        (r"<n>(?:\*<n>)+", "<n>"),
        (r"<n>(?:, (?:<n>|…))+", "<n>, …"),
        (r"(?<=dimension <n>)\)", ""),
        (r"(?<=<n> vs <n>)\. Received data size .*", ""),  # gloo explains it in some builds
    )
)
"""What versions of torch, and its tracer, word in several ways, made one. Applied in order to a signature."""


def same_name(signature: str) -> str:
    """The signature with what torch's versions word otherwise made alike: what two of them are compared by.

    It is applied where signatures are read, so that what was stored and what is found today are one fault.
    """
    for pattern, replacement in _TORCH_SAYS:
        signature = pattern.sub(replacement, signature)
    return signature
