"""Prompt modules: what holds for every plan, with random schemas and prompts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from pml_strategies import letters, prompts, schemas

from kvstore.pml import Imported, Parameter, Prompt, Text, plan


def selected(schema, items, definition=""):
    """The texts and arguments that a prompt contains, without the schema's own texts, in order."""
    for item in items:
        if isinstance(item, Text):
            yield item.text
            continue
        inner = schema.modules[definition].children[item.name].definition(definition)
        module = schema.modules[inner]
        arguments = {each.name: each.text for each in item.arguments}
        imported = {module.children[each.name].item_index: each for each in item.items}
        for index, each in enumerate(module.items):
            if isinstance(each, Text):
                yield each.text
            elif isinstance(each, Parameter):
                yield arguments.get(each.name, "")
            elif index in imported:
                yield from selected(schema, [imported[index]], inner)


@given(
    schemas().flatmap(lambda schema: st.tuples(prompts(schema), prompts(schema))), st.sampled_from(["schema", "prompt"])
)
def test_ranges_are_slices_of_units_in_the_order_of_positions(two, layout):
    units = {}
    for prompt in two:
        made = plan(prompt, letters, layout=layout)
        assert (np.diff(made.positions) > 0).all()
        assert made.tokens.shape == made.positions.shape
        shifts = {}
        taken = {}
        for each in made.ranges:
            assert len(each.tokens) == len(each.positions) > 0
            assert each.positions == tuple(range(each.positions[0], each.positions[-1] + 1))
            if each.unit is None:
                assert each.unit_begin == 0
                continue
            part = slice(each.unit_begin, each.unit_begin + len(each.tokens))
            assert each.unit.tokens[part] == each.tokens
            shift = each.positions[0] - each.unit.positions[each.unit_begin]
            assert each.positions == tuple(position + shift for position in each.unit.positions[part])
            assert shifts.setdefault(id(each.unit), shift) == shift
            assert each.unit_begin == taken.get(id(each.unit), 0)  # all of a unit is there, in order
            taken[id(each.unit)] = part.stop
            assert each.kind == "module" and each.name in each.unit.members
        for unit in made.units:
            assert taken[id(unit)] == len(unit.tokens) == len(unit.positions)
            assert unit.positions[0] == 0 and (np.diff(unit.positions) > 0).all()
            # what the model encodes together does not depend on the prompt
            assert units.setdefault((unit.name, unit.members), unit) == unit
        texts = "".join(selected(prompt.schema, prompt.items))
        own = "".join("".join(map(chr, each.tokens)) for each in made.ranges if not each.name.startswith("#"))
        assert own == texts
        schemas_own = sum(len(item.text) for item in prompt.schema.items if isinstance(item, Text))
        assert made.token_count == len(texts) + schemas_own


def as_dict(made):
    return dict(zip(made.positions.tolist(), made.tokens.tolist(), strict=True))


@given(schemas().flatmap(prompts))
def test_modules_in_the_schemas_order_keep_its_positions(prompt):
    schema = prompt.schema
    modules = [item for item in prompt.items if isinstance(item, Imported)]
    modules.sort(key=lambda item: schema.modules[""].children[item.name].item_index)
    together = as_dict(plan(Prompt(schema, tuple(modules)), letters))
    for module in modules:
        alone = as_dict(plan(Prompt(schema, (module,)), letters))
        assert alone == {position: together[position] for position in alone}
