"""Prompt modules: where a prompt's tokens lie, and what may be stored of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from conftest import ROOT
from pml_strategies import Words, letters

from kvstore.pml import PmlError, Unit, parse_prompt, parse_schema, plan


def planned(schema: str, prompt: str, layout: str = "schema"):
    """Each range as (kind, name, words, first position, unit, index in the unit); the units' words by name; the plan."""
    words = Words()
    made = plan(parse_prompt(prompt, parse_schema(schema)), words, layout=layout)
    ranges = []
    for each in made.ranges:
        assert each.positions == tuple(range(each.positions[0], each.positions[0] + len(each.tokens)))
        unit = each.unit.name if each.unit else None
        ranges.append((each.kind, each.name, words.decode(each.tokens), each.positions[0], unit, each.unit_begin))
    return ranges, {unit.name: words.decode(unit.tokens) for unit in made.units}, made


# -- the published rules

SIZES = f"""
<schema name="sizes">
  {"t" * 10}
  <union><module name="a">{"a" * 50}</module><module name="b">{"b" * 30}</module></union>
  <module name="c">{"c" * 20}</module>
</schema>"""


@pytest.mark.parametrize(
    ("modules", "layout", "positions"),
    [
        ("<b/><c/>uu", "schema", [*range(40), *range(60, 82)]),
        ("<b/><c/>uu", "prompt", [*range(62)]),
        ("<a/><c/>uu", "schema", [*range(82)]),
        ("<b/>uu<c/>", "schema", [*range(42), *range(60, 80)]),
        (f"<b/>{'u' * 25}<c/>", "schema", [*range(85)]),
        (f"<b/>{'u' * 25}<c/>", "prompt", [*range(85)]),
        ("<c/>uu", "schema", [*range(10), *range(60, 82)]),
        ("<c/><a/>", "schema", [*range(10), *range(60, 130)]),
        ("<c/><a/>", "prompt", [*range(80)]),
        ("uu<c/>", "schema", [*range(12), *range(60, 80)]),
        ("", "schema", [*range(10)]),
    ],
)
def test_modules_keep_their_schemas_positions_or_follow_each_other(modules, layout, positions):
    made = plan(parse_prompt(f'<prompt schema="sizes">{modules}</prompt>', parse_schema(SIZES)), letters, layout=layout)
    assert made.positions.tolist() == positions
    assert made.positions.dtype == made.tokens.dtype == np.int64
    assert made.token_count == len(positions)
    assert made.length == positions[-1] + 1
    order = ["t", *re.findall("[abcu]", modules)]
    assert "".join(dict.fromkeys(map(chr, made.tokens.tolist()))) == "".join(dict.fromkeys(order))


def test_a_plan_of_nothing_is_empty():
    made = plan(parse_prompt('<prompt schema="s"/>', parse_schema('<schema name="s"/>')), letters)
    assert (made.ranges, made.units, made.token_count, made.length) == ((), (), 0, 0)
    assert made.tokens.shape == made.positions.shape == (0,)


# -- four kinds of prompt

TRAVEL = """
<schema name="travel">
  You are a guide.
  <module name="trip">
    The trip lasts <parameter name="days" length="4"/> in <parameter name="month" length="2"/>.
    <union>
      <module name="lisbon">Lisbon lies on seven hills. <parameter name="wish" length="3"/> Trams climb them.</module>
      <module name="oslo">Oslo lies on a fjord.</module>
    </union>
    Rain is <module name="rain" cache="false">likely</module> possible.
  </module>
  <module name="tone">Be brief.</module>
</schema>"""


