"""GPU memory, real or simulated, for tests: through the CUDA module that KV_CUDA_MODULE names, without CUDA's own libraries. A simulated
device also controls when enqueued work runs, and reports errors found meanwhile.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

if not os.environ.get("KV_CUDA_MODULE"):  # all tests of an importing file need a device
    pytest.skip("KV_CUDA_MODULE names no CUDA module: nothing is tried on a GPU", allow_module_level=True)

#: When a simulated device runs its work: at once, when something waits for it, by turns. For a real one: None.
ORDERS = ("at once", "lazy", "random")

_K_CUDA = 2

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_size_t
_libc.mmap.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int]


class Device:
    """The module's functions that tests need. Addresses are numbers."""

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(os.environ["KV_CUDA_MODULE"])
        for name in ("kv_cuda_allocate", "kv_cuda_allocate_page_locked"):
            getattr(library, name).restype = ctypes.c_void_p
            getattr(library, name).argtypes = [ctypes.c_size_t]
        for name in ("kv_cuda_free", "kv_cuda_free_page_locked", "kv_cuda_synchronise", "kv_cuda_destroy_stream"):
            getattr(library, name).argtypes = [ctypes.c_void_p]
        library.kv_cuda_copy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        library.kv_cuda_copy_batch.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_size_t, ctypes.c_void_p]
        self.is_simulated = hasattr(library, "gpusim_set_order")
        if self.is_simulated:
            library.gpusim_findings.restype = ctypes.c_ulonglong
            library.gpusim_last_finding.restype = ctypes.c_char_p
            library.gpusim_set_order.argtypes = [ctypes.c_int, ctypes.c_ulonglong]

    def allocate(self, nbytes: int) -> int:
        address = self._library.kv_cuda_allocate(nbytes)
        assert address
        return int(address)

    def free(self, address: int) -> None:
        self._library.kv_cuda_free(address)

    def page_locked(self, nbytes: int) -> np.ndarray:
        """Never freed."""
        address = self._library.kv_cuda_allocate_page_locked(nbytes)
        assert address
        return np.frombuffer((ctypes.c_uint8 * nbytes).from_address(address), np.uint8)

    def copy(self, to: int, source: int, nbytes: int) -> None:
        """Waits only for the default stream."""
        assert self._library.kv_cuda_copy(to, source, nbytes) == 0

    def copy_on(self, stream: int, copies: Sequence[tuple[int, int, int]]) -> None:
        """(to, from, bytes) each, enqueued."""
        if copies:
            arrays = [np.array([each[i] for each in copies], np.uint64) for i in range(3)]
            done = self._library.kv_cuda_copy_batch(*(each.ctypes.data for each in arrays), len(copies), stream)
            assert done == 0, done

    def synchronise(self, stream: int) -> None:
        assert self._library.kv_cuda_synchronise(stream) == 0

    def place_of(self, address: int) -> int:
        """0 the host's, 1 page-locked, 2 a device's."""
        kind, device = ctypes.c_int(), ctypes.c_int()
        self._library.kv_cuda_memory_of(ctypes.c_void_p(address), ctypes.byref(kind), ctypes.byref(device))
        return kind.value

    def open_to_peers(self, address: int, nbytes: int) -> None:
        """What nvidia-peermem does: other devices can register these addresses. Requires a simulated device."""
        fd, offset = ctypes.c_int(-1), ctypes.c_uint64()
        exported = self._library.kv_cuda_export_dmabuf(
            ctypes.c_void_p(address), ctypes.c_size_t(nbytes), ctypes.byref(fd), ctypes.byref(offset)
        )
        assert exported == 0, exported
        begin, length = address - offset.value, nbytes + offset.value
        shared_fixed = mmap.MAP_SHARED | 0x10
        mapped = _libc.mmap(begin, length, mmap.PROT_READ | mmap.PROT_WRITE, shared_fixed, fd.value, 0)
        os.close(fd.value)
        assert mapped == begin, os.strerror(ctypes.get_errno())

    def close_to_host(self, address: int, nbytes: int) -> None:
        """From now on each access by this process's own programs is a fault, as with a real device's memory."""
        begin = address // mmap.PAGESIZE * mmap.PAGESIZE
        assert _libc.mprotect(begin, address + nbytes - begin, 0) == 0, os.strerror(ctypes.get_errno())

    @contextmanager
    def runs(self, order: str, seed: int = 1) -> Iterator[None]:
        """Runs enqueued work in that order. The simulator's findings are failures."""
        if not self.is_simulated:
            yield
            return
        before = self._library.gpusim_findings()
        self._library.gpusim_set_order(ORDERS.index(order), seed)
        try:
            yield
        finally:
            self._library.gpusim_set_order(0, 0)
        found, last = self._library.gpusim_findings() - before, self._library.gpusim_last_finding()
        # Happens when Python collects an engine's memory while another's stream has work. deploy/test.sh checks all other findings.
        assert not found or last.startswith(b"host memory unregistered with work still enqueued"), last


class DeviceArray:
    """Numbers in a device's memory, exported by ``__cuda_array_interface__``."""

    def __init__(self, device: Device, values: np.ndarray) -> None:
        self._device = device
        self.shape, self.dtype, self.nbytes = values.shape, values.dtype, values.nbytes
        self.address = device.allocate(max(values.nbytes, 1))
        flat = np.ascontiguousarray(values)
        if values.nbytes:
            device.copy(self.address, flat.ctypes.data, values.nbytes)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.address, False),
            "strides": None,
            "version": 3,
        }

    def fill(self, values: np.ndarray) -> None:
        flat = np.ascontiguousarray(values, self.dtype)
        assert flat.nbytes == self.nbytes
        self._device.copy(self.address, flat.ctypes.data, self.nbytes)

    def numpy(self) -> np.ndarray:
        """The current content: the test has waited."""
        made = np.empty(self.shape, self.dtype)
        self._device.copy(made.ctypes.data, self.address, self.nbytes)
        return made

    def __del__(self) -> None:
        self._device.free(self.address)


class _DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    )


_NAME = b"dltensor"
_exported: list[DlpackArray] = []


class DlpackArray:
    """The same, exported by DLPack as PyTorch does. ``streams`` are the consumers' streams."""

    def __init__(self, array: DeviceArray, device_type: int = _K_CUDA) -> None:
        self._array, self._type = array, device_type
        self._shape = (ctypes.c_int64 * len(array.shape))(*array.shape)
        self.streams: list[int | None] = []
        code = {"i": 0, "u": 1, "f": 2}[array.dtype.kind]
        self._tensor = _DlTensor(
            array.address, device_type, 0, len(array.shape), code, array.dtype.itemsize * 8, 1, self._shape, None, 0
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._type, 0

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        make = ctypes.pythonapi.PyCapsule_New
        make.restype = ctypes.py_object
        make.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        _exported.append(self)  # for ever: there is no deleter to end it
        return make(ctypes.addressof(self._tensor), _NAME, None)
