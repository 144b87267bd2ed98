"""Settings: one TOML file and environment variables; whatever is misspelt there is an error.

On the straight line this stands before everything: the command line loads the settings once and hands them on.

The file is ``$GRADMATRIX_CONFIG``, else ``config.toml`` in the home folder. A variable ``GRADMATRIX_<KEY>`` goes before
the file's key of that name; of a table's key it is ``GRADMATRIX_<TABLE>__<KEY>``. ``Settings(...)`` itself reads
neither, so that tests get what they write and nothing of the machine they run on.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import tomllib
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from platformdirs import user_data_dir
from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from jobs.contract import Deadlines
from service.errors import UsageError, nearest
from service.logs import LogFormat
from service.retention import Retention

PREFIX = "GRADMATRIX_"
CONFIG_VARIABLE = PREFIX + "CONFIG"
DRIVER = "postgresql+psycopg"
ASSOCIATIONS = ("OWNER", "MEMBER", "COLLABORATOR", "CONTRIBUTOR", "FIRST_TIME_CONTRIBUTOR", "FIRST_TIMER", "MANNEQUIN")
"""What GitHub says of the author of a pull request, but for NONE."""


class ConfigError(UsageError):
    """The settings are wrong: a misspelt key, a value of the wrong form, or a file that cannot be read."""


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def _words(value: Any) -> Any:
    """A list in an environment variable is written with commas or spaces; in the file it is a TOML list."""
    return value.replace(",", " ").split() if isinstance(value, str) else value


def local_path(address: str) -> str | None:
    """The absolute path that ``/path`` or ``file:///path`` names; None where the address names none."""
    parts = urllib.parse.urlsplit(address) if address.startswith("file://") else None
    path = address if parts is None else "" if parts.netloc else urllib.parse.unquote(parts.path)
    return str(Path(path)) if path.startswith("/") and "\0" not in path else None


def _default_home() -> Path:
    return Path(user_data_dir("gradmatrix"))


def images_folder() -> Path:
    """``images`` of this package: beside ``service`` in a clone, inside ``workers`` when installed."""
    root = Path(__file__).resolve().parent.parent
    beside = root / "images"
    return beside if beside.is_dir() else root / "workers" / "images"


def _default_catalog() -> Path:
    return images_folder() / "catalog.toml"


def _database_url(value: str) -> str:
    """The address of a PostgreSQL database, with the driver that is installed."""
    scheme, there, rest = value.partition("://")
    if not there or scheme not in ("postgresql", "postgres", DRIVER) or not urllib.parse.urlsplit(value).path[1:]:
        raise ValueError("the database of a fleet is PostgreSQL: postgresql://USER@HOST/NAME; leave it out for a file")
    return f"{DRIVER}://{rest}"


def listen_address(value: str) -> str:
    """``HOST:PORT`` as it is. Raises ValueError for anything else."""
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("an address to listen on is HOST:PORT, such as 127.0.0.1:8470 or [::]:8470")
    return value


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]
DatabaseUrl = Annotated[str, AfterValidator(_database_url)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_words)]
Seconds = Annotated[float, Field(gt=0)]
Bytes = Annotated[int, Field(gt=0)]
Numbers = Annotated[tuple[int, ...], BeforeValidator(_words)]


@dataclass(frozen=True)
class Webhook:
    """What GitHub's webhook brings, and what is asked of it.

    secret       what GitHub signs with, at least 16 characters; without one no delivery is taken
    branches     whose pushes are tested
    torch        on which versions, as ``--torch`` takes them
    world_sizes  at which world sizes; without any at the usual one
    transports   over which; without any over those that hosts here have
    modes        in which; without any in all
    suite        which suite; without one the default one
    trusted      what GitHub must say of the author of a pull request that needs no approval
    """

    secret: Annotated[str, Field(min_length=16)] | None = dataclasses.field(default=None, repr=False)
    branches: Words = ("master", "main")
    torch: Words = ("latest",)
    world_sizes: Numbers = ()
    transports: Words = ()
    modes: Words = ()
    suite: str | None = None
    trusted: Words = ("OWNER", "MEMBER", "COLLABORATOR")


_TABLES = {"deadlines": Deadlines, "retention": Retention, "webhook": Webhook}


