"""Tokenizers, random schemas, and random prompts for them."""

from __future__ import annotations

from hypothesis import strategies as st

from kvstore.pml import Argument, Import, Imported, Module, Parameter, Prompt, Scaffold, Schema, Text, Union, Use

NAMES = [*"abcdefgh", "A-1", "_b.c", "prompt", "name", "xml"]
LENGTH_MAX = 4
IMPORT_HEIGHT_MAX = 6

_letters = st.one_of(
    st.sampled_from(" \t\n\r<>&'\"]"), st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="\ufffe\uffff")
)
_texts = st.text(_letters, min_size=1, max_size=8)


def letters(text: str) -> list[int]:
    """One token a letter."""
    return [ord(each) for each in text]


class Words:
    """One token a word, numbered as they come. The same interface as Hugging Face's tokenizers."""

    def __init__(self) -> None:
        self.words: list[str] = []
        self.texts: list[str] = []

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert not add_special_tokens
        self.texts.append(text)
        words = text.split()
        self.words += [word for word in dict.fromkeys(words) if word not in self.words]
        return [self.words.index(word) for word in words]

    def decode(self, tokens) -> str:
        return " ".join(self.words[token] for token in tokens)


@st.composite
def schemas(draw):
    heights: dict[str, int] = {}  # of the modules made so far, by path: those may be imported
    items = _without_neighbours(_items(draw, "", heights, is_root=True))
    schema = Schema(draw(st.sampled_from(NAMES)), items)
    names = draw(st.lists(st.sampled_from(NAMES), max_size=3, unique=True))
    scaffolds = [Scaffold(name, tuple(map(Use, paths))) for name in names if (paths := _scaffold_paths(draw, schema))]
    return Schema(schema.name, items, tuple(scaffolds))


def _items(draw, path, heights, *, is_root=False):
    used: set[str] = set()
    parameters = set()
    depth = path.count("/") + (path != "")
    kinds = ["text", "text", *(["module", "union"] if depth < 2 else []), *([] if is_root else ["parameter", "import"])]
    items = []

    def module():
        name = draw(st.sampled_from([name for name in NAMES if name not in used]))
        used.add(name)
        inner = f"{path}/{name}" if path else name
        made = Module(name, _without_neighbours(_items(draw, inner, heights)), is_cached=draw(st.integers(0, 4)) > 0)
        children = [child.definition(inner) for child in made.each_child()]
        heights[inner] = 1 + max((heights[child] for child in children), default=0)
        return made

    for kind in draw(st.lists(st.sampled_from(kinds), max_size=4 if is_root else 3)):
        if kind == "text":
            items.append(Text(draw(_texts)))
        elif kind == "module":
            items.append(module())
        elif kind == "union":
            members = tuple(module() for _ in range(draw(st.integers(1, 2))))
            choices = [None, *(member.name for member in members if member.is_cached)]
            items.append(Union(members, draw(st.sampled_from(choices))))
        elif kind == "parameter":
            items.append(
                Parameter(
                    draw(st.sampled_from([name for name in NAMES if name not in parameters])),
                    draw(st.integers(1, LENGTH_MAX)),
                )
            )
            parameters.add(items[-1].name)
        else:
            known = [each for each in heights if heights[each] < IMPORT_HEIGHT_MAX and Import(each).name not in used]
            if known:
                items.append(Import(draw(st.sampled_from(known))))
                used.add(items[-1].name)
    return items


def _without_neighbours(items):
    """Texts side by side would be read as one."""
    return tuple(
        item
        for item, before in zip(items, [None, *items], strict=False)
        if not isinstance(item, Text) or not isinstance(before, Text)
    )


def _scaffold_paths(draw, schema):
    """The paths of a prompt's cached modules, or of some of them: never two members of a union."""
    paths = []

    def add(imported, around, definition):
        child = schema.modules[definition].children[imported.name]
        path, inner = around + imported.name, child.definition(definition)
        if schema.modules[inner].is_cached:
            paths.append(path)
        for each in imported.items:
            add(each, path + "/", inner)

    for item in draw(prompts(schema)).items:
        if isinstance(item, Imported):
            add(item, "", "")
    if len(paths) < 2:
        return []
    return draw(st.lists(st.sampled_from(paths), min_size=2, unique=True))


@st.composite
def prompts(draw, schema):
    """A prompt that the schema allows, whose arguments have at most as many letters as positions."""

    def imported(definition):
        module = schema.modules[definition]
        made = []
        for index in sorted({child.item_index for child in module.children.values()}):
            members = [child for child in module.children.values() if child.item_index == index]
            child = draw(st.sampled_from([None, *members, *members]))
            if child is not None:
                inner = child.definition(definition)
                made.append(Imported(child.item.name, arguments(schema.modules[inner]), imported(inner)))
        return tuple(made)

    def arguments(module):
        chosen = [each for each in module.parameters.values() if draw(st.booleans())]
        return tuple(Argument(each.name, draw(st.text(_letters, max_size=each.length))) for each in chosen)

    items = []
    for item in draw(st.permutations(imported(""))):
        items += [Text(draw(_texts)), item] if draw(st.booleans()) else [item]
    if draw(st.booleans()):
        items.append(Text(draw(_texts)))
    return Prompt(schema, tuple(items))
