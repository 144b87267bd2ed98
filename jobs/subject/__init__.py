"""Finding a subject's adapter: one of ours by name, or the one that a checkout brings along."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from jobs.subject.base import Subject

ADAPTER_FILE = "gradmatrix_adapter.py"


def load_adapter(name: str, root: str) -> Subject:
    """The adapter called ``name`` for the checkout at ``root``.

    ``deepspeed`` is ours. ``checkout`` is ``adapter()`` of the file gradmatrix_adapter.py at the checkout's root: that
    runs the checkout's code, so only a process that may hold a stranger's code may ask for it.
    """
    if name == "deepspeed":
        from jobs.subject.deepspeed import DeepSpeed

        return DeepSpeed()
    if name == "checkout":
        return _from_checkout(Path(root) / ADAPTER_FILE)
    raise LookupError(f"no adapter is called {name!r}; there are 'deepspeed', and 'checkout' for a tree with its own")


def _from_checkout(path: Path) -> Subject:
    spec = importlib.util.spec_from_file_location("gradmatrix_adapter", path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise LookupError(f"the checkout has no {ADAPTER_FILE} at its root")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    make = getattr(module, "adapter", None)
    subject = make() if callable(make) else None
    if not isinstance(subject, Subject):
        raise LookupError(f"{ADAPTER_FILE} has no function adapter() that returns a jobs.subject.base.Subject")
    return subject
