"""Where packages come from: pip's own configuration, read the way pip reads it, so that no host's name is in our code.

On the straight line this stands beside ``service.config``: ``service.subjects`` takes releases from these indexes, and
``workers.runtimes`` hands them to uv. The files are read here instead of asking ``pip config list``, because an
environment need not have pip in it, and because starting pip takes a second; a test holds both to the same answer.
"""

from __future__ import annotations

import configparser
import os
import sys
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from service.errors import UsageError

ETC = Path("/etc")


class PipConfigError(UsageError):
    """One of pip's configuration files cannot be read."""


@dataclass(frozen=True)
class PipConfig:
    """What pip would use for ``pip install``.

    index_url         None: nothing is configured, so the client library's own default holds
    extra_index_urls  further indexes, https, http or file
    find_links        folders or pages of files
    cert              a bundle of certificates; None: the client library's own
    proxy             None: the usual environment variables hold
    no_index          no index at all may be asked, only find_links
    """

    index_url: str | None = None
    extra_index_urls: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    cert: str | None = None
    proxy: str | None = None
    no_index: bool = False

    @property
    def index_urls(self) -> tuple[str | None, ...]:
        """Every index in the order in which pip asks; None stands for the client library's default."""
        return () if self.no_index else (self.index_url, *self.extra_index_urls)


def pip_configuration(environment: Mapping[str, str] | None = None) -> PipConfig:
    """Pip's configuration for this interpreter and the given environment (this process's own when None)."""
    env = os.environ if environment is None else environment
    values: dict[str, str] = {}
    for path in _files(env):
        values.update(_read(path))
    options = {key.split(".", 1)[1]: value for key, value in values.items() if key.startswith("global.")}
    options |= {key.split(".", 1)[1]: value for key, value in values.items() if key.startswith("install.")}
    options |= {
        key[4:].lower().replace("_", "-"): value for key, value in env.items() if key.startswith("PIP_") and value
    }
    cert = options.get("cert")
    return PipConfig(
        index_url=_stripped(options.get("index-url", options.get("pypi-url"))),
        extra_index_urls=tuple(options.get("extra-index-url", "").split()),
        find_links=tuple(options.get("find-links", "").split()),
        cert=str(Path(cert).expanduser()) if cert else None,
        proxy=_stripped(options.get("proxy")),
        no_index=options.get("no-index", "").strip().lower() in ("y", "yes", "t", "true", "on", "1"),
    )


def shown(url: str | None) -> str:
    """An index address for people: without the password that it may carry."""
    if url is None:
        return "the default package index"
    parts = urllib.parse.urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urllib.parse.urlunsplit(parts._replace(netloc=f"****@{host}" if "@" in parts.netloc else host))


def _files(env: Mapping[str, str]) -> list[Path]:
    """The files that pip reads, the strongest last."""
    named = env.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(env.get("HOME") or Path.home())
    found = [*_machine_files(env)]
    if not (named and Path(named).exists()):
        found += [home / ".pip" / "pip.conf", _user_file(env, home)]
    found.append(Path(sys.prefix) / ("pip.ini" if sys.platform == "win32" else "pip.conf"))
    return [*found, Path(named)] if named else found


def _machine_files(env: Mapping[str, str]) -> list[Path]:
    if sys.platform == "darwin":
        return [Path("/Library/Application Support/pip/pip.conf")]
    if sys.platform == "win32":
        return [Path(platformdirs.site_config_dir("pip", appauthor=False)) / "pip.ini"]
    roots = (env.get("XDG_CONFIG_DIRS", "").strip() or "/etc/xdg").split(os.pathsep)
    return [*(Path(root) / "pip" / "pip.conf" for root in roots if root), ETC / "pip.conf"]


def _user_file(env: Mapping[str, str], home: Path) -> Path:
    if sys.platform == "win32":
        return Path(platformdirs.user_config_dir("pip", appauthor=False, roaming=True)) / "pip.ini"
    if sys.platform == "darwin" and (folder := home / "Library" / "Application Support" / "pip").is_dir():
        return folder / "pip.conf"
    root = "" if sys.platform == "darwin" else env.get("XDG_CONFIG_HOME", "").strip()
    return Path(root or home / ".config") / "pip" / "pip.conf"


def _read(path: Path) -> dict[str, str]:
    """One file's ``section.key`` values; empty ones are as good as absent, as for pip."""
    parser = configparser.RawConfigParser()
    try:
        parser.read_string(path.read_text("utf-8"), str(path))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError, configparser.Error) as error:
        raise PipConfigError(f"pip's configuration file {path} cannot be read: {error}") from None
    return {
        f"{section}.{key.lower().replace('_', '-').removeprefix('--')}": value
        for section in parser.sections()
        for key, value in parser.items(section)
        if value
    }


def _stripped(value: str | None) -> str | None:
    return value.strip() or None if value else None
