// Calls about the nodes and the client itself.
#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "client/python/src/calls/calls.h"
#include "client/python/src/waits.h"

namespace kv::python {
namespace {

/// A call to every node.
template <auto verb>
PyCall of_nodes(PyClient& self, double deadline) {
  return self.start(self.begin(), [time = deadline_of(deadline)](Client& client, Call& state) {
    return (client.*verb)(time, state.control());
  });
}

/// A member function of the client without arguments.
template <auto question>
PyCall of_client(PyClient& self) {
  return self.ask([](Client& client) { return (client.*question)(); });
}

PyCall ask(PyClient& self, std::string path, std::string query, std::string node, double deadline) {
  NodeQuestion question{.path = std::move(path), .query = std::move(query), .node = std::move(node)};
  return self.start(self.begin(),
                    [asked = std::move(question), time = deadline_of(deadline)](Client& client, Call& state) {
                      return client.ask(asked, time, state.control());
                    });
}

}  // namespace

void bind_nodes(nb::class_<PyClient>& client) {
  using namespace nb::literals;
  client.def("ask", &ask, "path"_a, "query"_a, "node"_a, "deadline"_a)
      .def("ping", &of_nodes<&Client::ping>, "deadline"_a)
      .def("nodes", &of_client<&Client::nodes>)
      .def("metrics_text", &of_client<&Client::metrics_text>)
      .def("numa", &of_client<&Client::numa>)
      .def(
          "tell_prefill_speed",
          [](PyClient& self, double tokens_per_second) {
            self.ask([tokens_per_second](Client& asked) { asked.tell_prefill_speed(tokens_per_second); });
          },
          "tokens_per_second"_a);
}

}  // namespace kv::python
