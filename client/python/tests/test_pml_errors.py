"""Prompt modules: wrong schemas and prompts are refused, with the place and the reason."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore.errors import BadRequest
from kvstore.pml import PmlError, parse_prompt, parse_schema

NAME = "1 to 128 letters (a-z, A-Z), digits, '_', '-' and '.', with a letter or '_' first"
LENGTH = "a length of 1 to 1048576 tokens"
IN_SCHEMA = "text, <module>, <union> or <scaffold>"
IN_MODULE = "text, <module>, <union>, <parameter> or <import>"
ONE = "one well-formed XML element"


def within(text: str) -> str:
    """A text that begins at line 2, column 3 of a schema."""
    return f'<schema name="s">\n  {text}\n</schema>'


WRONG_SCHEMAS = [
    # not XML
    ("", 1, 1, "invalid XML (no element found)", ONE),
    (" \n ", 2, 2, "invalid XML (no element found)", ONE),
    ("travel", 1, 1, "invalid XML (syntax error)", ONE),
    ("<<", 1, 2, "invalid XML (not well-formed (invalid token))", ONE),
    ('<schema name="s">', 1, 18, "invalid XML (no element found)", "</schema>"),
    (within('<module name="a">') + "\n", 3, 3, "invalid XML (mismatched tag)", "</module>"),
    (within("</module>"), 2, 5, "invalid XML (mismatched tag)", "</schema>"),
    (within("a & b"), 2, 6, "invalid XML (not well-formed (invalid token))", "</schema>"),
    (within("&hearts;"), 2, 3, "invalid XML (undefined entity)", "</schema>"),
    (within("é😀\x01"), 2, 5, "invalid XML (not well-formed (invalid token))", "</schema>"),
    (within('<module name="a" name="b"/>'), 2, 20, "invalid XML (duplicate attribute)", "</schema>"),
    ('<schema name="s"/>\n<schema name="t"/>', 2, 1, "invalid XML (junk after document element)", ONE),
    ('<schema name="s', 1, 1, "invalid XML (unclosed token)", ONE),
    (within("é\ud800"), 2, 4, "the lone surrogate '\\ud800'", "characters of Unicode"),
    # limits
    ('<!DOCTYPE schema><schema name="s"/>', 1, 1, "<!DOCTYPE", "<schema>: entities cannot be declared"),
    (
        '<!--é-->\r\n <!DOCTYPE s [<!ENTITY a "b">]>\n<schema name="s">&a;</schema>',
        2,
        2,
        "<!DOCTYPE",
        "<schema>: entities cannot be declared",
    ),
    (
        '<schema name="s">' + '<module name="a">' * 32,
        1,
        18 + 31 * 17,
        "an element within 32 others",
        "at most 32 nested elements",
    ),
    (within("<module/>" * 16384), 2, 3 + 16383 * 9, "over 16384 elements", "at most that many"),
    (
        within("<module " + " ".join(f'a{i}=""' for i in range(257)) + "/>"),
        2,
        3,
        "257 attributes",
        "at most 256",
    ),
    (within(f"<!--{'-x' * (1 << 20)}-->"), 2, 3, "a tag, name or comment of over 1048576 bytes", "shorter ones"),
    ("x" * (1 << 24 | 1), 1, 1, "a text of 16777217 characters", "at most 16777216"),
    # elements and attributes
    ('<prompt schema="s"/>', 1, 1, "<prompt>", "<schema>"),
    ("\n<schema/>", 2, 1, "<schema> without the attribute name", 'name="..."'),
    ('<schema name="s" version="2"/>', 1, 1, "the attribute 'version' of <schema>", "the attributes name"),
    ('<schema name="s t"/>', 1, 1, "the schema name 's t'", NAME),
    (within("<modul/>"), 2, 3, "<modul> in <schema>", IN_SCHEMA),
    (within('<parameter name="p" length="1"/>'), 2, 3, "<parameter> in <schema>", IN_SCHEMA),
    (within('<import name="a"/>'), 2, 3, "<import> in <schema>", IN_SCHEMA),
    (within("<module/>"), 2, 3, "<module> without the attribute name", 'name="..."'),
    (within('<module name=""/>'), 2, 3, "the module name ''", NAME),
    (within('<module name="a/b"/>'), 2, 3, "the module name 'a/b'", NAME),
    (within('<module name="a:b"/>'), 2, 3, "the module name 'a:b'", NAME),
    (within('<module name="2nd"/>'), 2, 3, "the module name '2nd'", NAME),
    (within('<module name="é"/>'), 2, 3, "the module name 'é'", NAME),
    (within(f'<module name="{"a" * 129}"/>'), 2, 3, f"the module name '{'a' * 60}...'", NAME),
    (within('<module name="a" cache="no"/>'), 2, 3, "cache='no'", 'cache="true" or cache="false"'),
    (within('<module name="a" lengths="1"/>'), 2, 3, "the attribute 'lengths' of <module>", "the attributes name, cache"),
    (within('<module name="a"><text/></module>'), 2, 20, "<text> in <module>", IN_MODULE),
    (within('<module name="a"><scaffold name="b"/></module>'), 2, 20, "<scaffold> in <module>", IN_MODULE),
    (within('<module name="a"/>\n <module name="a"/>'), 3, 2, "a second module 'a'", "one of each name within a module"),
    (
        within('<module name="a"/><union><module name="a"/></union>'),
        2,
        28,
        "a second module 'a'",
        "one of each name within a module",
    ),
    (
        within('<module name="a"/><module name="b"><module name="a"/><import name="a"/></module>'),
        2,
        56,
        "a second module 'a'",
        "one of each name within a module",
    ),
    # unions
    (within("<union/>"), 2, 3, "a union without members", "<module> in <union>"),
    (within("<union> </union>"), 2, 3, "a union without members", "<module> in <union>"),
    (within('<union scaffold="b"><module name="a"/></union>'), 2, 3, "scaffold='b'", "the name of a member of the union"),
    (
        within('<union scaffold="a"><module name="a" cache="false"/></union>'),
        2,
        3,
        "scaffold='a', which is not cached",
        "a member that is cached",
    ),
    (within("<union>\n   é text</union>"), 3, 4, "the text 'é text' in <union>", "elements without text between them"),
    (within('<union><parameter name="p" length="1"/></union>'), 2, 10, "<parameter> in <union>", "<module>"),
    (within("<union><union/></union>"), 2, 10, "<union> in <union>", "<module>"),
    # parameters
    (within('<module name="a"><parameter name="p"/></module>'), 2, 20, "<parameter> without the attribute length", 'length="..."'),
    (within('<module name="a"><parameter length="1"/></module>'), 2, 20, "<parameter> without the attribute name", 'name="..."'),
    *(
        (within(f'<module name="a">\n<parameter name="p" length="{length}"/></module>'), 3, 1, f"length={shown!r}", LENGTH)
        for length, shown in [
            ("", ""),
            ("0", "0"),
            ("-1", "-1"),
            ("+1", "+1"),
            ("4.0", "4.0"),
            ("four", "four"),
            ("٤", "٤"),
            ("1048577", "1048577"),
            ("9" * 5000, "9" * 60 + "..."),
        ]
    ),
    (within('<module name="a"><parameter name="p q" length="1"/></module>'), 2, 20, "the parameter name 'p q'", NAME),
    (
        within('<module name="a"><parameter name="p" length="1"/><parameter name="p" length="1"/></module>'),
        2,
        52,
        "a second parameter 'p'",
        "one of each name within a module",
    ),
    (
        within('<module name="a"><parameter name="p" length="1">x</parameter></module>'),
        2,
        51,
        "the text 'x' in <parameter>",
        "elements without text between them",
    ),
    (
        within('<module name="a"><parameter name="p" length="1"><module name="b"/></parameter></module>'),
        2,
        51,
        "<module> in <parameter>",
        "an empty element",
    ),
    # imports
    (
        within('<module name="a"><import name="b"/></module>'),
        2,
        20,
        "an import of 'b'",
        "the path of a module of this schema",
    ),
    (
        within('<module name="a"><import name=""/></module>'),
        2,
        20,
        "an import of ''",
        "the path of a module of this schema",
    ),
    (
        within('<module name="a"/><module name="b"><import name="a"/></module><module name="c"><import name="b/a"/></module>'),
        2,
        82,
        "an import of 'b/a'",
        "the path of a module of this schema",
    ),
    (within('<module name="a"><import/></module>'), 2, 20, "<import> without the attribute name", 'name="..."'),
    (
        within('<module name="a"><import name="a"/></module>'),
        2,
        20,
        "the cycle a > a",
        "modules that do not contain themselves",
    ),
    (
        within('<module name="a"><module name="b"><import name="a"/></module></module>'),
        2,
        37,
        "the cycle a > a/b > a",
        "modules that do not contain themselves",
    ),
    (
        within('<module name="z"/><module name="a"><import name="b"/></module>\n<module name="b"><import name="a"/></module>'),
        3,
        18,
        "the cycle a > b > a",
        "modules that do not contain themselves",
    ),
    (
        within("".join(f'<module name="m{i:02}"><import name="m{i + 1:02}"/></module>\n' for i in range(32)) + '<module name="m32"/>'),
        32,
        20,
        "over 31 nested modules",
        "at most that many, with those of imports",
    ),
    (
        within('<module name="m00"/>\n' + "".join(f'<module name="m{i + 1:02}"><import name="m{i:02}"/></module>\n' for i in range(31))),
        33,
        1,
        "over 31 nested modules",
        "at most that many, with those of imports",
    ),
    # scaffolds
    *(
        (within(f'<module name="a"/><union><module name="b"><module name="d"/></module><module name="c"/></union><module name="e" cache="false"/>\n{scaffold}'), 3, column, found, expected)
        for scaffold, column, found, expected in [
            ("<scaffold><use name='a'/><use name='b'/></scaffold>", 1, "<scaffold> without the attribute name", 'name="..."'),
            ("<scaffold name='/'><use name='a'/><use name='b'/></scaffold>", 1, "the scaffold name '/'", NAME),
            ("<scaffold name='s'/>", 1, "0 modules in a scaffold", "two or more"),
            ("<scaffold name='s'><use name='a'/></scaffold>", 1, "1 modules in a scaffold", "two or more"),
            ("<scaffold name='s'><use name='a'/><use name='x'/></scaffold>", 35, "the path 'x'", "the path of a module of this schema"),
            ("<scaffold name='s'><use name='a'/><use name='b/'/></scaffold>", 35, "the path 'b/'", "the path of a module of this schema"),
            ("<scaffold name='s'><use name='a'/><use name='a'/></scaffold>", 35, "'a' a second time", "each module once"),
            ("<scaffold name='s'><use name='c'/><use name='b/d'/></scaffold>", 35, "'b' beside 'c'", "one member of a union"),
            ("<scaffold name='s'><use name='a'/><use name='e'/></scaffold>", 35, "'e', which is not cached", "modules that are cached"),
            ("<scaffold name='s'><use name='a'/>&amp;<use name='b'/></scaffold>", 35, "the text '&' in <scaffold>", "elements without text between them"),
            ("<scaffold name='s'><module name='a'/></scaffold>", 20, "<module> in <scaffold>", "<use>"),
            ("<scaffold name='s'><use name='a'/><use/></scaffold>", 35, "<use> without the attribute name", 'name="..."'),
            ("<scaffold name='s'><use name='a'/><use name='b'/></scaffold><scaffold name='s'/>", 61, "a second scaffold 's'", "one of each name"),
        ]
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "found", "expected"), WRONG_SCHEMAS, ids=range(len(WRONG_SCHEMAS)))
def test_a_wrong_schema_is_refused_with_the_place_and_the_reason(text, line, column, found, expected):
    with pytest.raises(PmlError) as refused:
        parse_schema(text)
    error = refused.value
    assert (error.line, error.column, error.reason) == (line, column, f"found {found}; expected {expected}")
    assert str(error) == f"line {line}, column {column}: {error.reason}"


PLAN = """<schema name="plan">
  <module name="a">A</module>
  <module name="b"><parameter name="p" length="2"/><module name="c"/><union><module name="d"/><module name="e"/></union>
    <module name="f"/></module>
  <union><module name="g"/><module name="h"/></union>
