#include "gpu/layer_caches/sink_cache.h"

#include <algorithm>

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

Result<void> SinkCache::keep_first(std::int64_t token_count) {
  if (!window_.crop(token_count)) return Errc::kUnsupported;
  return {};
}

void SinkCache::select(std::span<const std::int64_t> sequences) {
  stored_ = select_sequences(stored_, sequences);
  view_.reset();
}

SinkWindow::SinkWindow(std::int64_t sink_count, std::int64_t window_tokens)
    : sink_count_(sink_count),
      window_tokens_(window_tokens),
      stored_position_(static_cast<std::size_t>(window_tokens)) {
  KV_ASSERT(0 <= sink_count && sink_count < window_tokens);
}

SinkWindow::Step SinkWindow::add(std::int64_t added_count) {
  KV_ASSERT(added_count > 0);
  const std::int64_t excess = std::max<std::int64_t>(0, cached_count() + added_count - window_tokens_);
  // Up to a ring's worth of tokens makes room first. More would push each other out: only the last ones stay.
  const bool makes_room_first = added_count <= window_tokens_ - sink_count_;
  if (makes_room_first) dropped_count_ += excess;
  Step step{.first_position = cached_count(), .read = rows(), .added = {}, .places = {}};
  const std::int64_t first_token = token_count_;
  token_count_ += added_count;
  if (!makes_room_first) dropped_count_ += excess;

  for (std::int64_t i = 0; i < added_count; ++i) {
    const std::int64_t token = first_token + i;
    // Dropped unread: more tokens came at once than the window holds.
    if (token >= sink_count_ && token < sink_count_ + dropped_count_) continue;
    step.added.push_back(i);
    step.places.push_back(place_of(token));
    // Keys are stored turned for their present position. Later updates turn them by the difference.
    stored_position_[static_cast<std::size_t>(step.places.back())] = step.first_position + i;
  }
  return step;
}

bool SinkWindow::crop(std::int64_t token_count) {
  KV_ASSERT(0 <= token_count && token_count <= token_count_);
  // The crop would expose tokens that the window has dropped.
  if (dropped_count_ > 0 && token_count < token_count_) return false;
  token_count_ = token_count;
  return true;
}

std::vector<SinkWindow::Row> SinkWindow::rows() const {
  std::vector<Row> rows;
  for (std::int64_t position = 0; position < cached_count(); ++position) {
    const std::int64_t token = position < sink_count_ ? position : position + dropped_count_;
    const std::int64_t place = place_of(token);
    rows.push_back({token, place, stored_position_[static_cast<std::size_t>(place)], position});
  }
  return rows;
}

/// Sinks first; behind them a ring, in which a new token replaces the oldest.
std::int64_t SinkWindow::place_of(std::int64_t token) const {
  if (token < sink_count_) return token;
  return sink_count_ + (token - sink_count_) % (window_tokens_ - sink_count_);
}

}  // namespace kv
