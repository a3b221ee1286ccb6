// client/python/src/calls/: Client, Queue, Future and Memory: the base of Python's Client and event loops.
// Start here.
//
// A call is a Request in and a Completion out, as in C++ and C: Client.call() waits for it, Queue.call() does not. Its
// arguments are checked and borrowed with the GIL held, the rest runs without it. A call that Python drops keeps its
// buffers until it has ended.
//
// Files, in reading order:
//   client_core.h      the C++ client that queues, calls and memory share; calls that block
//   caller.h           what calls are made on: a client or a queue
//   queue.h            a call's life: a request from Python's arguments, in flight, its end
//   results.h          results as Python objects; miss_report.cc asks and tells why a chain is not found
//   py_client.h        the client as Python sees it, from client_config.h's nodes and identity
//   bind_client.cc     it and its questions about nodes; Queue and Future
//   bind_contexts.cc   named contexts, their lists and files
//   lent_memory.h      host memory that nodes fill and drain; device_memory.h: a GPU's
//   bind_memory.cc     Memory and DeviceMemory, and their calls
//
// The package's Python files document the calls; the stub (kvstore/_kvstore.pyi) documents the classes.
#pragma once

#include <nanobind/nanobind.h>

#include "client/python/src/calls/py_client.h"
#include "client/python/src/calls/queue.h"

namespace kv::python {

using ClientClass = nb::class_<PyClient, Caller>;
using QueueClass = nb::class_<Queue, Caller>;

void bind_results(nb::module_& module);
void bind_caller(nb::module_& module);  ///< Before both classes.
/// The others add their calls to the classes, and the classes of the calls' results to the module.
void bind_miss_report(nb::module_& module, ClientClass& client);
void bind_contexts(nb::module_& module, ClientClass& client);
void bind_memory(nb::module_& module, ClientClass& client);

}  // namespace kv::python