</schema>"""

WRONG_PROMPTS = [
    ("", 1, 1, "invalid XML (no element found)", ONE),
    ("<prompt schema='plan'>", 1, 23, "invalid XML (no element found)", "</prompt>"),
    ("<prompt schema='plan'>\n<a></prompt>", 2, 6, "invalid XML (mismatched tag)", "</a>"),
    ("<schema name='plan'/>", 1, 1, "<schema>", "<prompt>"),
    ("<prompt/>", 1, 1, "<prompt> without the attribute schema", 'schema="..."'),
    ("<prompt schema='plans'/>", 1, 1, "a prompt for the schema 'plans'", "one for 'plan'"),
    ("<prompt schema='plan' name='x'/>", 1, 1, "the attribute 'name' of <prompt>", "the attributes schema"),
    ("<prompt schema='plan'>\n hi <x/></prompt>", 2, 5, "<x> in <prompt>", "one of a, b, g, h"),
    ("<prompt schema='plan'><c/></prompt>", 1, 23, "<c> in <prompt>", "one of a, b, g, h"),
    ("<prompt schema='plan'><a><c/></a></prompt>", 1, 26, "<c> in <a>", "no element"),
    ("<prompt schema='plan'><b><a/></b></prompt>", 1, 26, "<a> in <b>", "one of c, d, e, f"),
    ("<prompt schema='plan'><b p='1' q='2'/></prompt>", 1, 23, "the argument 'q' of <b>", "p"),
    ("<prompt schema='plan'><a p='1'/></prompt>", 1, 23, "the argument 'p' of <a>", "no argument"),
    ("<prompt schema='plan'><a/> <a/></prompt>", 1, 28, "<a> a second time", "each module once"),
    ("<prompt schema='plan'><g/>\n<h/></prompt>", 2, 1, "<h> beside <g>", "one member of a union"),
    ("<prompt schema='plan'><g/><g/></prompt>", 1, 27, "<g> a second time", "each module once"),
    ("<prompt schema='plan'><b><e/><d/></b></prompt>", 1, 30, "<d> beside <e>", "one member of a union"),
    ("<prompt schema='plan'><b><f/><f/></b></prompt>", 1, 30, "<f> a second time", "each module once"),
    ("<prompt schema='plan'><b><c/><f/><c/></b></prompt>", 1, 34, "<c> a second time", "each module once"),
    ("<prompt schema='plan'><b><f/><d/></b></prompt>", 1, 30, "<d> after <f>", "the modules in the schema's order"),
    ("<prompt schema='plan'><a> hi</a></prompt>", 1, 27, "the text ' hi' in <a>", "elements without text between them"),
    (
        "<prompt schema='plan'><b>\n <c/>\n hi</b></prompt>",
        3,
        2,
        "the text 'hi' in <b>",
        "elements without text between them",
    ),
    ("<!DOCTYPE prompt><prompt schema='plan'/>", 1, 1, "<!DOCTYPE", "<prompt>: entities cannot be declared"),
    (
        "<prompt schema='plan'>" + "<b>" * 40,
        1,
        23 + 31 * 3,
        "an element within 32 others",
        "at most 32 nested elements",
    ),
]


@pytest.mark.parametrize(("text", "line", "column", "found", "expected"), WRONG_PROMPTS, ids=range(len(WRONG_PROMPTS)))
def test_a_wrong_prompt_is_refused_with_the_place_and_the_reason(text, line, column, found, expected):
    with pytest.raises(PmlError) as refused:
        parse_prompt(text, parse_schema(PLAN))
    error = refused.value
    assert (error.line, error.column, error.reason) == (line, column, f"found {found}; expected {expected}")


def test_a_text_has_to_be_a_str():
    with pytest.raises(PmlError, match=r"line 1, column 1: found bytes; expected a str"):
        parse_schema(b'<schema name="s"/>')  # type: ignore[arg-type]


def test_an_error_is_a_bad_request_and_survives_pickling():
    error = PmlError(3, 5, "found a; expected b")
    assert isinstance(error, BadRequest) and error.status == BadRequest.status
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (other.line, other.column, other.reason, str(other)) == (3, 5, error.reason, str(error))


FRAGMENTS = [
    "<schema name='s'>", "</schema>", "<module name='a'>", "</module>", "<module name='b'/>", "<union>", "</union>",
    "<parameter name='p' length='2'/>", "<import name='a'/>", "<import name='a/b'/>", "<scaffold name='t'>", "</scaffold>",
    "<use name='a'/>", "<use name='a/b'/>", "text", " ", "\n", "é😀", "&#10;", "&", "<", "<!--", "-->", "<![CDATA[", "]]>", "\x00", "'",
]  # fmt: skip


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=20), st.booleans())
def test_whatever_is_parsed_is_a_schema_or_an_error_within_the_text(fragments, is_wrapped):
    text = "".join(fragments)
    if is_wrapped:
        text = f"<schema name='s'>{text}</schema>"
    try:
        schema = parse_schema(text)
    except PmlError as error:
        lines = text.split("\n")
        assert 1 <= error.line <= len(lines)
        assert 1 <= error.column <= len(lines[error.line - 1]) + 1
    else:
        assert parse_schema(str(schema)) == schema


# -- size

BYTES = 10_000_000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<" * BYTES, "not well-formed"),
        ("<schema name='s'>" + "<module name='a'>" * (BYTES // 17), "at most 32 nested elements"),
        ("<module name='a'>" * (BYTES // 17), "expected <schema>"),
        ("<schema name='s'>" + "<a/>" * (BYTES // 4), "over 16384 elements"),
        ("<schema " + " ".join(f"a{i}=''" for i in range(BYTES // 11)) + "/>", "over 1048576 bytes"),
        ("<!DOCTYPE s [" + "<!ENTITY a 'b'>" * (BYTES // 15), "entities cannot be declared"),
        ("<schema name='s'>" + "x" * BYTES, "no element found"),
        ("x" * BYTES, "over 1048576 bytes"),
        ("<schema name='s'>" + "x" * BYTES + "</schema>", None),
        ("<schema name='s'>" + ("x" * 79 + "\n") * (BYTES // 80) + "</schema>", None),
        ("<schema name='s'>" + "<!---->" * (BYTES // 7) + "</schema>", None),
    ],
    ids=range(11),
)
def test_ten_megabytes_take_less_than_ten_times_their_memory(text, reason):
    tracemalloc.start()
    try:
        if reason is None:
            assert parse_schema(text).name == "s"
        else:
            with pytest.raises(PmlError, match=reason):
                parse_schema(text)
        assert tracemalloc.get_traced_memory()[1] < 10 * len(text)
    finally:
        tracemalloc.stop()


def test_a_tag_of_a_megabyte_is_read_and_one_of_more_is_not():
    frame = len("<prompt schema='s'/>") - 1
    schema = parse_schema('<schema name="s"/>')
    with pytest.raises(PmlError, match="a prompt for the schema"):
        parse_prompt(f"<prompt schema='{'t' * ((1 << 20) - frame)}'/>", schema)
    with pytest.raises(PmlError, match="over 1048576 bytes"):
        parse_prompt(f"<prompt schema='{'t' * (2 << 20)}'/>", schema)
