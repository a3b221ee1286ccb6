"""Values of a record's fields, from Python values."""

from __future__ import annotations

import operator
import re
from typing import Any
from urllib.parse import quote

from .errors import BadRequest

_PRINTABLE = "".join(map(chr, range(0x20, 0x7F)))
#: Text that would be read as an escape.
_ESCAPED = re.compile("%[0-9A-F]{2}")


def dtype_name(dtype: Any) -> str:
    """``float16`` from that name, ``np.float16``, ``np.dtype("float16")`` or ``torch.float16``. Raises BadRequest for other values."""
    if isinstance(dtype, str):
        return dtype.removeprefix("torch.")
    kind = type(dtype)
    if kind.__module__.partition(".")[0] == "torch" and kind.__name__ == "dtype":
        return str(dtype).removeprefix("torch.")
    if kind.__module__.partition(".")[0] == "numpy" or (isinstance(dtype, type) and hasattr(dtype, "dtype")):
        import numpy as np

        try:
            return str(np.dtype(dtype).name)
        except TypeError:
            pass
    raise BadRequest(f"dtype is {dtype!r}; allowed are a name such as 'float16', a NumPy type and a torch type")


def field_text(name: str, value: object) -> str:
    """A field's value as a record allows it: printable ASCII. Other letters are escaped as in a URL, so different texts stay different.
    Raises BadRequest, which names the field, unless the value is text or a number.
    """
    if name == "dtype":
        return dtype_name(value)
    if isinstance(value, str):
        is_plain = not _ESCAPED.search(value) and all(" " <= each <= "~" for each in value)
        return value if is_plain else quote(value, safe=_PRINTABLE.replace("%", ""))
    if isinstance(value, (int, float)):
        return str(value)
    try:
        return str(operator.index(value))  # type: ignore[arg-type]  # a number of NumPy's
    except TypeError:
        pass
    raise BadRequest(f"{name} is {value!r}; allowed are text and numbers")
