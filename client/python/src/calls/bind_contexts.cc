// Named contexts, their lists and files.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "client/archive/archive_transfer.h"
#include "client/python/src/calls/calls.h"
#include "client/python/src/calls/py_client.h"
#include "client/python/src/calls/results.h"
#include "client/python/src/errors.h"
#include "client/python/src/waits.h"
#include "client/python/src/without_gil.h"

namespace kv::python {
namespace {

/// A context's life in seconds; 0: not given. The C++ client and the nodes validate it.
ContextTime context_time(double ttl, bool sliding, double until) {
  ContextTime life;
  life.ttl = deadline_of(ttl);
  life.is_sliding = sliding;
  const auto since_1970 = time_of(until, 9e9, "a date");  // at most the year 2255
  life.until = std::chrono::system_clock::time_point(
      std::chrono::duration_cast<std::chrono::system_clock::duration>(since_1970));
  return life;
}

NamedContext create_context(const PyClient& self, std::uint32_t space, nb::handle hashes, const std::string& name,
                            double ttl, bool sliding, double until, const std::vector<std::string>& tags,
                            std::uint8_t priority, double deadline) {
  const std::vector<BlockHash> blocks = hashes_from(hashes, "hashes");
  ContextOptions options{.deadline = deadline_of(deadline),
                         .name = name,
                         .life = context_time(ttl, sliding, until),
                         .tags = tags,
                         .priority = priority};
  return self.core()->ask<NamedContext>([&](Client& client, CallControl control) {
    options.control = control;
    return client.create_context(Space{space}, blocks, options);
  });
}

NamedContext extend_context(const PyClient& self, const std::string& name, double ttl, bool sliding, double until,
                            std::optional<std::uint8_t> priority, double deadline) {
  const ContextTime life = context_time(ttl, sliding, until);
  return self.core()->ask<NamedContext>([&, time = deadline_of(deadline)](Client& client, CallControl control) {
    return client.extend_context(name, life, time, control, priority);
  });
}

/// Calls that need the name alone: delete, warm, stop_warming and list.
template <class T, auto method>
T of_context(const PyClient& self, const std::string& name, double deadline) {
  return self.core()->ask<T>([&, time = deadline_of(deadline)](Client& client, CallControl control) {
    return (client.*method)(name, time, control);
  });
}

/// Uses a client of its own: it may take minutes, and must not delay other calls or closing. Runs without the GIL.
/// Checks for signals between two batches.
template <class Options, class Use>
ArchivedContext with_files(const PyClient& self, Options& options, Use use) {
  self.core()->check_open();
  const bool looks_for_signals = is_main_thread();
  bool is_signalled = false;
  auto next = std::chrono::steady_clock::now() + kSignalInterval;
  options.go_on = [&](const ArchiveProgress&) {
    if (!looks_for_signals || std::chrono::steady_clock::now() < next) return true;
    next = std::chrono::steady_clock::now() + kSignalInterval;
    const nb::gil_scoped_acquire gil;
    is_signalled = PyErr_CheckSignals() != 0;
    return !is_signalled;
  };
  const Result<ArchivedContext, Failure> done = run_without_gil([&] {
    BlockingClient client(self.config());
    return use(client);
  });
  if (is_signalled) throw nb::python_error();
  if (!done) throw StatusError{status_of(done.error().code), done.error().text};
  return *done;
}

ArchivedContext export_context(const PyClient& self, const std::string& name, const std::string& file, bool partial,
                               bool replaces, const std::string& key_file, double deadline) {
  ContextExportOptions options{.deadline = deadline_of(deadline)};
  options.is_partial = partial;
  options.replaces = replaces;
  options.key_file = key_file;
  return with_files(self, options,
                    [&](BlockingClient& client) { return kv::export_context(client, name, file, options); });
}

ArchivedContext import_context(const PyClient& self, const std::string& file, const std::string& name, double ttl,
                               bool sliding, double until, std::optional<std::uint8_t> priority,
                               const std::string& key_file, double deadline) {
  ContextImportOptions options{.deadline = deadline_of(deadline)};
  options.name = name;
  if (ttl > 0 || until > 0) options.life = context_time(ttl, sliding, until);
  options.priority = priority;
  options.key_file = key_file;
  return with_files(self, options, [&](BlockingClient& client) { return kv::import_context(client, file, options); });
}

void bind_context_results(nb::module_& module) {
  nb::class_<NamedContext>(module, "NamedContext")
      .def_ro("name", &NamedContext::name)
      .def_ro("tags", &NamedContext::tags)
      .def_ro("namespace_id", &NamedContext::namespace_id)
      .def_ro("model", &NamedContext::model)
      .def_ro("block_size", &NamedContext::block_size)
      .def_ro("wanted_blocks", &NamedContext::wanted_blocks)
      .def_ro("kept_blocks", &NamedContext::kept_blocks)
      .def_ro("kept_bytes", &NamedContext::kept_bytes)
      .def_prop_ro("why", [](const NamedContext& context) { return why_object(context.why); })
      .def_ro("lost_blocks", &NamedContext::lost_blocks)
      .def_ro("yielded_blocks", &NamedContext::yielded_blocks)
      .def_ro("priority", &NamedContext::priority)
      .def_ro("is_sliding", &NamedContext::is_sliding)
      .def_prop_ro("ttl", &seconds_of<NamedContext, &NamedContext::ttl>)
      .def_prop_ro("created", &seconds_of<NamedContext, &NamedContext::created>)
      .def_prop_ro("expires", &seconds_of<NamedContext, &NamedContext::expires>)
      .def_prop_ro("used",
                   [](const NamedContext& context) {
                     return context.used.count() == 0
                                ? nb::object(nb::none())
                                : nb::cast(seconds_of<NamedContext, &NamedContext::used>(context));
                   })
      .def_ro("written_tokens", &NamedContext::written_tokens)
      .def_ro("read_tokens", &NamedContext::read_tokens)
      .def_ro("stored_token_seconds", &NamedContext::stored_token_seconds)
      .def_ro("is_warming", &NamedContext::is_warming)
      .def_ro("memory_blocks", &NamedContext::memory_blocks)
      .def_ro("disk_blocks", &NamedContext::disk_blocks);
  nb::class_<ArchivedContext>(module, "ArchivedContext")
      .def_ro("name", &ArchivedContext::name)
      .def_ro("namespace_id", &ArchivedContext::namespace_id)
      .def_ro("blocks", &ArchivedContext::blocks)
      .def_ro("wanted_blocks", &ArchivedContext::wanted_blocks)
      .def_ro("bytes", &ArchivedContext::bytes)
      .def_ro("is_signed", &ArchivedContext::is_signed)
      .def_ro("stored_blocks", &ArchivedContext::stored_blocks)
      .def_ro("context", &ArchivedContext::context);
  nb::class_<ContextList>(module, "ContextList")
      .def_ro("contexts", &ContextList::contexts)
      .def_prop_ro("silent", [](const ContextList& list) {
        nb::dict silent;
        for (const auto& [node, why] : list.silent) silent[nb::cast(node)] = why_object(why);
        return silent;
      });
}

}  // namespace

void bind_contexts(nb::module_& module, ClientClass& client) {
  using namespace nb::literals;
  bind_context_results(module);
  client
      .def("create_context", &create_context, "space"_a, "hashes"_a, "name"_a, "ttl"_a, "sliding"_a, "until"_a,
           "tags"_a, "priority"_a, "deadline"_a)
      .def("extend_context", &extend_context, "name"_a, "ttl"_a, "sliding"_a, "until"_a, "priority"_a.none(),
           "deadline"_a)
      .def("delete_context", &of_context<NamedContext, &Client::delete_context>, "name"_a, "deadline"_a)
      .def("warm_context", &of_context<NamedContext, &Client::warm_context>, "name"_a, "deadline"_a)
      .def("stop_warming_context", &of_context<NamedContext, &Client::stop_warming_context>, "name"_a, "deadline"_a)
      .def("list_contexts", &of_context<ContextList, &Client::list_contexts>, "name"_a, "deadline"_a)
      .def("export_context", &export_context, "name"_a, "file"_a, "partial"_a, "replaces"_a, "key_file"_a, "deadline"_a)
      .def("import_context", &import_context, "file"_a, "name"_a, "ttl"_a, "sliding"_a, "until"_a, "priority"_a.none(),
           "key_file"_a, "deadline"_a);
}

}  // namespace kv::python
