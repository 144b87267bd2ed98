"""What can go wrong between the name of a subject and its checkout::

GradmatrixError
├── UsageError
│   └── UnknownSubject     no such form, release, commit, repository or folder
│       └── NotAllowed     a repository that is not on the allow-list
└── SubjectError
    ├── Unreachable        an index or a repository does not answer, or not as it should
    ├── WrongHash          a downloaded file is not the one that the index promised
    └── TreeRefused        an archive, a commit or a folder holds what no checkout may hold
"""

from __future__ import annotations

from service.errors import GradmatrixError, UsageError

# N818 wants "Error" at the end; these read better in an except clause as what happened.


class SubjectError(GradmatrixError):
    """A subject that was named rightly could not be turned into a checkout."""


class UnknownSubject(UsageError):  # noqa: N818
    """The named subject does not exist, or is named in no known form."""


class NotAllowed(UnknownSubject):
    """The repository is not on the allow-list. What would change that (:attr:`remedy`) is for the service's keeper."""

    def __init__(self, repository: str, hint: str, remedy: str) -> None:
        super().__init__(f"the repository {repository} is not on the allow-list; {hint}\n{remedy}")
        self.repository = repository


class Unreachable(SubjectError):  # noqa: N818
    """An index or a repository cannot be reached."""


class WrongHash(SubjectError):  # noqa: N818
    """The bytes that arrived are not those that the index promised."""


class TreeRefused(SubjectError):  # noqa: N818
    """The tree breaks a rule that keeps checkouts safe and bounded."""
