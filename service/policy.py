"""The tolerance policy: versioned data that ``service.judge`` is given beside the evidence."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from service.errors import GradmatrixError, nearest

LATEST = "1"
LONGEST_VERSION = 32


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


def shipped() -> tuple[str, ...]:
    """The versions that this program brings."""
    folder = files("service.policies")
    return tuple(sorted(item.name[1:-5] for item in folder.iterdir() if item.name.endswith(".toml")))


def read_policy(path: Path) -> Policy:
    """The policy in a file of somebody's own. Raises PolicyError, naming the file."""
    try:
        return parse_policy(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from None


def differences(one: Policy, two: Policy) -> list[str]:
    """What ``two`` has otherwise than ``one``, a clause per value: ``tolerance.k 4 -> 8``."""
    said = []
    before, after = asdict(one), asdict(two)
    for section in _SECTIONS:
        for key, old in before[section].items():
            new = after[section][key]
            if isinstance(old, tuple):
                gone, come = sorted(set(old) - set(new)), sorted(set(new) - set(old))
                said += [f"{section}.{key} without {', '.join(gone)}"] if gone else []
                said += [f"{section}.{key} with {', '.join(come)}"] if come else []
            elif old != new:
                said.append(f"{section}.{key} {old:g} -> {new:g}")
    return said


@lru_cache
def load_policy(version: str = LATEST) -> Policy:
    """The policy of that version. Raises PolicyError naming the known ones."""
    known = shipped()
    if version not in known:
        raise PolicyError(f"no policy version {version!r}; {nearest(version, known)}")
    policy = parse_policy((files("service.policies") / f"v{version}.toml").read_text(encoding="utf-8"))
    if policy.version != version:
        raise PolicyError(f"v{version}.toml says that it is version {policy.version!r}")
    return policy


MOST = {"tolerance": {"k": 1000.0, "c": 1000.0}}
"""How large a number of a policy file may be, where it is none of those that are shares or relative errors: those end
at 1, which is all of it."""


def parse_policy(text: str) -> Policy:
    """A policy from its TOML.

    Raises PolicyError naming the key that is unknown, missing, of the wrong type or out of its range. What is stored
    is not asked for its range: it was judged by, whatever it is.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PolicyError(f"the policy is not TOML: {error}") from None
    policy = policy_from_data(data)
    for name in _SECTIONS:
        for key, value in asdict(policy)[name].items():
            most = MOST.get(name, {}).get(key, 1.0)
            if isinstance(value, float) and value > most:
                raise PolicyError(f"[{name}] {key} = {value:g} is out of range: above 0, and at most {most:g}")
    return policy


def policy_from_data(data: dict[str, Any]) -> Policy:
    """The inverse of :func:`policy_to_data`. Raises PolicyError like :func:`parse_policy`."""
    _keys("the policy", data, ("version", *_SECTIONS))
    version = data["version"]
    if not isinstance(version, str) or not 0 < len(version) <= LONGEST_VERSION or not version.isprintable():
        raise PolicyError(f"version is not a text of 1 to {LONGEST_VERSION} characters")
    return Policy(version=version, **{name: _section(name, kind, data[name]) for name, kind in _SECTIONS.items()})


def policy_to_data(policy: Policy) -> dict[str, Any]:
    """The policy as plain JSON types, in the form of its TOML file."""
    data = asdict(policy)
    data["refusal"] = {"unclear": list(policy.refusal.unclear)}
    return data


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
