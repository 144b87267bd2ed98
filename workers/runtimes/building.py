"""Several builds at once: as many as are allowed, and none begun after one has failed.

On the straight line this stands between ``workers.cli``, which knows what a run needs, and an executor, which builds
one runtime. A build downloads, unpacks and compiles in turn, so a second one uses what the first leaves idle.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from service.catalog import RuntimeSpec

Check = Callable[[], None]
"""Raises InterruptedError when the build is to be given up; to be called often."""


def build_all(
    build: Callable[[RuntimeSpec, Check], None],
    runtimes: Sequence[RuntimeSpec],
    *,
    at_once: int,
    stop: threading.Event | None = None,
) -> None:
    """Call ``build`` for each of ``runtimes``, in their order, in ``at_once`` threads.

    After the first error none is begun any more; those in progress come to their end, and then that error is raised.
    Raises InterruptedError when ``stop`` is set, as soon as every build in progress has seen it.
    """
    stop, abandon, over = stop or threading.Event(), threading.Event(), threading.Semaphore(0)
    waiting, errors = deque(runtimes), list[BaseException]()

    def check() -> None:
        if stop.is_set() or abandon.is_set():
            raise InterruptedError

    def next_one() -> RuntimeSpec | None:
        with suppress(IndexError):
            return waiting.popleft()
        return None

    def work() -> None:
        try:
            while not errors and (runtime := next_one()):
                check()
                build(runtime, check)
        except BaseException as error:  # noqa: BLE001 - carried to the thread that waits
            errors.append(error)
        finally:
            over.release()

    threads = [threading.Thread(target=work, name=f"build-{number}") for number in range(min(at_once, len(runtimes)))]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            over.acquire()  # not join: Ctrl-C in the middle of that makes Python take the thread for ended
    finally:
        abandon.set()  # matters only after Ctrl-C where nobody turns it into ``stop``
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if errors:
        raise errors[0]
