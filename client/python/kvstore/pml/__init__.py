"""Prompt modules: a schema of texts that many prompts use, prompts that import some of them, and where their tokens lie (docs/modules.md).

>>> schema = parse_schema('<schema name="travel"><module name="trip">Plan a trip of <parameter name="days" length="4"/></module></schema>')
>>> prompt = parse_prompt('<prompt schema="travel"><trip days="three days"/> Where to?</prompt>', schema)
>>> plan(prompt, tokenizer).units                    # what may be stored: each is computed once, for all prompts

In reading order: schema.py (what a schema is), rules.py (what it must not be), parsing.py, prompt.py, plan.py (ranges and units), placing.py (positions),
lengths.py (tokens), markup.py (XML, and which whitespace is text), errors.py. Knows no engine and no store.
"""

from .errors import PmlError
from .markup import Text
from .parsing import parse_schema
from .plan import Plan, Range, Unit, plan
from .prompt import Argument, Imported, Prompt, parse_prompt
from .schema import Import, Module, Parameter, Scaffold, Schema, Union, Use

__all__ = [
    "Argument",
    "Import",
    "Imported",
    "Module",
    "Parameter",
    "Plan",
    "PmlError",
    "Prompt",
    "Range",
    "Scaffold",
    "Schema",
    "Text",
    "Union",
    "Unit",
    "Use",
    "parse_prompt",
    "parse_schema",
    "plan",
]