def test_a_travel_plan_with_parameters_and_a_union():
    ranges, units, made = planned(
        TRAVEL,
        """<prompt schema="travel">
             <trip days="three or four"><oslo/><rain/></trip>
             What shall we see?
             <tone/>
             Thanks.
           </prompt>""",
    )
    assert ranges == [
        ("module", "#1", "You are a guide.", 0, "#1", 0),
        ("module", "trip", "The trip lasts", 4, "trip", 0),
        ("argument", "trip:days", "three or four", 7, None, 0),
        ("module", "trip", "in", 11, "trip", 3),
        # "month" has no argument: 12 and 13 stay free
        ("module", "trip", ".", 14, "trip", 4),
        ("module", "trip/oslo", "Oslo lies on a fjord.", 15, "trip/oslo", 0),
        # Lisbon would end at 26
        ("module", "trip", "Rain is", 26, "trip", 5),
        ("module", "trip/rain", "likely", 28, None, 0),
        ("module", "trip", "possible.", 29, "trip", 7),
        ("text", "", "What shall we see?", 30, None, 0),
        ("module", "tone", "Be brief.", 34, "tone", 0),
        ("text", "", "Thanks.", 36, None, 0),
    ]
    assert units == {
        "#1": "You are a guide.",
        "trip": "The trip lasts in . Rain is possible.",
        "trip/oslo": "Oslo lies on a fjord.",
        "tone": "Be brief.",
    }
    trip = made.units[1]
    assert trip.positions == (0, 1, 2, 7, 10, 22, 23, 25)
    assert trip.members == ("trip",)
    assert made.length == 37


def test_a_travel_plan_whose_positions_follow_the_prompt():
    ranges, _, made = planned(
        TRAVEL,
        '<prompt schema="travel">Hello. <tone/><trip month="May"><lisbon wish="By sea."/></trip> Where first?</prompt>',
        layout="prompt",
    )
    assert ranges == [
        ("module", "#1", "You are a guide.", 0, "#1", 0),
        ("text", "", "Hello.", 4, None, 0),
        ("module", "tone", "Be brief.", 5, "tone", 0),
        ("module", "trip", "The trip lasts", 7, "trip", 0),
        ("module", "trip", "in", 14, "trip", 3),
        ("argument", "trip:month", "May", 15, None, 0),
        ("module", "trip", ".", 17, "trip", 4),
        ("module", "trip/lisbon", "Lisbon lies on seven hills.", 18, "trip/lisbon", 0),
        ("argument", "trip/lisbon:wish", "By sea.", 23, None, 0),
        ("module", "trip/lisbon", "Trams climb them.", 26, "trip/lisbon", 5),
        ("module", "trip", "Rain is", 29, "trip", 5),
        ("module", "trip", "possible.", 32, "trip", 7),
        ("text", "", "Where first?", 33, None, 0),
    ]
    assert made.units[3].positions == (0, 1, 2, 3, 4, 8, 9, 10)


CODE = """
<schema name="code">
  Files of a project:
  <module name="heap.py">def push(heap, item): ...</module>
  <module name="graph.py">import heap
<import name="heap.py"/>
def shortest(graph): ...</module>
  <module name="test_graph.py"><import name="graph.py"/>def test(): ...</module>
  End of files.
  <scaffold name="graph"><use name="graph.py/heap.py"/><use name="graph.py"/></scaffold>
</schema>"""


def test_code_with_a_module_for_each_file_and_imports():
    ranges, units, made = planned(
        CODE, '<prompt schema="code"><graph.py><heap.py/></graph.py><heap.py/> Explain push.</prompt>'
    )
    # The schema: 4 words, heap.py 4, graph.py 2 + 4 + 3, test_graph.py 9 + 3, and 3 words from 29 on.
    assert ranges == [
        ("module", "#1", "Files of a project:", 0, "#1", 0),
        ("module", "graph.py", "import heap", 8, "graph", 0),
        ("module", "graph.py/heap.py", "def push(heap, item): ...", 10, "graph", 2),
        ("module", "graph.py", "def shortest(graph): ...", 14, "graph", 6),
        ("module", "#2", "End of files.", 29, "#2", 0),
        ("module", "heap.py", "def push(heap, item): ...", 32, "heap.py", 0),
        ("text", "", "Explain push.", 36, None, 0),
    ]
    assert units["graph"] == "import heap def push(heap, item): ... def shortest(graph): ..."
    graph = made.units[1]
    assert graph.members == ("graph.py", "graph.py/heap.py")
    assert graph.positions == tuple(range(9))


