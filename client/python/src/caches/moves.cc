#include "client/python/src/caches/moves.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "client/python/src/buffers.h"
#include "client/python/src/errors.h"
#include "gpu/permute.h"
#include "gpu/rotary.h"

namespace kv::python {
namespace {

// In the order of Role. These names are public: Python programs contain them.
constexpr const char* kRoleNames[kRoleCount] = {"key",       "value",       "latent",       "rope",        "index_key",
                                                "key_scale", "value_scale", "latent_scale", "index_scale", "log_count"};

template <class Entry>
Entry take(const nb::dict& options, const char* name, Entry otherwise) {
  return options.contains(name) && !options[name].is_none() ? nb::cast<Entry>(options[name]) : otherwise;
}

void set_scales(float (&scales)[kRoleCount], const nb::dict& options, const char* name) {
  if (!options.contains(name) || options[name].is_none()) return;
  for (const auto& [role, scale] : nb::cast<nb::dict>(options[name])) {
    scales[static_cast<int>(role_from(nb::cast<std::string>(role)))] = nb::cast<float>(scale);
  }
}

}  // namespace

Role role_from(const std::string& name) {
  for (int i = 0; i < kRoleCount; ++i) {
    if (name == kRoleNames[i]) return static_cast<Role>(i);
  }
  std::string names;
  for (int i = 0; i < kRoleCount; ++i) names += (i > 0 ? ", " : "") + std::string(kRoleNames[i]);
  throw bad_request("roles: '" + name + "' is none of " + names);
}

const char* public_name(Role role) { return kRoleNames[static_cast<int>(role)]; }

std::unique_ptr<Moves> moves_from(const nb::dict& options) {
  auto moves = std::make_unique<Moves>();
  Operation& operation = moves->operation;
  const auto kind = take<std::string>(options, "kind", "copy");
  const std::pair<const char*, Operation::Kind> kinds[] = {{"copy", Operation::Kind::kCopy},
                                                           {"cast", Operation::Kind::kCast},
                                                           {"quantise", Operation::Kind::kQuantise},
                                                           {"dequantise", Operation::Kind::kDequantise},
                                                           {"rotate", Operation::Kind::kRotate}};
  const auto* const found =
      std::find_if(std::begin(kinds), std::end(kinds), [&](auto& each) { return kind == each.first; });
  if (found == std::end(kinds))
    throw bad_request("kind: '" + kind + "' is none of copy, cast, quantise, dequantise, rotate");
  operation.kind = found->second;
  if (const auto roles = take<std::vector<std::string>>(options, "roles", {}); !roles.empty()) {
    operation.roles = 0;
    for (const std::string& role : roles) operation.roles |= role_bit(role_from(role));
  }
  set_scales(operation.from_scale, options, "from_scale");
  set_scales(operation.to_scale, options, "to_scale");
  operation.global_scale = take<float>(options, "global_scale", 1.0F);
  if (operation.kind != Operation::Kind::kRotate) return moves;
  Rotation& rotation = operation.rotation;
  const auto style = take<std::string>(options, "style", "neox");
  if (style != "neox" && style != "gptj") throw bad_request("style: '" + style + "' is neither neox nor gptj");
  rotation.style = style == "neox" ? RopeStyle::kNeox : RopeStyle::kGptj;
  rotation.rotary_size = take<std::int64_t>(options, "rotary_size", 0);
  moves->frequencies = take<std::vector<double>>(options, "frequencies", {});
  if (rotation.rotary_size < 2 || rotation.rotary_size % 2 != 0 || rotation.rotary_size > kRotarySizeMax)
    throw bad_request("rotary_size: " + std::to_string(rotation.rotary_size) + " is not even, or not in [2, 1024]");
  // From the base, as in most models. Models that scale frequencies by length give a list of their own.
  if (moves->frequencies.empty()) {
    moves->frequencies = rope_frequencies(take<double>(options, "base", 10000.0), rotation.rotary_size);
  }
  if (static_cast<std::int64_t>(moves->frequencies.size()) != rotation.rotary_size / 2)
    throw bad_request("frequencies: " + std::to_string(moves->frequencies.size()) + ", a rotation of " +
                      std::to_string(rotation.rotary_size) + " has " + std::to_string(rotation.rotary_size / 2));
  // Both lists belong to the Moves object, whose address does not change: hence the returned pointer.
  rotation.frequencies = moves->frequencies.data();
  rotation.delta = take<std::int64_t>(options, "delta", 0);
  if (options.contains("deltas") && !options["deltas"].is_none()) {
    const Numbers<std::int64_t> deltas(options["deltas"], "deltas");
    moves->deltas.assign(deltas.values().begin(), deltas.values().end());
    rotation.deltas = moves->deltas.data();
  }
  return moves;
}

void check_deltas(const Moves& moves, std::int64_t rows) {
  if (!moves.deltas.empty() && static_cast<std::int64_t>(moves.deltas.size()) < rows)
    throw bad_request("deltas: " + std::to_string(moves.deltas.size()) + " for " + std::to_string(rows) + " rows");
}

void check_moved(const Result<void>& moved, const Layout& to, const Layout& from, const Operation& operation) {
  if (moved) return;
  // Asked only now: explaining walks both layouts, and most calls succeed.
  if (const auto flaw = explain_mismatch(to, from, operation))
    throw StatusError{static_cast<int>(Errc::kMismatch), flaw->text};
  if (moved.error() == Errc::kBadRequest) throw bad_request("a slot or block is beyond the cache");
  throw failure_of(moved.error());
}

}  // namespace kv::python
