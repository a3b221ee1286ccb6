"""Prompt modules: what schemas and prompts are."""

from __future__ import annotations

import pytest
from hypothesis import given
from pml_strategies import prompts, schemas

from kvstore.pml import (
    Argument,
    Import,
    Imported,
    Module,
    Parameter,
    Prompt,
    Scaffold,
    Schema,
    Text,
    Union,
    Use,
    parse_prompt,
    parse_schema,
)

TRAVEL = """
<schema name="travel">
  <!-- who speaks -->
  You are a guide who knows every harbour.
  <module name="trip">
    The trip lasts <parameter name="days" length="4"/> and begins on <parameter name="date" length="6"/>.
    <union scaffold="lisbon">
      <module name="lisbon">
        Lisbon lies on seven hills.
        Trams climb them.
      </module>
      <module name="oslo" cache="false">Oslo lies on a fjord.</module>
    </union>
    <import name="manners"/>
  </module>
  <module name="manners">Answer in three sentences.</module>
  <scaffold name="whole"><use name="trip"/> <use name="trip/manners"/></scaffold>
</schema>
"""


def test_a_schema_is_what_its_text_says():
    lisbon = Module("lisbon", (Text("Lisbon lies on seven hills.\n        Trams climb them."),))
    oslo = Module("oslo", (Text("Oslo lies on a fjord."),), is_cached=False)
    trip = Module(
        "trip",
        (
            Text("The trip lasts "),
            Parameter("days", 4),
            Text(" and begins on "),
            Parameter("date", 6),
            Text("."),
            Union((lisbon, oslo), scaffold="lisbon"),
            Import("manners"),
        ),
    )
    manners = Module("manners", (Text("Answer in three sentences."),))
    scaffolds = (Scaffold("whole", (Use("trip"), Use("trip/manners"))),)
    assert parse_schema(TRAVEL) == Schema(
        "travel", (Text("You are a guide who knows every harbour."), trip, manners), scaffolds
    )


def test_a_prompt_is_what_its_text_says_with_arguments_in_the_schemas_order():
    schema = parse_schema(TRAVEL)
    text = (
        '<prompt schema="travel">Hello. <trip date="1 May" days="two"><oslo/><manners/></trip>\n  Where to?\n</prompt>'
    )
    arguments = (Argument("days", "two"), Argument("date", "1 May"))
    trip = Imported("trip", arguments, (Imported("oslo"), Imported("manners")))
    assert parse_prompt(text, schema) == Prompt(schema, (Text("Hello. "), trip, Text("Where to?")))


def test_the_canonical_texts_are_these():
    schema = parse_schema(
        '<schema name="s">a &amp; b<module name="m" cache="false"> x\n\ty <parameter name="p" length="007"/></module>'
        '<union><module name="n"/></union><scaffold name="t"><use name="m"/><use name="n"/></scaffold></schema>'.replace(
            ' cache="false"', ""
        )
    )
    assert str(schema) == (
        '<schema name="s">\n  a &amp; b\n  <module name="m">\n    &#32;x\n\ty&#32;\n'
        '    <parameter name="p" length="7"/>\n  </module>\n  <union>\n    <module name="n"/>\n  </union>\n'
        '  <scaffold name="t">\n    <use name="m"/>\n    <use name="n"/>\n  </scaffold>\n</schema>\n'
    )
    prompt = parse_prompt("<prompt schema='s'><m p='\"&#10;'/>&lt; </prompt>", schema)
    assert str(prompt) == '<prompt schema="s">\n  <m p=\'"&#10;\'/>\n  &lt;&#32;\n</prompt>\n'


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("a b", "a b"),
        (" a ", " a "),
        ("\n  a\n  b\n", "a\n  b"),
        ("  \n\n\t a \n \n", "a"),
        ("\r\n  a\r\nb\rc\r\n", "a\nb\nc"),
        (" ", " "),
        ("\n", None),
        (" \n\t", None),
        ("", None),
        ("\n&#10;", "\n"),
        ("\n  &#32; a&#9;\n", "  a\t"),
        ("&#10;&#xA;", "\n\n"),
        ("a&#13;\n", "a\r"),
        ("\n<![CDATA[\n  a <b>\n]]>\n", "\n  a <b>\n"),
        ("a <!-- b --> c", "a  c"),
        ("\n<!-- b -->\n  c", "c"),
        ("a<?b c?>d", "ad"),
        ("&lt;&amp;&gt;&quot;&apos;&#233;", "<&>\"'é"),
        ("\N{NO-BREAK SPACE}\n", "\N{NO-BREAK SPACE}"),
    ],
)
def test_whitespace_at_the_ends_is_layout_if_it_has_a_newline_and_is_no_reference(written, text):
    items = () if text is None else (Text(text),)
    schema = parse_schema(f'<schema name="s"><module name="m">{written}</module></schema>')
    assert schema.items == (Module("m", items),)
    assert parse_prompt(f'<prompt schema="s">{written}</prompt>', schema).items == items


def test_a_declaration_of_another_encoding_changes_nothing():
    assert parse_schema('<?xml version="1.0" encoding="utf-16"?>\n<schema name="s">é</schema>').items == (Text("é"),)


@given(schemas())
def test_a_printed_schema_is_parsed_as_the_same(schema):
    assert parse_schema(str(schema)) == schema
    assert str(parse_schema(str(schema))) == str(schema)


@given(schemas().flatmap(prompts))
def test_a_printed_prompt_is_parsed_as_the_same(prompt):
    assert parse_prompt(str(prompt), prompt.schema) == prompt


@pytest.mark.parametrize(
    "special", ["\r", "\n", "\t", " ", "\r\n", "<", ">", "&", "'", '"', "'\"", "]]>", "&#10;", "--", "é😀"]
)
def test_special_characters_are_printed_so_that_they_stay(special):
    for text in (special, special + "x", "x" + special, f"x{special}x", special * 2):
        module = Module("m", (Parameter("p", 9), Text(text)))
        schema = Schema("s", (module,))
        assert parse_schema(str(schema)) == schema
        prompt = Prompt(schema, (Imported("m", (Argument("p", text),)), Text(text)))
        assert parse_prompt(str(prompt), schema) == prompt
