"""Hugging Face ``generate()`` that begins with the stored prefix and stores what it computed.

>>> store = PrefixStore(model, client)
>>> cache = store.cache(input_ids)                            # what is stored of the prompt is in it
>>> out = model.generate(input_ids, past_key_values=cache)    # computes the rest
>>> cache.store(out)                                          # the next prompt finds this one, and the answer

``store.generate(input_ids, ...)`` does all three. If the store fails, the model computes the missing part.

For prompts made of modules in any order (docs/modules.md):

>>> store = ModuleStore(model, client, schema, tokenizer=tokenizer)
>>> answer = store.prefill(prompt, mode="blend")              # modules from the store, the rest computed
>>> out = model.generate(**answer.inputs())                   # or store.generate(prompt, mode="blend")

Also caches for ``past_key_values=`` alone, without a store: all tokens, a window, a window with attention sinks, few bits
(docs/engines/transformers.md).
"""

from .layer_caches import GrowingCache, QuantisedCache, SinkCache, SlidingCache, StaticCache
from .model_identity import weights_digest
from .module_store import ModuleStore
from .prefilled import Origin, Prefilled, RangeOrigins
from .prefix_store import PrefixStore, StoredCache

__all__ = [
    "GrowingCache",
    "ModuleStore",
    "Origin",
    "Prefilled",
    "PrefixStore",
    "QuantisedCache",
    "RangeOrigins",
    "SinkCache",
    "SlidingCache",
    "StaticCache",
    "StoredCache",
    "weights_digest",
]
