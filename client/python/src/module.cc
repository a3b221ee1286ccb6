// The extension module kvstore._kvstore. Users see the Python around it (client/python/kvstore), and its classes.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include "base/assert.h"
#include "base/text/variables.h"
#include "client/python/src/bind.h"
#include "client/python/src/errors.h"

NB_MODULE(_kvstore, module) {
  kv::set_assert_policy(kv::AssertPolicy::kThrow);  // a bug here must not take the engine down
  nanobind::set_leak_warnings(false);               // at the end of a process objects stay alive on purpose
  module.attr("__version__") = KVSTORE_VERSION;
  module.def("unknown_variables", [] { return kv::unknown_client_variables(environ); });
  kv::python::bind_errors(module);
  kv::python::bind_namespace(module);
  kv::python::bind_client(module);
  kv::python::bind_device(module);
  kv::python::bind_layout(module);
  kv::python::bind_rows(module);
  kv::python::bind_pruning(module);
  kv::python::bind_verified(module);
  kv::python::bind_paging(module);
  kv::python::bind_masks(module);
  kv::python::bind_layer_cache(module);
  kv::python::bind_model(module);
}
