"""How results look in a log and at a prompt: their properties, by name."""

from __future__ import annotations

from . import _kvstore


def _text(value: object) -> str:
    """Short, for any number of blocks."""
    if type(value).__name__ == "ndarray":
        count = len(value)  # type: ignore[arg-type]
        return str(value.tolist()) if count <= 8 else f"<{count} of {value.dtype}>"  # type: ignore[attr-defined]
    if isinstance(value, (list, dict)) and len(value) > 8:
        return f"<{len(value)}>"
    return repr(value)


def _represent(result: object) -> str:
    names = [name for name, each in vars(type(result)).items() if isinstance(each, property)]
    names.sort(key=lambda name: name == "why")  # the reason last
    return f"{type(result).__name__}({', '.join(f'{name}={_text(getattr(result, name))}' for name in names)})"


for _each in (
    _kvstore.ArchivedContext,
    _kvstore.ContextList,
    _kvstore.DropResult,
    _kvstore.FieldDifference,
    _kvstore.GetResult,
    _kvstore.LoadResult,
    _kvstore.MatchResult,
    _kvstore.Memory,
    _kvstore.MissReport,
    _kvstore.NamedContext,
    _kvstore.OtherNamespace,
    _kvstore.PutResult,
    _kvstore.SetGetResult,
    _kvstore.SetMatchResult,
    _kvstore.SetPutResult,
):
    _each.__repr__ = _represent  # type: ignore[method-assign]
