// client/python/src/calls/: Client, Call, ReadyQueue and Memory: the base of Python's Client, Future and event loops.
// Start here.
//
// Each call is one entry into C++: arguments are checked and borrowed with the GIL held, the rest runs without it. An
// abandoned call keeps its buffers until it has ended.
//
// Files, in reading order:
//   py_call.h          one call as Python sees it, and the queue that reports its end
//   results.h          results as Python objects
//   device_memory.h    a GPU's memory that a client lends
//   py_client.h        the client: begins and starts calls
//   bind_chains.cc     calls on the blocks of a chain, and their results
//   bind_sets.cc       the same for sets
//   bind_contexts.cc   named contexts, their lists and files
//   bind_nodes.cc      calls about the nodes and the client itself
//   bind_memory.cc     Memory and DeviceMemory, and their calls
//
// Their names have no documentation: the package's Python files wrap and document each.
#pragma once

#include <nanobind/nanobind.h>

#include "client/python/src/calls/py_client.h"

namespace kv::python {

void bind_calls(nb::module_& module);
/// The others add their calls to the client's class, and the classes of the calls' results to the module.
void bind_chains(nb::module_& module, nb::class_<PyClient>& client);
void bind_sets(nb::module_& module, nb::class_<PyClient>& client);
void bind_contexts(nb::module_& module, nb::class_<PyClient>& client);
void bind_nodes(nb::class_<PyClient>& client);
void bind_memory(nb::module_& module, nb::class_<PyClient>& client);

}  // namespace kv::python
