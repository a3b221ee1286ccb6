#include "client/python/src/calls/results.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <utility>

namespace kv::python {
namespace {

/// The call's result of type T. One given up before any node was asked has no `why` of its own.
template <class T>
nb::object told(const Completion& end, T result) {
  if (!result.why) result.why = end.error;
  return nb::cast(Told<T>{std::move(result), end.reason});
}

/// The same for the blocks of a set.
template <class T>
nb::object told_each(const Completion& end, std::size_t name_count, T SetResults::*member) {
  if (end.sets) return told(end, (*end.sets).*member);
  T result;
  if constexpr (requires { result.held; }) {
    result.held.resize(name_count, Held::kNowhere);
    result.block_bytes.resize(name_count, 0);
  } else if constexpr (requires { result.conflicts; }) {
    result.blocks.resize(name_count, SetPutBlock::kRefused);
    result.refused = name_count;
  } else {
    result.blocks.resize(name_count, {.why = end.error});
  }
  return told(end, std::move(result));
}

nb::object put_result(const Completion& end, std::size_t name_count) {
  PutResult put = end.put;
  if (end.error && put.stored + put.already_stored + put.refused == 0) put.refused = name_count;
  return told(end, put);
}

/// A load's `why` is its get's.
struct Loaded {
  MatchResult match;
  GetResult get;
  error_code why;
};

/// The class of a result with a `why`, which is its first member.
template <class T>
nb::class_<Told<T>> told_class(nb::module_& module, const char* name) {
  return nb::class_<Told<T>>(module, name).def_prop_ro("why", [](const Told<T>& told) {
    return why_object(told.why, told.reason);
  });
}

/// A NumPy array of `convert` of each value.
template <class To, class From, class Convert>
auto numpy_of_each(const std::vector<From>& values, Convert convert) {
  std::vector<To> made;
  made.reserve(values.size());
  for (const From& value : values) made.push_back(static_cast<To>(convert(value)));
  return numpy_of<To>(std::move(made));
}

void bind_chain_results(nb::module_& module) {
  using Match = Told<MatchResult>;
  told_class<MatchResult>(module, "MatchResult")
      .def_ro("block_count", &Match::block_count)
      .def_ro("disk_block_count", &Match::disk_block_count)
      .def_prop_ro("disk_seconds", &seconds_of<Match, &Match::disk_time>)
      .def_prop_ro("lease", [](const Match& match) { return static_cast<std::uint64_t>(match.lease); })
      .def_ro("partial_token_count", &Match::partial_token_count)
      .def_prop_ro("partial_block", [](const Match& match) {
        return nb::bytes(match.partial_block.bytes.data(), match.partial_block.bytes.size());
      });
  using Get = Told<GetResult>;
  told_class<GetResult>(module, "GetResult")
      .def_ro("block_count", &Get::block_count)
      .def_ro("corrupt_count", &Get::corrupt_count);
  using Load = Told<Loaded>;
  told_class<Loaded>(module, "LoadResult")
      .def_prop_ro("found_count", [](const Load& load) { return load.match.block_count; })
      .def_prop_ro("disk_block_count", [](const Load& load) { return load.match.disk_block_count; })
      .def_prop_ro("block_count", [](const Load& load) { return load.get.block_count; })
      .def_prop_ro("corrupt_count", [](const Load& load) { return load.get.corrupt_count; });
  using Put = Told<PutResult>;
  told_class<PutResult>(module, "PutResult")
      .def_ro("stored", &Put::stored)
      .def_ro("already_stored", &Put::already_stored)
      .def_ro("refused", &Put::refused);
  nb::class_<DropResult>(module, "DropResult")
      .def_ro("block_count", &DropResult::block_count)
      .def_ro("until_restart", &DropResult::until_restart);
}

void bind_set_results(nb::module_& module) {
  using namespace nb::literals;
  using Match = Told<SetMatchResult>;
  told_class<SetMatchResult>(module, "SetMatchResult")
      .def_prop_ro(
          "held",
          [](const Match& match) { return numpy_of_each<std::uint8_t>(match.held, [](Held held) { return held; }); })
      .def_prop_ro("block_bytes", [](const Match& match) { return numpy_of<std::uint32_t>(match.block_bytes); })
      .def_ro("held_count", &Match::held_count)
      .def_ro("disk_count", &Match::disk_count)
      .def_prop_ro("disk_seconds", &seconds_of<Match, &Match::disk_time>)
      .def_prop_ro("lease", [](const Match& match) { return static_cast<std::uint64_t>(match.lease); });
  using Get = Told<SetGetResult>;
  told_class<SetGetResult>(module, "SetGetResult")
      .def_prop_ro("landed",
                   [](const Get& get) {
                     const auto has_landed = [](const SetGetBlock& block) { return block.has_landed; };
                     return nb::object(numpy_of_each<std::uint8_t>(get.blocks, has_landed).attr("view")("bool"));
                   })
      .def_prop_ro("block_bytes",
                   [](const Get& get) {
                     return numpy_of_each<std::uint64_t>(get.blocks,
                                                         [](const SetGetBlock& block) { return block.block_bytes; });
                   })
      .def(
          "why_of",
          [](const Get& get, std::size_t i) {
            // One at a time: exceptions for thousands of blocks would cost more than the get did, and few are read.
            if (i >= get.blocks.size()) throw nb::index_error();
            const error_code why = get.blocks[i].why;
            return why_object(why, why == get.why ? get.reason : "");
          },
          "i"_a)
      .def_ro("landed_count", &Get::landed_count)
      .def_ro("corrupt_count", &Get::corrupt_count);
  using Put = Told<SetPutResult>;
  told_class<SetPutResult>(module, "SetPutResult")
      .def_prop_ro("states",
                   [](const Put& put) {
                     return numpy_of_each<std::uint8_t>(put.blocks, [](SetPutBlock block) { return block; });
                   })
      .def_ro("stored", &Put::stored)
      .def_ro("already_stored", &Put::already_stored)
      .def_ro("conflicts", &Put::conflicts)
      .def_ro("refused", &Put::refused);
}

}  // namespace

nb::object why_object(const error_code& why, const std::string& reason) {
  if (!why) return nb::none();
  const StatusError failure = failure_of(why, reason);
  return nb::module_::import_("kvstore.errors").attr("error_of")(failure.status, failure.text);
}

bool has_why(Op op) {
  switch (op) {
    case Op::kMatch:
    case Op::kGet:
    case Op::kLoad:
    case Op::kPut:
    case Op::kMatchSet:
    case Op::kGetSet:
    case Op::kPutSet: return true;
    default: return false;
  }
}

nb::object result_of(const Completion& end, std::size_t name_count) {
  switch (end.op) {
    case Op::kOpen: return nb::cast(static_cast<std::uint32_t>(end.space));
    case Op::kMatch: return told(end, end.match);
    case Op::kGet: return told(end, end.get);
    case Op::kLoad: return told(end, Loaded{end.match, end.get, end.get.why});
    case Op::kPut: return put_result(end, name_count);
    case Op::kTouch:
    case Op::kRetain:
    case Op::kUnretain: return nb::cast(end.count);
    case Op::kDrop: return nb::cast(end.drop);
    case Op::kMatchSet: return told_each(end, name_count, &SetResults::match);
    case Op::kGetSet: return told_each(end, name_count, &SetResults::get);
    case Op::kPutSet: return told_each(end, name_count, &SetResults::put);
    default: return nb::none();
  }
}

nb::object to_python(const std::vector<std::chrono::nanoseconds>& times) {
  nb::list seconds;
  for (const auto time : times) {
    seconds.append(time.count() < 0 ? nb::none() : nb::object(nb::float_(std::chrono::duration<double>(time).count())));
  }
  return seconds;
}

nb::object to_python(const std::vector<NodeAnswer>& nodes) {
  nb::list list;
  for (const NodeAnswer& node : nodes) {
    nb::dict entry;
    entry["name"] = node.name;
    entry["error"] = node.error ? nb::object(nb::str(failure_of(node.error).text.c_str())) : nb::none();
    entry["json"] = node.json;
    list.append(entry);
  }
  return list;
}

nb::object to_python(const std::vector<NodeStatus>& nodes) {
  nb::list list;
  for (const NodeStatus& node : nodes) {
    nb::dict entry;
    entry["name"] = node.name;
    entry["endpoint"] = node.endpoint;
    entry["node_id"] = node.node_id;
    entry["transport"] = node.peer_transport;
    entry["rdma_lanes"] = node.rdma_lanes;
    entry["rdma_text"] = node.rdma_text;
    entry["connected"] = node.connected;
    entry["breaker_open"] = node.breaker_open;
    entry["calls"] = node.calls;
    entry["failures"] = node.failures;
    entry["timeouts"] = node.timeouts;
    entry["reconnects"] = node.reconnects;
    entry["hedges"] = node.hedges;
    entry["hedge_wins"] = node.hedge_wins;
    entry["breaker_openings"] = node.breaker_openings;
    entry["last_error"] = node.last_error_text;
    list.append(entry);
  }
  return list;
}

nb::object to_python(const NumaStatus& numa) {
  nb::dict entry;
  entry["nodes"] = numa.place.node_count;
  nb::list chosen, processors;
  for (const unsigned node : numa.place.choice.memory) chosen.append(node);
  for (const unsigned processor : numa.place.choice.processors) processors.append(processor);
  entry["chosen"] = chosen;
  entry["processors"] = processors;
  entry["misplaced_ratio"] = numa.misplaced_ratio ? nb::cast(*numa.misplaced_ratio) : nb::none();
  entry["why_not"] = numa.place.why_not;
  return entry;
}

void bind_results(nb::module_& module) {
  bind_chain_results(module);
  bind_set_results(module);
}

}  // namespace kv::python
