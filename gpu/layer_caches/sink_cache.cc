#include "gpu/layer_caches/sink_cache.h"

#include "base/assert.h"

namespace kv {

SinkCache::SinkCache(const TokenShape& shape, std::int64_t sink_count, std::int64_t window_tokens,
                     const Rotation& rotation)
    : window_(sink_count, window_tokens), rotation_(rotation), stored_(shape, window_tokens) {}

/// Computed on a copy of the plan: the model needs the position for its keys, before the update.
std::int64_t SinkCache::next_position(std::int64_t added_count) const {
  SinkWindow next = window_;
  return next.add(added_count).first_position;
}

/// The view comes first: in a long prompt a new token may replace one that this update still reads.
Result<KvView> SinkCache::update(const KvTensor& added) {
  const SinkWindow::Step step = window_.add(added.token_count());
  const auto read_count = static_cast<std::int64_t>(step.read.size());
  KV_ASSERT(step.first_position == read_count && step.added.size() == step.places.size());
  std::vector<std::int64_t> to, from, deltas;
  for (const SinkWindow::Row& row : step.read) {
    to.push_back(row.position);
    from.push_back(row.place);
    deltas.push_back(row.delta());
  }
  Operation turn(Operation::Kind::kRotate);
  turn.rotation = rotation_;
  turn.rotation.deltas = deltas.data();
  view_.emplace(added.shape(), read_count + added.token_count());
  move_tokens(*view_, to, stored_, from, turn);
  copy_tokens(*view_, read_count, added, 0, added.token_count());
  move_tokens(stored_, step.places, added, step.added);
  return KvView{&*view_, 0, view_->token_count()};
}

Result<void> SinkCache::crop(std::int64_t token_count) {
  if (token_count < 0) token_count += window_.token_count();
  if (token_count < 0 || token_count > window_.token_count()) return Errc::kBadRequest;
  if (!window_.crop(token_count)) return Errc::kUnsupported;
  return {};
}

void SinkCache::select(std::span<const std::int64_t> sequences) {
  stored_ = select_sequences(stored_, sequences);
  view_.reset();
}

}  // namespace kv
