"""Prompt modules: arguments, tokenizers, and what is kept of a schema."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from pml_strategies import Words, letters

from kvstore.errors import BadRequest
from kvstore.pml import PmlError, parse_prompt, parse_schema, plan

GUIDE = '<schema name="guide">You are a guide.<module name="tone">Be brief.</module></schema>'
ONE = parse_schema('<schema name="s"><module name="a"><parameter name="p" length="3"/>x</module></schema>')


def one(argument: str):
    return parse_prompt(f'<prompt schema="s">\n  hi <a p="{argument}"/></prompt>', ONE)


def test_an_argument_has_at_most_the_tokens_of_its_parameters_length():
    assert plan(one("123"), letters).tokens.tolist() == letters("hi 123x")
    assert plan(one("1"), letters).positions.tolist() == [0, 1, 2, 3, 6]
    with pytest.raises(PmlError) as refused:
        plan(one("1234"), letters)
    error = refused.value
    assert (error.line, error.column) == (2, 6)
    assert error.reason == "found 4 tokens in the argument 'p' of <a>; expected at most 3"


def test_positions_beyond_31_bits_are_refused():
    parameter = '<parameter name="p" length="1048576"/>'
    modules = "".join(
        f'<module name="m{i}"><import name="m{i + 1}"/><module name="n"><import name="m{i + 1}"/></module></module>\n'
        for i in range(11)
    )
    schema = parse_schema(f'<schema name="s">\n{modules}<module name="m11">{parameter}</module></schema>')
    with pytest.raises(PmlError) as refused:
        plan(parse_prompt('<prompt schema="s"/>', schema), letters)
    error = refused.value
    # m11 has 2^20 positions, m10 twice as many, and m0 2^31: half of them in its second item
    assert (error.line, error.column) == (2, 38)
    assert error.reason == f"found a module of {2**31} positions up to here; expected at most {2**31 - 1}"


@pytest.mark.parametrize(
    ("tokens", "reason"),
    [
        ([1, -1], "tokenizer: -1 is a token of 'x'; allowed are 0 to 4294967295"),
        ([1 << 32], "tokenizer: 4294967296 is a token of 'x'; allowed are 0 to 4294967295"),
        (
            [1.0],
            "tokenizer: 'float' object cannot be interpreted as an integer in the tokens of 'x'; allowed are integers",
        ),
        (
            ["a"],
            "tokenizer: 'str' object cannot be interpreted as an integer in the tokens of 'x'; allowed are integers",
        ),
        (None, "tokenizer: 'NoneType' object is not iterable in the tokens of 'x'; allowed are integers"),
    ],
)
def test_what_is_no_token_is_refused(tokens, reason):
    with pytest.raises(BadRequest) as refused:
        plan(one(""), lambda text: tokens)
    assert str(refused.value) == reason


def test_tokens_may_be_arrays_and_reach_32_bits():
    made = plan(one(""), lambda text: np.array([0, 2**32 - 1], np.uint64)[: len(text)])
    assert made.tokens.tolist() == [0, 2**32 - 1, 0]


def test_a_layout_has_one_of_two_names():
    with pytest.raises(BadRequest, match=r"^layout is 'compact'; allowed are 'schema' and 'prompt'$"):
        plan(one(""), letters, layout="compact")  # type: ignore[arg-type]


def test_a_plans_arrays_cannot_be_written():
    made = plan(one("12"), letters)
    for array in (made.tokens, made.positions):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_the_schemas_texts_are_tokenised_once_for_all_prompts():
    schema = parse_schema(GUIDE)
    words = Words()
    first = plan(parse_prompt('<prompt schema="guide"><tone/></prompt>', schema), words)
    count = len(words.texts)
    second = plan(parse_prompt('<prompt schema="guide">Hello.<tone/></prompt>', parse_schema(GUIDE)), words)
    assert words.texts[count:] == ["Hello."]
    assert second.units == first.units
    others = Words()
    others.encode("a guide", add_special_tokens=False)
    assert plan(parse_prompt('<prompt schema="guide"/>', schema), others).tokens.tolist() == [2, 3, 0, 4]


def test_a_schema_that_is_not_used_any_more_is_freed():
    schema = parse_schema('<schema name="passing"><module name="a">x</module></schema>')
    assert plan(parse_prompt('<prompt schema="passing"><a/></prompt>', schema), letters).token_count == 1
    watched = weakref.ref(schema)
    del schema
    gc.collect()
    assert watched() is None
