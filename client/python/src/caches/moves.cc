#include "client/python/src/caches/moves.h"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

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

void set_scales(float (&scales)[kRoleCount], nb::handle by_role) {
  for (const nb::handle item : by_role.attr("items")()) {
    const auto& [role, scale] = nb::cast<std::pair<std::string, float>>(item);
    scales[static_cast<int>(role_from(role))] = scale;
  }
}

void set_rotation(Moves& moves, nb::handle given) {
  moves.operation.kind = Operation::Kind::kRotate;
  Rotation& rotation = moves.operation.rotation;
  const auto style = nb::cast<std::string>(given.attr("style"));
  if (style != "neox" && style != "gptj") throw bad_request("style: '" + style + "' is neither neox nor gptj");
  rotation.style = style == "neox" ? RopeStyle::kNeox : RopeStyle::kGptj;
  rotation.rotary_size = nb::cast<std::int64_t>(given.attr("size"));
  if (rotation.rotary_size < 2 || rotation.rotary_size % 2 != 0 || rotation.rotary_size > kRotarySizeMax)
    throw bad_request("rotary_size: " + std::to_string(rotation.rotary_size) + " is not even, or not in [2, 1024]");
  if (const nb::object frequencies = given.attr("frequencies"); !frequencies.is_none()) {
    for (const nb::handle each : frequencies) moves.frequencies.push_back(nb::cast<double>(nb::float_(each)));
  }
  // From the base, as in most models. Models that scale frequencies by length give a list of their own.
  if (moves.frequencies.empty())
    moves.frequencies = rope_frequencies(nb::cast<double>(given.attr("base")), rotation.rotary_size);
  if (static_cast<std::int64_t>(moves.frequencies.size()) != rotation.rotary_size / 2)
    throw bad_request("frequencies: " + std::to_string(moves.frequencies.size()) + ", a rotation of " +
                      std::to_string(rotation.rotary_size) + " has " + std::to_string(rotation.rotary_size / 2));
  // Both lists belong to the Moves object, whose address does not change: hence the pointer of moves_from().
  rotation.frequencies = moves.frequencies.data();
  rotation.delta = nb::cast<std::int64_t>(given.attr("delta"));
  if (const nb::object each = given.attr("deltas"); !each.is_none()) {
    const Numbers<std::int64_t> deltas(each, "deltas");
    moves.deltas.assign(deltas.values().begin(), deltas.values().end());
    rotation.deltas = moves.deltas.data();
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

std::unique_ptr<Moves> moves_from(nb::handle move) {
  auto moves = std::make_unique<Moves>();
  Operation& operation = moves->operation;
  if (move.is_none()) return moves;
  if (nb::hasattr(move, "deltas")) {  // a Rotation alone
    set_rotation(*moves, move);
    return moves;
  }
  const auto kind = nb::cast<std::string>(move.attr("kind"));
  const nb::object rotation = move.attr("rotation");
  if (!rotation.is_none() && kind != "copy" && kind != "cast")
    throw bad_request("rotation: not together with kind '" + kind + "'");
  const std::pair<const char*, Operation::Kind> kinds[] = {{"copy", Operation::Kind::kCopy},
                                                           {"cast", Operation::Kind::kCast},
                                                           {"quantise", Operation::Kind::kQuantise},
                                                           {"dequantise", Operation::Kind::kDequantise}};
  const auto* const found =
      std::find_if(std::begin(kinds), std::end(kinds), [&](auto& each) { return kind == each.first; });
  if (found == std::end(kinds)) throw bad_request("kind: '" + kind + "' is none of copy, cast, quantise, dequantise");
  operation.kind = found->second;
  RoleMask roles = 0;
  for (const nb::handle role : move.attr("roles")) roles |= role_bit(role_from(nb::cast<std::string>(role)));
  if (roles != 0) operation.roles = roles;
  set_scales(operation.from_scale, move.attr("from_scale"));
  set_scales(operation.to_scale, move.attr("to_scale"));
  if (!rotation.is_none()) set_rotation(*moves, rotation);
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
