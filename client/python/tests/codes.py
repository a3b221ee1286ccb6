"""Numbers of caches in NumPy, which lacks most of their types: codes as floats and back, to the nearest, ties to the even code."""

from __future__ import annotations

import numpy as np

#: Element: NumPy's type of its codes, exponent and mantissa bits, the largest finite code.
FLOATS = {
    "fp16": (np.uint16, 5, 10, 0x7BFF),
    "bf16": (np.uint16, 8, 7, 0x7F7F),
    "e4m3": (np.uint8, 4, 3, 0x7E),
    "e5m2": (np.uint8, 5, 2, 0x7B),
}
ELEMENTS = [*FLOATS, "fp32", "int8"]


def positive_values(element):
    """The value of each positive code, ascending."""
    _, exponent_bits, mantissa_bits, last = FLOATS[element]
    codes = np.arange(last + 1)
    exponent, mantissa = codes >> mantissa_bits, codes & ((1 << mantissa_bits) - 1)
    bias = (1 << (exponent_bits - 1)) - 1
    whole = mantissa / 2.0**mantissa_bits + (exponent > 0)
    return whole * 2.0 ** (np.maximum(exponent, 1) - bias)


def decode(codes, element):
    if element not in FLOATS:
        return codes.astype(np.float32)
    sign = 1 << (8 * codes.itemsize - 1)
    values = positive_values(element)[codes & (sign - 1)]
    return np.where(codes & sign, -values, values).astype(np.float32)


def encode(values, element):
    if element not in FLOATS:
        return values.astype(np.float32)
    table = positive_values(element)
    size = np.abs(values.astype(np.float64))
    above = np.clip(np.searchsorted(table, size), 1, len(table) - 1)
    low, high = size - table[above - 1], table[above] - size
    codes = np.where((low < high) | ((low == high) & (above % 2 == 1)), above - 1, above)
    dtype = FLOATS[element][0]
    sign = np.signbit(values).astype(np.int64) << (8 * np.dtype(dtype).itemsize - 1)
    return (codes | sign).astype(dtype)


def random_codes(rng, shape, element, *, any_bits):
    """Elements as codes; with ``any_bits`` also NaN, infinity and the like, which only copies may meet."""
    if element == "int8":
        return rng.integers(-128, 128, shape).astype(np.int8)
    if any_bits and element in FLOATS:
        dtype = FLOATS[element][0]
        return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)
    return encode(rng.standard_normal(shape).astype(np.float32), element)
