"""Stand-ins for an accelerator's streams, for code that overlaps exchanges with calculation where there are none.

On a CPU everything is done by the time that a call returns, so that waiting is nothing. What is left to exercise is the
logic around it: which gradient is taken from where, after which exchange.
"""

from __future__ import annotations

from typing import Any


class StandInStream:
    """A stream on which everything is already done."""

    def __init__(self) -> None:
        self._buffers: list[Any] = []

    def wait_stream(self, other: Any) -> None:
        """Nothing: what ``other`` was given is done. Raises TypeError where it is no stream, as torch's streams do."""
        if not isinstance(other, StandInStream):
            raise TypeError(f"a stream waits for a stream, not for {type(other).__name__}")

    def wait_event(self, event: Any) -> None:
        """Nothing: what happened before ``event`` is done."""

    @property
    def activation_buffer_list(self) -> list[Any]:
        """What linear layers keep until a backward has run; some releases delete it there."""
        return self._buffers

    @activation_buffer_list.deleter
    def activation_buffer_list(self) -> None:
        self._buffers = []


class StandInAccelerator:
    """An accelerator whose streams are stand-ins, and whose everything else is that of the one it stands before."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator
        self._stream = StandInStream()

    def default_stream(self, device_index: Any = None) -> StandInStream:
        """The one stream in which everything is calculated."""
        return self._stream

    current_stream = default_stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)