QUESTIONS = """
<schema name="questions">
  <module name="rules">Answer from the documents.</module>
  <module name="report">The harbour froze in March.</module>
  <module name="letter">My ship waits.</module>
  <module name="diary">Ice again.</module>
  <scaffold name="north"><use name="diary"/><use name="report"/></scaffold>
  <scaffold name="rest"><use name="rules"/><use name="diary"/></scaffold>
</schema>"""


@pytest.mark.parametrize(
    ("modules", "layout", "units"),
    [
        # all of "north" lies as in the schema, so "rest" cannot have the diary too
        ("<rules/><report/><diary/>", "schema", {"rules": 0, "north": 4}),
        ("<rules/><report/>why?<diary/>", "schema", {"rules": 0, "north": 4}),
        ("<rules/><report/><letter/><diary/>", "prompt", {"rules": 0, "north": 4, "letter": 9}),
        ("<rules/><diary/>", "schema", {"rest": 0}),
        # a member is missing, or lies elsewhere
        ("<rules/><report/>", "schema", {"rules": 0, "report": 4}),
        ("<report/><diary/>", "prompt", {"report": 0, "diary": 5}),
        ("<diary/><report/>", "prompt", {"diary": 0, "report": 2}),
        ("<report/>why did this happen?<diary/>", "schema", {"report": 4, "diary": 13}),
        # both are moved by as much
        ("one two three four five six<report/><letter/><diary/>", "schema", {"north": 6, "letter": 11}),
        ("<report/><letter/><diary/>", "prompt", {"north": 0, "letter": 5}),
    ],
)
def test_documents_are_encoded_together_if_all_are_there_as_in_the_schema(modules, layout, units):
    _, _, made = planned(QUESTIONS, f'<prompt schema="questions">{modules}</prompt>', layout)
    assert [(unit.name, begin_of(made, unit)) for unit in made.units] == list(units.items())
    for unit in made.units:
        if unit.name == "north":
            assert unit.members == ("report", "diary")
            assert unit.positions == (0, 1, 2, 3, 4, 8, 9)


def begin_of(made, unit: Unit) -> int:
    return next(each.positions[0] for each in made.ranges if each.unit is unit)


EXAMPLES = """
<schema name="examples">
  <module name="head">
    Task:
    <union scaffold="sum">
      <module name="sum">Add. <module name="more">2 3 = 5</module></module>
      <module name="sort">Sort.</module>
    </union>
    <union scaffold="short">
      <module name="short">One line.</module>
      <module name="long">Many words here.</module>
    </union>
    Go!
  </module>
</schema>"""


def test_few_shots_with_a_union_of_tasks_whose_defaults_are_encoded_with_the_module_around():
    defaults = '<prompt schema="examples"><head><sum><more/></sum><short/></head>1 4</prompt>'
    ranges, units, made = planned(EXAMPLES, defaults)
    assert ranges == [
        ("module", "head", "Task:", 0, "head", 0),
        ("module", "head/sum", "Add.", 1, "head", 1),
        ("module", "head/sum/more", "2 3 = 5", 2, "head/sum/more", 0),
        ("module", "head/short", "One line.", 6, "head", 2),
        ("module", "head", "Go!", 9, "head", 4),
        ("text", "", "1 4", 10, None, 0),
    ]
    assert units == {"head": "Task: Add. One line. Go!", "head/sum/more": "2 3 = 5"}
    assert made.units[0].members == ("head", "head/sum", "head/short")
    assert made.units[0].positions == (0, 1, 6, 7, 9)
    other = defaults.replace("<short/>", "<long/>")
    _, units, made = planned(EXAMPLES, other)
    assert list(units) == ["head", "head/sum", "head/sum/more", "head/long"]
    assert [unit.members for unit in made.units] == [("head",), ("head/sum",), ("head/sum/more",), ("head/long",)]


