"""What is sent to the service, field by field, with the examples of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from jobs.contract import MODES, SUITES, TRANSPORTS, WORLD_SIZES
from service.models import DEVICE_STATES
from service.order import Wanted

PLAIN = r"^[^\x00]*$"
"""A text that a database can hold."""
Text = Annotated[str, Field(min_length=1, max_length=300)]
Reason = Literal["manual", "nightly", "bisection"]
Rule = dict[str, str | int]
MANY = 64


class CommitSubject(BaseModel):
    """A commit of a repository on the allow-list, by exactly one of its names. It is resolved to its full SHA."""

    model_config = ConfigDict(extra="forbid")
    repository: Text | None = Field(None, description="Its address; without one the default repository is meant.")
    commit: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{7,40}$")] | None = None
    branch: Text | None = None
    tag: Text | None = None
    pull: Annotated[int, Field(gt=0)] | None = Field(None, description="The number of a pull request: its newest head.")

    def words(self, default_repository: str) -> str:
        """The same as one word of the command line. Raises ValueError unless exactly one name is given."""
        refs = {
            "commit": self.commit,
            "branch": self.branch and f"refs/heads/{self.branch}",
            "tag": self.tag and f"refs/tags/{self.tag}",
            "pull": self.pull and f"refs/pull/{self.pull}/head",
        }
        given = [ref for ref in refs.values() if ref]
        if len(given) != 1:
            raise ValueError(f"a commit is named by exactly one of {', '.join(refs)}")
        return f"git+{self.repository or default_repository}@{given[0]}"


class SubmissionForm(BaseModel):
    """A request to evaluate subjects over a matrix. Axes that are left out have their usual values."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {
                    "subjects": ["deepspeed==0.18.3", {"branch": "master"}],
                    "torch": ["2.9.1", "2.11"],
                    "world_sizes": [2],
                }
            ]
        },
    )
    subjects: Annotated[list[Text | CommitSubject], Field(min_length=1, max_length=MANY)] = Field(
        description="Releases (deepspeed==0.18.3), commits (a SHA, git+URL@REF, or an object), or torch."
    )
    torch: Annotated[list[Text], Field(min_length=1, max_length=MANY)] = Field(
        description="Versions (2.11.0, 2.11), ranges (2.2..2.11), latest, all, or a channel (release, nightly)."
    )
    world_sizes: Annotated[list[int], Field(max_length=len(WORLD_SIZES))] = Field([], examples=[[2, 4]])
    transports: Annotated[list[Text], Field(max_length=len(TRANSPORTS))] = Field([], examples=[["gloo"]])
    modes: Annotated[list[Text], Field(max_length=len(MODES))] = Field([], examples=[["eager", "aot_eager"]])
    families: Annotated[list[Text], Field(max_length=MANY)] = Field([], examples=[["exchange"]])
    cases: Annotated[list[Text], Field(max_length=MANY)] = Field(
        [], description="Globs over case ids.", examples=[["exchange/dim0*"]]
    )
    suite: Literal[SUITES] | None = Field(None, examples=["default"])  # type: ignore[valid-type]
    include: Annotated[list[Rule], Field(max_length=MANY)] = Field([], examples=[[{"torch": "2.2.2", "mode": "eager"}]])
    exclude: Annotated[list[Rule], Field(max_length=MANY)] = Field([], examples=[[{"family": "engine"}]])
    priority: Annotated[int, Field(ge=0, le=100)] | None = Field(
        None, description="Higher goes first; without it what the reason is worth. Above 30 needs the scope admin."
    )
    reason: Reason = "manual"
    rerun: bool = Field(False, description="Run again what already has an answer.")

    def wanted(self, default_repository: str, transports: tuple[str, ...]) -> Wanted:
        """The words that the planner takes; without transports those in ``transports``. Raises ValueError."""
        subjects = [one if isinstance(one, str) else one.words(default_repository) for one in self.subjects]
        return Wanted(
            subjects=tuple(subjects),
            torch=tuple(self.torch),
            world_sizes=tuple(map(str, self.world_sizes)),
            transports=tuple(self.transports) or transports,
            modes=tuple(self.modes),
            families=tuple(self.families),
            cases=tuple(self.cases),
            suite=self.suite,
            include=tuple(self.include),
            exclude=tuple(self.exclude),
        )


class DeviceForm(BaseModel):
    """How a person finds a device: ``sick`` needs a reason, and ``well`` lets it have jobs again."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"state": "well"}]})
    state: Literal[DEVICE_STATES]  # type: ignore[valid-type]
    reason: Annotated[str, Field(max_length=300, pattern=PLAIN)] = Field("", examples=["its fan is being replaced"])

    @model_validator(mode="after")
    def _has_a_reason(self) -> Self:
        if self.state == "sick" and not self.reason.strip():
            raise ValueError("a device that is taken out of service needs a reason")
        return self


class Pin(BaseModel):
    """Whether everything that a submission cites is kept for good."""

    model_config = ConfigDict(extra="forbid")
    pinned: bool
