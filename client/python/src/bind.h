// client/python/src/bind.h: the parts of the extension module kvstore._kvstore.
//
// Files, in reading order:
//   module.cc           the module, and its parts
//   errors.h            errors as exceptions
//   without_gil.h       running without the GIL
//   ending_threads.cc   threads that Python ends at its shutdown
//   waits.h             times in seconds, and waits that Ctrl-C ends
//   buffers.h           Python objects' memory: checked, held, used without a copy
//   numpy_arrays.h      results as NumPy arrays
//   bind_namespace.cc   namespace records and block hashes
//   calls/calls.h       Client, Queue, Future, Memory: all that asks nodes
//   caches/             engines' caches, on the host and on GPUs:
//     device.h            a GPU's streams and events, and objects kept until a device has used them
//     moves.h             what a call does to rows as they move
//     cache.h             a layout with its memory; call_rows.h: the rows of a call
//     device_call.h       a call that moves rows on a GPU
//     bind_device.cc      Stream, Event
//     bind_layout.cc      layouts, and moving blocks between them
//     bind_verified.cc    the same with the checksums of the store's blocks
//     bind_rows.cc        slots from block tables and CSR page tables
//     bind_pruning.cc     pruned caches: tokens that each head keeps
//     bind_paging.cc      page pools, sequences, plans for shared prefixes
//     bind_masks.cc       packed attention masks
//     bind_layer_cache.cc caches that a model calls layer by layer
//     bind_model.cc       a model's cache by its config.json
#pragma once

#include <nanobind/nanobind.h>

namespace kv::python {

void bind_namespace(nanobind::module_& module);
void bind_client(nanobind::module_& module);
void bind_layout(nanobind::module_& module);
void bind_rows(nanobind::module_& module);
void bind_pruning(nanobind::module_& module);
void bind_verified(nanobind::module_& module);
void bind_device(nanobind::module_& module);
void bind_paging(nanobind::module_& module);
void bind_masks(nanobind::module_& module);
void bind_layer_cache(nanobind::module_& module);
void bind_model(nanobind::module_& module);

}  // namespace kv::python
