"""XML to elements with places, and back: limits, and which whitespace is text.

Whitespace at either end of a text (where a tag, or the document's beginning or end, adjoins) is layout if it contains a newline, and dropped.
All else is text: whitespace within a text, at its ends without a newline, and any that is written as a reference (``&#10;``) or in CDATA.
Comments and processing instructions are skipped; the texts around them are one text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from io import StringIO
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from .errors import NOWHERE, Place, fail, shown, shown_tag

__all__ = ["Element", "Text", "attributes_of", "element_lines", "read", "text_lines"]

DEPTH_MAX = 32
ELEMENT_COUNT_MAX = 1 << 14
ATTRIBUTE_COUNT_MAX = 256
CHARACTER_COUNT_MAX = 16 << 20
#: A tag, a comment or the like: expat scans an unfinished one again with every chunk.
TAG_BYTES_MAX = 1 << 20
_CHUNK_BYTES = 1 << 16

_BLANKS = " \t\n"
#: Whitespace that is no layout, as characters that XML excludes, till the ends of its text are known.
_KEPT = {"\n": "\x01", " ": "\x02", "\t": "\x03"}
_KEEP = str.maketrans(_KEPT)
_REFERENCES = {blank: f"&#{ord(blank)};" for blank in _BLANKS}


@dataclass(frozen=True)
class Text:
    text: str
    place: Place = field(default=NOWHERE, compare=False, repr=False)


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    place: Place
    items: list[Element | Text] = field(default_factory=list)

    def elements(self) -> list[Element]:
        """The elements of one that has no text. Raises PmlError at a text that is not all whitespace."""
        for item in self.items:
            if isinstance(item, Text) and item.text.strip(_BLANKS):
                fail(
                    item.place,
                    f"the text {shown(item.text)} in {shown_tag(self.tag)}",
                    "elements without text between them",
                )
        return [item for item in self.items if isinstance(item, Element)]


def read(text: str, root: str) -> Element:
    """The document's element, which has the tag ``root``. Raises PmlError."""
    if not isinstance(text, str):
        fail(Place(1, 1), type(text).__name__, "a str")
    if len(text) > CHARACTER_COUNT_MAX:
        fail(Place(1, 1), f"a text of {len(text)} characters", f"at most {CHARACTER_COUNT_MAX}")
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        fail(_place_after(text[: error.start]), f"the lone surrogate {text[error.start]!r}", "characters of Unicode")
    return _Reader(data, root).read()


def attributes_of(element: Element, required: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, str]:
    """The element's attributes. Raises PmlError for an unknown one, and if a required one is missing."""
    for name in element.attributes:
        if name not in required + optional:
            allowed = ", ".join(required + optional) or "none"
            fail(element.place, f"the attribute {shown(name)} of <{element.tag}>", f"the attributes {allowed}")
    for name in required:
        if name not in element.attributes:
            fail(element.place, f"<{element.tag}> without the attribute {name}", f'{name}="..."')
    return element.attributes


