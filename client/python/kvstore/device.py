"""GPUs: streams, events, and the order of work on the device (docs/python.md, "On a GPU").

>>> stream = Stream(device=0)                                     # beside the engine's own
>>> stream.wait(record(torch.cuda.current_stream()))              # what follows comes after what the engine has enqueued
>>> moved = gather(staged, pages, blocks=[3, 1, 4], stream=stream)
>>> moved.wait()                                                  # or moved.is_passed, or moved.hold(another stream)

CUDA is needed only by calls: without the package's CUDA module, or a device, they raise Unavailable.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from ._kvstore import (
    Event,
    Stream,
    device_count,
    pci_address,
    record,
    stream_handle,
    warm_up,
    why_no_device,
)

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