def test_defaults_of_the_top_level_are_encoded_together_under_the_schemas_name():
    member = '<union scaffold="{0}"><module name="{0}">{0}</module><module name="no{0}"/></union>'
    schema = f'<schema name="s">{member.format("a")}{member.format("b")}</schema>'
    _, units, _ = planned(schema, '<prompt schema="s"><a/><b/></prompt>')
    assert units == {"s": "a b"}
    _, units, _ = planned(schema, '<prompt schema="s"><b/><a/></prompt>', "prompt")
    assert units == {"b": "b", "a": "a"}


def test_a_module_that_is_not_cached_is_in_no_unit_and_its_children_are():
    schema = '<schema name="s"><module name="a" cache="false">x<union scaffold="b"><module name="b">y</module></union></module></schema>'
    ranges, units, _ = planned(schema, '<prompt schema="s"><a><b/></a></prompt>')
    assert ranges == [("module", "a", "x", 0, None, 0), ("module", "a/b", "y", 1, "a/b", 0)]
    assert units == {"a/b": "y"}


def test_texts_of_the_top_level_follow_the_nearest_imported_module_before_them():
    schema = '<schema name="s">t1<module name="a">a</module>t2<module name="b">b</module>t3<module name="c">c</module>t4</schema>'
    for modules, order in [
        ("", "t1 t2 t3 t4"),
        ("u", "t1 t2 t3 t4 u"),
        ("u<a/>v<c/>w", "t1 u a t2 t3 v c t4 w"),
        ("<c/>u<a/>v", "t1 c t4 u a t2 t3 v"),
    ]:
        for layout in ("schema", "prompt"):
            ranges, _, _ = planned(schema, f'<prompt schema="s">{modules}</prompt>', layout)
            assert " ".join(words for _, _, words, *_ in ranges) == order


def test_imports_of_imports_are_not_copied():
    """Fourteen modules, each with the next one twice: 2^14 places of the last."""
    modules = "".join(
        f'<module name="m{i}"><import name="m{i + 1}"/><module name="n"><import name="m{i + 1}"/></module></module>'
        for i in range(14)
    )
    schema = parse_schema(
        f'<schema name="s">{modules}<module name="m14">x</module><module name="end">y</module></schema>'
    )
    assert len(schema.modules) == 1 + 2 * 14 + 2
    made = plan(parse_prompt('<prompt schema="s"><end/></prompt>', schema), letters)
    assert made.positions.tolist() == [2**15 - 1]
    nested = "".join(f"<m{i}><n>" for i in range(14)) + "<m14/>" + "".join(f"</n></m{i}>" for i in reversed(range(14)))
    made = plan(parse_prompt(f'<prompt schema="s">{nested}</prompt>', schema), letters)
    assert made.positions.tolist() == [2**14 - 1]
    assert made.ranges[0].name == "/".join(f"m{i}/n" for i in range(14)) + "/m14"


def test_the_example_of_the_manual_is_planned_and_its_errors_are_these():
    page = ROOT / "docs/modules.md"
    if not page.exists():
        pytest.skip("without the repository")
    schema, prompt = re.findall(r"^```xml\n(.*?)^```", page.read_text(), re.M | re.S)[:2]
    ranges, _, _ = planned(schema, prompt)
    assert " ".join(words for _, _, words, *_ in ranges) == (
        "You are a guide. The trip lasts three or four days. Oslo lies on a fjord. What shall we see first?"
    )
    for wrong in (prompt.replace("><oslo/>", ">\n    <maui/>"), prompt.replace("three or four", "a b c d e f g")):
        with pytest.raises(PmlError) as refused:
            planned(schema, wrong)
        assert f"\n    {refused.value}\n" in page.read_text()