class _Reader:
    def __init__(self, data: bytes, root: str) -> None:
        self._data, self._root = data, root
        self._open: list[Element] = []
        self._done: Element | None = None
        self._element_count = 0
        self._pieces = StringIO()
        self._text_place: Place | None = None  # of the first character that is no layout
        self._in_cdata = False
        parser = expat.ParserCreate("utf-8")  # whatever the document declares: these bytes are made here
        if hasattr(parser, "SetReparseDeferralEnabled"):
            parser.SetReparseDeferralEnabled(False)  # so that the bytes not yet parsed are one unfinished tag
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._characters
        parser.StartCdataSectionHandler, parser.EndCdataSectionHandler = self._start_cdata, self._end_cdata
        parser.StartDoctypeDeclHandler = self._doctype
        self._parser = parser

    def read(self) -> Element:
        try:
            for begin in range(0, len(self._data), _CHUNK_BYTES):
                end = min(begin + _CHUNK_BYTES, len(self._data))
                self._parser.Parse(self._data[begin:end], False)
                if end - self._parser.CurrentByteIndex > TAG_BYTES_MAX:
                    fail(self._place(), f"a tag, name or comment of over {TAG_BYTES_MAX} bytes", "shorter ones")
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            place = Place(error.lineno, error.offset + 1)
            expected = shown_tag("/" + self._open[-1].tag) if self._open else "one well-formed XML element"
            fail(place, f"invalid XML ({expat.ErrorString(error.code)})", expected)
        finally:
            del self._parser  # its handlers refer to this object
        assert self._done is not None
        return self._done

    def _place(self) -> Place:
        return Place(self._parser.CurrentLineNumber, self._parser.CurrentColumnNumber + 1)

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        place = self._place()
        self._element_count += 1
        if not self._open and tag != self._root:
            fail(place, shown_tag(tag), f"<{self._root}>")
        if len(self._open) == DEPTH_MAX:
            fail(place, f"an element within {DEPTH_MAX} others", f"at most {DEPTH_MAX} nested elements")
        if self._element_count > ELEMENT_COUNT_MAX:
            fail(place, f"over {ELEMENT_COUNT_MAX} elements", "at most that many")
        if len(attributes) > ATTRIBUTE_COUNT_MAX:
            fail(place, f"{len(attributes)} attributes", f"at most {ATTRIBUTE_COUNT_MAX}")
        element = Element(tag, attributes, place)
        if self._open:
            self._end_text()
            self._open[-1].items.append(element)
        self._open.append(element)

    def _end(self, _tag: str) -> None:
        self._end_text()
        self._done = self._open.pop()

    def _characters(self, piece: str) -> None:
        index = self._parser.CurrentByteIndex
        if self._in_cdata or self._data[index : index + 1] == b"&":
            piece = piece.translate(_KEEP)
        if self._text_place is None:
            stripped = piece.lstrip(_BLANKS)
            if stripped:
                place = self._place()
                self._text_place = Place(place.line, place.column + len(piece) - len(stripped))
        self._pieces.write(piece)

    def _end_text(self) -> None:
        text = _without_layout(self._pieces.getvalue())
        if text:
            self._open[-1].items.append(Text(text, self._text_place or self._place()))
        self._pieces, self._text_place = StringIO(), None

    def _start_cdata(self) -> None:
        self._in_cdata = True

    def _end_cdata(self) -> None:
        self._in_cdata = False

    def _doctype(self, *_: object) -> None:
        begin = self._data.rfind(b"<!DOCTYPE", 0, self._parser.CurrentByteIndex)
        fail(_place_after(self._data[:begin].decode()), "<!DOCTYPE", f"<{self._root}>: entities cannot be declared")


def _place_after(text: str) -> Place:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    return Place(text.count("\n") + 1, len(text) - text.rfind("\n"))


def _without_layout(text: str) -> str:
    body = text.lstrip(_BLANKS)
    if "\n" in text[: len(text) - len(body)]:
        text = body
    body = text.rstrip(_BLANKS)
    if "\n" in text[len(body) :]:
        text = body
    for blank, kept in _KEPT.items():
        text = text.replace(kept, blank)
    return text


def text_lines(text: str) -> list[str]:
    """A text as an element's content for :func:`element_lines`: one entry, whose own newlines stay as they are."""
    body = text.strip(_BLANKS)
    begin = len(text) - len(text.lstrip(_BLANKS))
    ends = text[:begin], text[begin + len(body) :]
    before, after = ("".join(_REFERENCES[each] for each in end) for end in ends)
    return [before + escape(body, {"\r": "&#13;"}) + after]


def element_lines(tag: str, attributes: Iterable[tuple[str, str]], items: Iterable[list[str]] = ()) -> list[str]:
    """An element's lines. What :func:`read` takes from them has no whitespace that is not in the texts."""
    opening = tag + "".join(f" {name}={quoteattr(value)}" for name, value in attributes)
    content = ["  " + line for lines in items for line in lines]
    return [f"<{opening}>", *content, f"</{tag}>"] if content else [f"<{opening}/>"]