class Settings(BaseSettings):
    """Everything that can be configured, with its defaults.

    home                where checkouts, runtimes, the package cache and the database lie
    catalog             the catalogue of runtimes
    database_url        the database of a fleet, postgresql+psycopg://…; without one it is a file in home
    host                the name under which this host claims; without one the machine's own
    listen              the address that the service listens on, HOST:PORT; port 0 is any that is free
    public_reading      whether results may be read without a token
    broker_url          Redis, for a fleet: redis://HOST:PORT/0; without one only workers in the process are told
    server              the service that submit, cancel and rerun talk to; without one the one at listen
    token               the token that they send it
    log                 how the service logs: ``text`` for people, ``json`` with an object per line for programs
    variant             which build of torch is meant by a bare version: ``index``, ``cpu`` …
    executor            what jobs run in here: ``venv``, virtual environments, or ``docker``, containers
    base_image          what images of runtimes are built on: any Debian with the catalogue's Python
    registry            the repository that images are pulled from before they are built, and pushed to: HOST/NAME
    default_repository  the repository of a bare SHA: an https address, /path or file:///path
    repositories        what commits are taken from besides it, written likewise; all others are refused
    archive_bytes       cap on an unpacked source archive, in all
    archive_file_bytes  cap on one file in it
    archive_files       cap on the number of its members
    fetch_s             cap on the time of one download or git fetch
    connect_s           how long an unreachable index may keep one waiting
    gpus                whether GPUs are leased; left out, only gradmatrix worker leases those that there are
    cpu_slots           ranks that run at once on a host without GPUs; 0: one per core
    rank_memory_bytes   memory that one rank may take; 0: its share of three quarters of the machine's
    deadlines           seconds per case, compilation, import, job and attempt
    webhook             what GitHub's webhook brings, and what is asked of it: see github.md
    keep_package_cache  whether downloaded packages are kept for the next runtime
    disk_spare_bytes    what building a runtime must leave free
    parallel_builds     runtimes that are built at once, where the disk has room for them
    cells_max           cap on the cells that one submission to a service may ask for
    retention           days for which tensors, logs and unanswered attempts are kept, and whether to apply that
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    home: AbsolutePath = Field(default_factory=_default_home)
    catalog: AbsolutePath = Field(default_factory=_default_catalog)
    database_url: DatabaseUrl | None = None
    host: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,255}$")] | None = None
    listen: Annotated[str, AfterValidator(listen_address)] = "127.0.0.1:8470"
    public_reading: bool = False
    broker_url: Annotated[str, Field(pattern=r"^redis(s|\+socket)?://\S+$")] | None = None
    server: Annotated[str, Field(pattern=r"^https?://\S+$")] | None = None
    token: Annotated[str, Field(min_length=1)] | None = None
    log: LogFormat = "text"
    variant: str = Field(default="index", pattern=r"^[a-z][a-z0-9]*$")
    executor: Literal["venv", "docker"] = "venv"
    base_image: Annotated[str, Field(min_length=1)] = "python:3.11-slim-bookworm"
    registry: Annotated[str, Field(pattern=r"^[a-z0-9.-]+(:\d+)?(/[a-z0-9._-]+)+$")] | None = None
    default_repository: str = "https://github.com/deepspeedai/DeepSpeed"
    repositories: Words = ()
    archive_bytes: Bytes = 2**30
    archive_file_bytes: Bytes = 64 * 2**20
    archive_files: Annotated[int, Field(gt=0)] = 50_000
    fetch_s: Seconds = 600.0
    connect_s: Seconds = 15.0
    gpus: bool | None = None
    cpu_slots: Annotated[int, Field(ge=0)] = 0
    rank_memory_bytes: Annotated[int, Field(ge=0)] = 0
    deadlines: Deadlines = Field(default_factory=Deadlines)
    webhook: Webhook = Field(default_factory=Webhook)
    keep_package_cache: bool = True
    disk_spare_bytes: Annotated[int, Field(ge=0)] = 2**30
    parallel_builds: Annotated[int, Field(gt=0)] = 2
    cells_max: Annotated[int, Field(gt=0)] = 100_000
    retention: Retention = Field(default_factory=Retention)

    @property
    def slots(self) -> int:
        """CPU slots of this host, with 0 replaced by what it means."""
        return self.cpu_slots or os.cpu_count() or 1

    @property
    def host_name(self) -> str:
        """What this host is called: a container's own name changes whenever it is made anew."""
        return self.host or socket.gethostname()

    @property
    def allowed_repositories(self) -> tuple[str, ...]:
        """Every repository that commits may come from, the default one first."""
        return tuple(dict.fromkeys((self.default_repository, *self.repositories)))

    def allowing(self, repository: str) -> str:
        """What to write where, so that commits of one more repository are allowed."""
        file, variable = settings_file(self.home), PREFIX + "REPOSITORIES"
        line = f"repositories = {json.dumps([*self.repositories, repository], ensure_ascii=False)}"
        said = f"to allow it, put this line into {file}, above any [table] and in place of a line repositories there is"
        if variable in os.environ:  # the line alone would change nothing
            said += f", and unset {variable}, which goes before the file"
        return f"{said}:\n{line}"

    @field_validator("default_repository", "repositories")
    @classmethod
    def _addresses(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return _address(value) if isinstance(value, str) else tuple(_address(address) for address in value)

    @field_validator("deadlines")
    @classmethod
    def _nested(cls, value: Deadlines) -> Deadlines:
        if min(dataclasses.astuple(value)) <= 0:
            raise ValueError("every deadline must be above 0 seconds")
        if not value.case_s <= value.job_s <= value.attempt_s:
            raise ValueError("case_s may not be above job_s, nor job_s above attempt_s: each is inside the next")
        return value

    @field_validator("retention")
    @classmethod
    def _days(cls, value: Retention) -> Retention:
        if min(value.tensors_days, value.logs_days, value.attempts_days) < 0:
            raise ValueError("days are 0, for ever, or more")
        return value

    @field_validator("webhook")
    @classmethod
    def _believable(cls, value: Webhook) -> Webhook:
        for word in value.trusted:
            if word not in ASSOCIATIONS:
                raise ValueError(
                    f"trusted: {word!r} is no author_association of anyone known; {nearest(word, ASSOCIATIONS)}"
                )
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Only the arguments: :func:`load_settings` is where file and environment come in."""
        return (init_settings,)


def _address(address: str) -> str:
    """An https address as it is, and a local one as its path."""
    if address.startswith("https://"):
        return address
    if path := local_path(address):
        return path
    raise ValueError(f"{address!r} is neither an https:// address nor an absolute path (/path or file:///path)")


def load_settings() -> Settings:
    """The settings of this process, read anew. Raises ConfigError, naming the nearest known key."""
    _refuse_unknown(
        (name for name in os.environ if name.startswith(PREFIX)), _known_variables(), "the environment variable"
    )
    path = _file()
    from_file = _read(path) if path else {}
    try:
        from_environment = EnvSettingsSource(Settings)()
        return Settings(**_merged(from_file, from_environment))
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(dict(entry), path) for entry in error.errors())) from None
    except ValueError as error:  # a table given as one variable that is not JSON
        raise ConfigError(f"an environment variable cannot be read: {error}") from None


def settings_file(home: Path) -> Path:
    """Where the file is looked for: the named one, or the one in the home folder."""
    named = os.environ.get(CONFIG_VARIABLE)
    return _absolute(Path(named)) if named else home / "config.toml"


def _file() -> Path | None:
    """The file to read: the named one, which then must exist, or the one in the home folder if it is there."""
    home = os.environ.get(PREFIX + "HOME")
    path = settings_file(_absolute(Path(home) if home else _default_home()))
    return path if path.exists() or os.environ.get(CONFIG_VARIABLE) else None


def _read(path: Path) -> dict[str, Any]:
    """The file's keys, all known; relative paths in it are relative to the file."""
    try:
        data = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the settings file {path}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"the settings file {path} is not TOML: {error}") from None
    _refuse_unknown(data, Settings.model_fields, f"{path}: the key")
    for table, cls in _TABLES.items():
        if isinstance(data.get(table), dict):
            _refuse_unknown(
                data[table], (field.name for field in dataclasses.fields(cls)), f"{path}: [{table}]: the key"
            )
    if "home" in data and not os.environ.get(CONFIG_VARIABLE):
        raise ConfigError(f"{path}: home cannot be set in the file that is found through it; set {PREFIX}HOME")
    for key in ("home", "catalog"):
        if isinstance(data.get(key), str):
            data[key] = path.parent / Path(data[key]).expanduser()
    return data


