"""What is wrong with a field of a request, and what would be right, in one shape whatever found it out.

On the straight line this stands between pydantic, which names the kind of an error, and ``service.api.problems`` and
the command line, which tell people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from service.errors import nearest
from service.words import inert

UNKNOWN_PARAMETER = "unknown_parameter"
SHOWN = 60
"""Characters of what was given that are repeated."""
TEXT, WHOLE, NUMBER, TRUTH, LIST, OBJECT = (
    "is to be a text", "is to be a whole number", "is to be a number", "is to be true or false", "is to be a list",
    "is to be an object",
)  # fmt: skip
SAID = {
    "missing": "is missing",
    "extra_forbidden": "is no field of this",
    UNKNOWN_PARAMETER: "is no parameter of this",
    **dict.fromkeys(("string_type", "string_unicode"), TEXT),
    **dict.fromkeys(("int_type", "int_parsing", "int_parsing_size", "int_from_float"), WHOLE),
    **dict.fromkeys(("float_type", "float_parsing", "finite_number"), NUMBER),
    **dict.fromkeys(("bool_type", "bool_parsing"), TRUTH),
    **dict.fromkeys(("list_type", "tuple_type", "set_type"), LIST),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type", "dataclass_type"), OBJECT),
    "literal_error": "is to be {expected}",
    "enum": "is to be {expected}",
    "string_too_long": "may have {max_length} characters at most",
    "string_too_short": "is to have {min_length} characters or more",
    "too_long": "may have {max_length} entries at most",
    "too_short": "is to have {min_length} entries or more",
    "greater_than": "is to be above {gt}",
    "greater_than_equal": "is to be {ge} or more",
    "less_than": "is to be below {lt}",
    "less_than_equal": "is to be {le} or less",
    "string_pattern_mismatch": "is to be of the form {pattern}",
    "value_error": "{error}",
    "json_invalid": "is no JSON: {error}",
}
"""By the kind of an error what would be right, or what was wrong where that says it all."""
UNSHOWN = ("missing", "extra_forbidden", UNKNOWN_PARAMETER, "json_invalid", "value_error")
"""Kinds of errors at which what was given says nothing more."""
UNREADABLE = "json_invalid"


def where(error: Mapping[str, Any]) -> str:
    """The field that is wrong: ``body.torch``."""
    return ".".join(map(str, error["loc"]))


def why(error: Mapping[str, Any], known: Iterable[str] = ()) -> str:
    """What is wrong with it and what would be right. ``known`` are the names that could have been meant."""
    kind, ctx = str(error["type"]), error.get("ctx", {})
    said = SAID[kind].format(**ctx) if kind in SAID else str(error["msg"])
    names = [*ctx.get("known", ()), *known]
    if kind in ("extra_forbidden", UNKNOWN_PARAMETER):
        return f"{said}; " + (nearest(str(error["loc"][-1]), names, 1) if names else "it takes none")
    return said if kind in UNSHOWN or kind not in SAID else f"{said}, not {_shown(error['input'])}"


def _shown(given: Any) -> str:
    text = inert(repr(given) if isinstance(given, str) else str(given))
    size = f" ({len(given)} of them)" if isinstance(given, list | tuple) else ""
    return (text if len(text) <= SHOWN else text[:SHOWN] + "…") + size
