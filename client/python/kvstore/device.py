"""GPUs: streams, events, and the order of work on the device (docs/python.md, "On a GPU").

>>> stream = Stream(device=0)                                     # beside the engine's own
>>> stream.wait(record(torch.cuda.current_stream()))              # what follows comes after what the engine has enqueued
>>> moved = gather(staged, pages, blocks=[3, 1, 4], stream=stream)
>>> moved.wait()                                                  # or moved.is_passed, or moved.hold(another stream)

CUDA is needed only by calls: without the package's CUDA module, or a device, they raise Unavailable.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from . import _kvstore
from ._kvstore import warm_up
from .errors import BadRequest

__all__ = [
    "Event",
    "Stream",
    "StreamLike",
    "device_count",
    "pci_address",
    "record",
    "stream_handle",
    "warm_up",
    "why_no_device",
]

#: A stream: this module's, any object with ``cuda_stream`` (PyTorch's), or a ``cudaStream_t`` as a number, 0 being the default.
StreamLike: TypeAlias = "Stream | int | Any"


def stream_handle(stream: StreamLike) -> int:
    """The ``cudaStream_t`` as a number."""
    if isinstance(stream, Stream):
        return stream.handle
    handle = getattr(stream, "cuda_stream", stream)
    if isinstance(handle, bool) or not isinstance(handle, int) or handle < 0:
        raise BadRequest(f"stream: {stream!r} is no stream, has no cuda_stream and is no number")
    return handle


class Event:
    """A moment on a stream: passed once all earlier work of the stream is done. Never waits by itself."""

    __slots__ = ("_native",)

    def __init__(self, native: _kvstore.Event) -> None:
        self._native = native

    @property
    def is_passed(self) -> bool:
        """Takes about a microsecond."""
        return self._native.is_passed()

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it has passed, or ``timeout`` seconds; returns whether it has. Other Python threads run meanwhile."""
        return self._native.wait(timeout)

    def hold(self, stream: StreamLike) -> None:
        """Later work of ``stream`` waits for this moment on the device; the caller does not wait."""
        self._native.hold(stream_handle(stream))


class Stream:
    """A CUDA stream, independent of all others, including the default one, unless told to wait."""

    __slots__ = ("_native",)

    def __init__(self, device: int = 0) -> None:
        self._native = _kvstore.Stream(device)

    @property
    def handle(self) -> int:
        """The ``cudaStream_t``: for ``torch.cuda.ExternalStream``, say."""
        return self._native.handle

    @property
    def device(self) -> int:
        return self._native.device

    def record(self) -> Event:
        return Event(_kvstore.record_event(self.handle, self.device))

    def wait(self, event: Event) -> None:
        """Later work of this stream waits for ``event``, on the device."""
        event.hold(self)

    def synchronise(self) -> None:
        """Waits here for all work of the stream."""
        self._native.synchronise()


def record(stream: StreamLike, device: int | None = None) -> Event:
    """The current moment on ``stream``. ``device`` is the stream's; None: the thread's current one."""
    if isinstance(stream, Stream):
        return stream.record()
    return Event(_kvstore.record_event(stream_handle(stream), -1 if device is None else device))


def device_count() -> int:
    """Number of CUDA devices; 0 without the CUDA module."""
    return _kvstore.device_count()


def pci_address(device: int = 0) -> str:
    """PCI address of a device, such as ``0000:3B:00.0``: for ``Client(numa_nodes="pci:...")``."""
    return _kvstore.pci_address(device)


def why_no_device() -> str:
    """Why calls cannot run on a GPU in this process; empty if they can."""
    return _kvstore.why_no_device()
