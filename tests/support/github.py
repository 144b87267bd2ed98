"""GitHub as the service meets it: deliveries of its webhook, signed as it signs them.

Headers and fields are named as in GitHub's public documentation ("Webhook events and payloads", "Validating webhook
deliveries"): those that are read, and of the others the ones that must not be acted upon, such as the fork's address.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import urllib.parse
import uuid
from dataclasses import dataclass
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

SECRET = "It's a Secret to Everybody"
FORK = "https://github.com/stranger/fork.git"


def sign(body: bytes, secret: str = SECRET) -> str:
    """The header X-Hub-Signature-256."""
    return "sha256=" + hmac.digest(secret.encode(), body, hashlib.sha256).hex()


def push(repository: str, sha: str, branch: str = "master", **more: Any) -> dict[str, Any]:
    """Commits were pushed to a branch."""
    return {
        "ref": f"refs/heads/{branch}",
        "before": "1" * 40,
        "after": sha,
        "deleted": sha == "0" * 40,
        "repository": _repository(repository),
        "sender": {"login": "somebody"},
        **more,
    }


def pull_request(
    repository: str, sha: str, *, number: int = 7, action: str = "opened", by: str = "NONE", **more: Any
) -> dict[str, Any]:
    """Something happened to a pull request from a fork."""
    return {
        "action": action,
        "number": number,
        "pull_request": {
            "number": number,
            "head": {"sha": sha, "ref": "fix", "repo": {"clone_url": FORK, "html_url": FORK.removesuffix(".git")}},
            "base": {"ref": "master", "sha": "2" * 40, "repo": _repository(repository)},
            "author_association": by,
            "user": {"login": "stranger"},
        },
        "repository": _repository(repository),
        "sender": {"login": "stranger"},
        **more,
    }


def _repository(address: str) -> dict[str, Any]:
    return {"clone_url": address, "html_url": address.removesuffix(".git"), "full_name": "owner/name"}


@dataclass
class GitHub:
    """Delivers to the service behind ``client``."""

    client: TestClient
    secret: str = SECRET

    def deliver(
        self,
        event: str,
        payload: dict[str, Any],
        *,
        guid: str | None = None,
        form: bool = False,
        headers: dict[str, str] | None = None,
    ) -> Response:
        """POST a delivery; ``headers`` replace or, empty, leave out those that GitHub sends."""
        text = json.dumps(payload)
        body = (urllib.parse.urlencode({"payload": text}) if form else text).encode()
        sent = {
            "X-GitHub-Event": event,
            "X-GitHub-Delivery": guid or str(uuid.uuid4()),
            "X-Hub-Signature-256": sign(body, self.secret),
            "Content-Type": "application/x-www-form-urlencoded" if form else "application/json",
            **(headers or {}),
        }
        sent = {name: value for name, value in sent.items() if value}
        return self.client.post("/webhooks/github", content=body, headers=sent)
