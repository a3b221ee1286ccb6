#include "gpu/layer_caches/static_cache.h"

#include <algorithm>
#include <numeric>

#include "base/assert.h"

namespace kv {
namespace {

/// Memory that graphs have captured must not move: selected, and copied back.
void select_in_place(KvTensor& tokens, std::int64_t token_count, std::span<const std::int64_t> sequences) {
  KV_ASSERT(static_cast<std::int64_t>(sequences.size()) == tokens.shape().batch_count);
  const KvTensor selected = select_sequences(tokens, sequences);
  copy_tokens(tokens, 0, selected, 0, token_count);
}

}  // namespace

Result<KvView> StaticCache::update(const KvTensor& added) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(added.token_count()));
  std::iota(places.begin(), places.end(), token_count_);
  return update_at(added, places);
}

/// Places are checked before the first move: an update that does not fit changes nothing.
Result<KvView> StaticCache::update_at(const KvTensor& added, std::span<const std::int64_t> places) {
  KV_ASSERT(!places.empty() && static_cast<std::int64_t>(places.size()) == added.token_count());
  const auto [least, greatest] = std::minmax_element(places.begin(), places.end());
  if (*least < 0 || *greatest >= tokens_.token_count()) return Errc::kTooLarge;
  std::vector<std::int64_t> all(places.size());
  std::iota(all.begin(), all.end(), 0);
  move_tokens(tokens_, places, added, all);
  token_count_ = std::max(token_count_, *greatest + 1);
  return KvView{&tokens_, 0, token_count_};
}

void StaticCache::select(std::span<const std::int64_t> sequences) { select_in_place(tokens_, token_count_, sequences); }

Result<KvView> SlidingCache::update(const KvTensor& added) {
  const std::int64_t added_count = added.token_count(), kept = kept_count();
  long_view_.reset();
  if (kept + added_count <= window_tokens()) {
    copy_tokens(tokens_, kept, added, 0, added_count);
    token_count_ += added_count;
    return view();
  }
  // Kept and added tokens form one row, as read by the first added token. The window then keeps the row's end.
  const std::int64_t read_count = std::min(kept, window_tokens() - 1);
  KvTensor read(added.shape(), read_count + added_count);
  copy_tokens(read, 0, tokens_, kept - read_count, read_count);
  copy_tokens(read, read_count, added, 0, added_count);
  KV_ASSERT(read.token_count() >= window_tokens());  // an overflow fills the window
  copy_tokens(tokens_, 0, read, read.token_count() - window_tokens(), window_tokens());
  token_count_ += added_count;
  if (read.token_count() == window_tokens()) return view();
  long_view_ = std::move(read);
  return KvView{&*long_view_, 0, long_view_->token_count()};
}

Result<void> SlidingCache::keep_first(std::int64_t token_count) {
  if (token_count < token_count_ && token_count_ > window_tokens()) return Errc::kUnsupported;
  token_count_ = token_count;
  return {};
}

void SlidingCache::select(std::span<const std::int64_t> sequences) {
  select_in_place(tokens_, kept_count(), sequences);
}

}  // namespace kv
