"""The tolerance policy: versioned data that ``service.judge`` is given beside the evidence."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, fields
from functools import lru_cache
from importlib.resources import files
from typing import Any

from service.errors import GradmatrixError, nearest

LATEST = "1"


class PolicyError(GradmatrixError):
    """A policy file is missing, or is not what a policy has to be."""


@dataclass(frozen=True)
class Tolerance:
    """``[tolerance]``: error allowed = max(k · noise, min(cap, c · eps · √n))."""

    k: float
    c: float
    cap: float
    exact_room: float


@dataclass(frozen=True)
class Classes:
    """``[classes]``: where one word ends and another begins."""

    insensitive: float
    partial_share: float
    permuted_room: float


@dataclass(frozen=True)
class PerType:
    """``[eps]`` and ``[difference]``: a number per floating type."""

    float64: float
    float32: float
    float16: float
    bfloat16: float

    def of(self, dtype: str) -> float:
        """The number for ``dtype``; whole numbers are calculated with in float64."""
        return float(getattr(self, dtype, self.float64))


@dataclass(frozen=True)
class Refusal:
    """``[refusal]``: what does not count as one."""

    unclear: tuple[str, ...]


@dataclass(frozen=True)
class Policy:
    """One version of the policy."""

    version: str
    tolerance: Tolerance
    classes: Classes
    eps: PerType
    difference: PerType
    refusal: Refusal


_SECTIONS: dict[str, type[Any]] = {
    "tolerance": Tolerance, "classes": Classes, "eps": PerType, "difference": PerType, "refusal": Refusal,
}  # fmt: skip


@lru_cache
def load_policy(version: str = LATEST) -> Policy:
    """The policy of that version. Raises PolicyError naming the known ones."""
    folder = files("service.policies")
    known = sorted(item.name[1:-5] for item in folder.iterdir() if item.name.endswith(".toml"))
    if version not in known:
        raise PolicyError(f"no policy version {version!r}; {nearest(version, known)}")
    policy = parse_policy((folder / f"v{version}.toml").read_text(encoding="utf-8"))
    if policy.version != version:
        raise PolicyError(f"v{version}.toml says that it is version {policy.version!r}")
    return policy


def parse_policy(text: str) -> Policy:
    """A policy from its TOML. Raises PolicyError naming the key that is unknown, missing or of the wrong type."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"the policy is not TOML: {error}") from None
    _keys("the policy", data, ("version", *_SECTIONS))
    if not isinstance(data["version"], str):
        raise PolicyError("version is not text")
    return Policy(
        version=data["version"], **{name: _section(name, kind, data[name]) for name, kind in _SECTIONS.items()}
    )


def _section(name: str, kind: type[Any], data: Any) -> Any:
    if not isinstance(data, dict):
        raise PolicyError(f"[{name}] is not a table")
    _keys(f"[{name}]", data, tuple(field.name for field in fields(kind)))
    if kind is Refusal:
        if not isinstance(data["unclear"], list) or not all(isinstance(word, str) for word in data["unclear"]):
            raise PolicyError("[refusal] unclear is not a list of error types")
        return Refusal(tuple(data["unclear"]))
    for key, value in data.items():
        if type(value) not in (int, float) or not 0 < value < 1e6:
            raise PolicyError(f"[{name}] {key} = {value!r} is not a number above 0")
    return kind(**{key: float(value) for key, value in data.items()})


def _keys(where: str, data: dict[str, Any], known: tuple[str, ...]) -> None:
    for key in data:
        if key not in known:
            raise PolicyError(f"{where} has an unknown key {key!r}; {nearest(key, known)}")
    if missing := [key for key in known if key not in data]:
        raise PolicyError(f"{where} lacks {', '.join(missing)}")
