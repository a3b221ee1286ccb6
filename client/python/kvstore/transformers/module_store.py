"""Prompts made of modules: each module is encoded once, stored alone, and placed at the prompt's positions (docs/modules.md)."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from ..client import Client
from ..errors import BadRequest
from ..pml import Plan, Prompt, Schema, Unit, parse_prompt, parse_schema, plan
from ..sets import SetSpace
from . import blend
from .first_layers import FirstLayers
from .key_rotation import find_rotation
from .model_identity import ModelIdentity
from .module_blocks import ModuleBlocks
from .module_names import block_names, module_namespace
from .placed_cache import PlacedCache
from .positioned import PositionedModel
from .prefilled import Origin, Prefilled, origins_of
from .prefix_store import PrefixStore

__all__ = ["ModuleStore"]

MODES = ("exact", "modular", "blend")


class ModuleStore:
    """Prefills of prompts of one schema.

    ``schema``: a PML text, or a parsed one. ``tokenizer``: as kvstore.pml.plan() takes it. Both may be missing if all prompts are plans.
    ``block_size``: tokens of a block, in the namespace of modules and in that of mode ``exact``, which is a PrefixStore's. Other arguments
    and the rules for the model are those of PrefixStore. Raises Unsupported for models whose keys do not turn with their positions in a way
    that was found by trying, and for layers with windows. Not for several threads at once.

    Modes, which share no blocks:
    ``exact``: the whole prompt is a text; a stored prefix is used. The tokens are those without a store.
    ``modular``: modules do not see each other; text and arguments see all before them.
    ``blend``: as modular; then the ``share`` of the modules' tokens whose keys differ most behind ``layers`` layers that all tokens go
    through is computed anew.
    """

    def __init__(
        self,
        model: Any,
        client: Client,
        schema: Schema | str | None = None,
        *,
        tokenizer: Any = None,
        block_size: int = 32,
        deadline: float | None = None,
        name: str | None = None,
        revision: str | None = None,
        **fields: Any,
    ) -> None:
        self._model = model
        self._identity = ModelIdentity(model, name=name, revision=revision)
        self._run = PositionedModel(model)
        shape = self._identity.shape
        rotation = find_rotation(self._run)
        namespace = module_namespace(self._identity, block_size, fields)
        self._modules = ModuleBlocks(self._run, shape, rotation, client, namespace, block_size, deadline)
        self._exact = PrefixStore(
            model, client, block_size=block_size, deadline=deadline, identity=self._identity, **fields
        )
        self._schema = parse_schema(schema) if isinstance(schema, str) else schema
        self._tokenizer = tokenizer
        self._block_size = block_size

    @property
    def space(self) -> SetSpace:
        """The namespace of modules."""
        return self._modules.space

    def block_names(self, unit: Unit) -> npt.NDArray[np.uint8]:
        """The names of a unit's blocks in :attr:`space`: to retain a module, or to drop it."""
        return block_names(self.space.namespace, unit.tokens, unit.positions, self._block_size)

    def prefill(
        self, prompt: Plan | Prompt | str, *, mode: str = "modular", share: float = 0.15, layers: int = 1
    ) -> Prefilled:
        """Computes what is missing of a prompt, and stores it. The prompt's last token is always computed: its logits choose the next."""
        if mode not in MODES:
            raise BadRequest(f"mode: {mode!r}, allowed are {', '.join(MODES)}")
        if mode == "blend":
            blend.check_options(share, layers, self._identity.shape.layer_count)
        self._identity.check_unchanged()
        made = self.plan(prompt)
        return self._prefill_exact(made) if mode == "exact" else self._prefill_modules(made, mode, share, layers)

    def generate(
        self,
        prompt: Plan | Prompt | str,
        *,
        mode: str = "modular",
        share: float = 0.15,
        layers: int = 1,
        **options: Any,
    ) -> torch.Tensor:
        """``model.generate()`` behind the prompt: the sequence with the prompt's tokens. Greedy or sampled, without beams."""
        made = self.prefill(prompt, mode=mode, share=share, layers=layers)
        out = self._model.generate(**made.inputs(), **options)
        if mode == "exact":
            made.cache.store(out if isinstance(out, torch.Tensor) else out.sequences)
        return out

    def plan(self, prompt: Plan | Prompt | str, *, layout: Literal["schema", "prompt"] = "schema") -> Plan:
        """The prompt's tokens and their positions, as kvstore.pml.plan() places them; a plan as it is."""
        if not isinstance(prompt, Plan):
            if self._schema is None or self._tokenizer is None:
                missing = "schema" if self._schema is None else "tokenizer"
                raise BadRequest(f"{missing}: None; without it prompts are plans, not {type(prompt).__name__}")
            parsed = parse_prompt(prompt, self._schema) if isinstance(prompt, str) else prompt
            prompt = plan(parsed, self._tokenizer, layout=layout)
        if prompt.token_count == 0:
            raise BadRequest("prompt: has no tokens")
        if (np.diff(prompt.positions) <= 0).any() or prompt.positions[0] < 0:
            raise BadRequest("prompt: its positions do not ascend from 0 on")
        return prompt

    def _prefill_exact(self, prompt: Plan) -> Prefilled:
        tokens = np.array(prompt.tokens)
        ids = torch.from_numpy(tokens).unsqueeze(0)
        cache = self._exact.cache(ids)
        loaded = cache.cached_token_count
        positions = np.arange(len(tokens))
        logits = self._run(tokens[loaded:], positions[loaded:], cache)
        cache.store(ids)
        origins = np.where(positions < loaded, Origin.STORED, Origin.COMPUTED)
        ranges = origins_of(prompt.ranges, origins)
        return Prefilled("exact", cache, logits, tokens, positions, len(tokens), ranges, cache.why)

    def _prefill_modules(self, prompt: Plan, mode: str, share: float, layers: int) -> Prefilled:
        tokens, positions = np.array(prompt.tokens), np.array(prompt.positions)  # torch wants them writable
        loaded = self._modules.load(each.unit for each in prompt.ranges if each.unit is not None)
        origins = np.concatenate([np.full(len(each.tokens), loaded.origin_of(each.unit)) for each in prompt.ranges])
        if origins[-1] != Origin.COMPUTED:
            origins[-1] = Origin.RECOMPUTED
        cache = PlacedCache(self._modules.place(loaded, prompt.ranges, len(tokens)))
        first = None
        if mode == "blend":
            first = FirstLayers(
                self._run, tokens, positions, count=layers, layer_count=self._identity.shape.layer_count
            )
            (of_modules,) = np.nonzero(origins < Origin.COMPUTED)
            origins[blend.choose(cache, first, of_modules, share)] = Origin.RECOMPUTED
        (rows,) = np.nonzero(origins >= Origin.COMPUTED)
        logits = cache.compute(self._run, tokens, positions, rows, first)
        self._modules.store(loaded)
        ranges = origins_of(prompt.ranges, origins)
        return Prefilled(mode, cache, logits, tokens, positions, prompt.length, ranges, loaded.why)