def _known_variables() -> list[str]:
    tables = [f"{table}__{field.name}" for table, cls in _TABLES.items() for field in dataclasses.fields(cls)]
    return [CONFIG_VARIABLE, *(PREFIX + name.upper() for name in [*Settings.model_fields, *tables])]


def _refuse_unknown(names: Iterable[str], known: Iterable[str], what: str) -> None:
    known = set(known)
    wrong = [f"{what} {name} is not known: {nearest(name, known)}" for name in names if name not in known]
    if wrong:
        raise ConfigError("\n".join(wrong))


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` over ``below``, tables key by key."""
    both = dict(below)
    for key, value in above.items():
        under = both.get(key)
        both[key] = {**under, **value} if isinstance(under, dict) and isinstance(value, dict) else value
    return both


def _explain(entry: dict[str, Any], path: Path | None) -> str:
    """One error of pydantic's in words of where the value was written."""
    parts = [str(part) for part in entry["loc"]]
    names = [PREFIX + "__".join(parts[:count]).upper() for count in (1, 2)]
    written = next((name for name in reversed(names) if name in os.environ), None)
    # What is wrong with a table as a whole was written as some of its keys.
    written = written or " ".join(sorted(name for name in os.environ if name.startswith(f"{names[0]}__")))
    where = written or f"{path}: {'.'.join(parts)}"
    return f"{where}: {entry['msg'].removeprefix('Value error, ')}"
