#include "client/c/gpu_c_arguments.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "gpu/permute.h"

namespace kv::c_api {
namespace {

// The last of each list, as public numbers are cast: an insertion in the middle of either list moves it.
static_assert(KVS_ROTATE == static_cast<int>(Operation::Kind::kRotate));
static_assert(KVS_SCALE_NVFP4 == static_cast<int>(ScaleRule::kNvfp4));
static_assert(KVS_NEOX - 1 == static_cast<int>(RopeStyle::kNeox) && KVS_GPTJ - 1 == static_cast<int>(RopeStyle::kGptj));
static_assert(KVS_ROWS_BLOCKS64 == static_cast<int>(Rows::Kind::kBlocks64));

/// The CUDA module, loaded once and never unloaded: CUDA may be gone before the process's last destructors run.
const Result<std::shared_ptr<const CudaModule>, Failure>& found_module() {
  static const auto* const found = new Result<std::shared_ptr<const CudaModule>, Failure>(CudaModule::load());
  return *found;
}

void read_scales(const char* field, const float* from, float* to) {
  for (int i = 0; from != nullptr && i < kRoleCount; ++i) {
    // Also refuses NaN, for which every comparison is false.
    if (!(from[i] > 0) || !std::isfinite(from[i])) {
      refuse(KVS_BAD_REQUEST,
             std::string("operation: ") + field + ": " + std::to_string(from[i]) + " is not positive and finite");
    }
    to[i] = from[i];
  }
}

/// The element and the component's role determine how many elements share a scale, as fixed by the engines.
ScaleRule scale_rule_of(const Component& component) {
  if (component.element == Element::kE2M1x2) return ScaleRule::kNvfp4;
  switch (component.role) {
    case Role::kLatent: return ScaleRule::kTile;
    case Role::kIndexKey: return ScaleRule::kIndexer;
    default: return ScaleRule::kTokenHead;
  }
}
/// The rule for the target's components, of which two must not differ; `usual` if none has scales.
ScaleRule find_scale_rule(const Layout& to, RoleMask roles, ScaleRule usual) {
  const Component* first = nullptr;
  for (const Component& each : to.components) {
    if ((roles & role_bit(each.role)) == 0 || scales_of(to, each.role) == nullptr) continue;
    const ScaleRule wanted = scale_rule_of(each);
    if (first != nullptr && wanted != usual) {
      refuse(KVS_MISMATCH, to.name + ": " + std::string(role_name(first->role)) + " and " +
                               std::string(role_name(each.role)) +
                               " have scales of different rules: quantise them by a call each, named by roles");
    }
    first = &each;
    usual = wanted;
  }
  return usual;
}

/// Makes the caller's device the thread's.
void use_device(int number, Run* run, std::initializer_list<const kvs_cache*> caches) {
  const int device = read_device_number(*run->cuda, "run: device_number", number);
  for (const kvs_cache* cache : caches) {
    if (cache == nullptr || cache->bound.bases.empty()) continue;
    // Layers of one cache lie on one device, so the first one's place is enough. On the wrong device a launch fails
    // without a reason, or reads over the bus between devices, many times slower.
    const auto place = run->cuda->place_of(cache->bound.bases.front());
    if (place.kind == CudaModule::MemoryKind::kDevice && place.device != device) {
      refuse(KVS_BAD_REQUEST, "run: device_number: names CUDA device " + std::to_string(device) + ", and " +
                                  cache->bound.layout.name + " lies on device " + std::to_string(place.device));
    }
  }
  // Restored when `run` goes: the current device is the engine's own state, per thread.
  run->device.emplace(*run->cuda, device);
  if (!run->device->status) refuse_cuda(run->device->status.error());
}

Rotation read_rotation(const kvs_operation& from, std::int64_t row_count) {
  if (from.rope_style != KVS_NEOX && from.rope_style != KVS_GPTJ) {
    refuse_value("operation: rope_style", from.rope_style, "KVS_NEOX or KVS_GPTJ");
  }
  // Both sides of the rotation keep tables of a fixed size on the stack or in shared memory: kRotarySizeMax.
  if (from.rotary_size < 2 || from.rotary_size % 2 != 0 || from.rotary_size > kRotarySizeMax) {
    refuse_value("operation: rotary_size", from.rotary_size, "even, from 2 to 1024");
  }
  if (from.frequencies == nullptr) refuse(KVS_BAD_REQUEST, "operation: frequencies is NULL");
  if (from.frequency_count != static_cast<std::size_t>(from.rotary_size / 2)) {
    refuse_value("operation: frequency_count", static_cast<std::int64_t>(from.frequency_count), "half of rotary_size");
  }
  if (from.deltas != nullptr && from.delta_count < static_cast<std::uint64_t>(row_count)) {
    refuse_value("operation: delta_count", static_cast<std::int64_t>(from.delta_count), "one for each row");
  }
  return {static_cast<RopeStyle>(from.rope_style - 1), from.rotary_size, from.frequencies, from.deltas, from.delta};
}

}  // namespace

void refuse_value(const std::string& field, std::int64_t value, const std::string& allowed) {
  refuse(KVS_BAD_REQUEST, field + ": " + std::to_string(value) + " is not " + allowed);
}

int read_device_number(const CudaModule& cuda, const char* field, int number) {
  const int count = cuda.device_count();
  if (number < 0 || number > count) {
    refuse_value(field, number, "0, or KVS_DEVICE_NUMBER of an ordinal below " + std::to_string(count));
  }
  // One more than the ordinal, so that 0 in a zeroed struct means "not given", not device 0. -1: the current device.
  return number - 1;
}

bool has_cuda() { return bool(found_module()); }

Run::Run(const kvs_where* given, std::initializer_list<const kvs_cache*> caches) {
  if (given == nullptr) return;
  const auto from = read_struct(given);
  if (from.device == KVS_HOST && from.device_number == 0) return;
  if (from.device == KVS_HOST) refuse_value("run: device_number", from.device_number, "0, as KVS_HOST needs");
  if (from.device != KVS_CUDA) refuse_value("run: device", from.device, "KVS_HOST or KVS_CUDA");
  if (from.block_count_max < 0) refuse_value("run: block_count_max", from.block_count_max, "0 or more");
  if (!found_module()) refuse(KVS_UNAVAILABLE, "CUDA: " + found_module().error().text);
  cuda = *found_module();
  stream = from.stream;
  // Bounds a launch's grid, to leave multiprocessors to the model: callers may only lower the module's own bound.
  if (from.block_count_max != 0) block_count_max = std::min(from.block_count_max, block_count_max);
  if (from.device_number != 0) use_device(from.device_number, this, caches);
}
Run Run::on_cuda() {
  kvs_where given = KVS_WHERE_INIT;
  given.device = KVS_CUDA;
  return Run(&given);
}

Rows read_rows(const kvs_rows* given, const Layout& layout, std::int64_t row_count) {
  const auto from = read_struct(given);
  if (from.kind < KVS_ROWS_RANGE || from.kind > KVS_ROWS_BLOCKS64) {
    refuse_value("rows: kind", from.kind, "one of KVS_ROWS_*");
  }
  Rows rows;
  rows.kind = static_cast<Rows::Kind>(from.kind);
  if (from.kind == KVS_ROWS_RANGE) {
    if (from.first < 0) refuse_value("rows: first", from.first, "0 or more");
    if (from.first > layout.slot_count() || row_count > layout.slot_count() - from.first) {
      refuse(KVS_BAD_REQUEST, layout.name + ": rows " + std::to_string(from.first) + " to " +
                                  std::to_string(from.first) + " + " + std::to_string(row_count) + " are not within " +
                                  std::to_string(layout.slot_count()) + " slots");
    }
    rows.first = from.first;
    return rows;
  }
  const bool is_blocks = from.kind == KVS_ROWS_BLOCKS32 || from.kind == KVS_ROWS_BLOCKS64;
  const bool is_32 = from.kind == KVS_ROWS_SLOTS32 || from.kind == KVS_ROWS_BLOCKS32;
  if (from.block_tokens < 0) refuse_value("rows: block_tokens", from.block_tokens, "0 or more");
  if (is_blocks) rows.block_tokens = from.block_tokens == 0 ? layout.block_tokens : from.block_tokens;
  // Number of ids, rounded up: the last block may be partly used.
  const std::int64_t needed = row_count == 0 ? 0 : (row_count - 1) / rows.block_tokens + 1;
  if (needed > 0 && from.ids == nullptr) refuse(KVS_BAD_REQUEST, "rows: ids is NULL");
  if (static_cast<std::uint64_t>(needed) > from.id_count) {
    refuse(KVS_BAD_REQUEST, "rows: id_count: " + std::to_string(from.id_count) + " for " + std::to_string(row_count) +
                                " rows, which need " + std::to_string(needed));
  }
  // A GPU reads words only at their own alignment, and x86 would hide the mistake.
  if (reinterpret_cast<std::uintptr_t>(from.ids) % (is_32 ? 4 : 8) != 0) {
    refuse(KVS_BAD_REQUEST, "rows: ids is not aligned");
  }
  rows.ids = from.ids;
  return rows;
}

Operation read_operation(const kvs_operation* given, std::int64_t row_count, const Layout& to) {
  Operation operation;
  if (given == nullptr) return operation;
  const auto from = read_struct(given);
  if (from.kind < KVS_COPY || from.kind > KVS_ROTATE) {
    refuse_value("operation: kind", from.kind, "KVS_COPY to KVS_ROTATE");
  }
  if (from.roles >> KVS_ROLE_COUNT != 0) refuse_value("operation: roles", from.roles, "made of known roles");
  if (from.scale_rule < KVS_SCALE_OF_TARGET || from.scale_rule > KVS_SCALE_TOKEN_HEAD) {
    refuse_value("operation: scale_rule", from.scale_rule, "one of KVS_SCALE_*");
  }
  if (from.global_scale < 0 || !std::isfinite(from.global_scale)) {
    refuse(KVS_BAD_REQUEST,
           "operation: global_scale: " + std::to_string(from.global_scale) + " is not positive and finite, or 0 for 1");
  }
  operation.kind = static_cast<Operation::Kind>(from.kind);
  if (from.roles != 0) operation.roles = from.roles;
  // Only these two write scales. For others the rule is unused, and a target without a unique rule must be accepted.
  const bool makes_scales = from.kind == KVS_QUANTISE || from.kind == KVS_ROTATE;
  if (from.scale_rule == KVS_SCALE_OF_TARGET && makes_scales) {
    operation.scale_rule = find_scale_rule(to, operation.roles, operation.scale_rule);
  } else if (from.scale_rule != KVS_SCALE_OF_TARGET && from.scale_rule != KVS_SCALE_TOKEN_HEAD) {
    operation.scale_rule = static_cast<ScaleRule>(from.scale_rule);
  }
  if (from.global_scale != 0) operation.global_scale = from.global_scale;
  read_scales("from_scale", from.from_scale, operation.from_scale);
  read_scales("to_scale", from.to_scale, operation.to_scale);
  if (from.kind == KVS_ROTATE) operation.rotation = read_rotation(from, row_count);
  return operation;
}

void refuse_cuda(error_code error) {
  constexpr int kInvalidHandle = 400;  // cudaErrorInvalidResourceHandle, of a launch
  if (error.category().name() == std::string_view("cuda") && error.value() == kInvalidHandle) {
    refuse(KVS_BAD_REQUEST, "run: stream: is no stream, or belongs to another CUDA device than the pages");
  }
  refuse(error);
}

void refuse_permute(error_code error, const Layout& to, const Layout& from, const Operation& operation) {
  if (error == Errc::kMismatch) {
    if (const auto flaw = explain_mismatch(to, from, operation)) refuse(KVS_MISMATCH, flaw->text);
    refuse(error);
  }
  if (error == Errc::kBadRequest) {
    refuse(KVS_BAD_REQUEST, "an id is not within the " + std::to_string(to.slot_count()) + " slots of " + to.name +
                                " or the " + std::to_string(from.slot_count()) + " of " + from.name);
  }
  refuse_cuda(error);
}

}  // namespace kv::c_api
