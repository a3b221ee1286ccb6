#include "gpu/layer_caches/kv_tensor.h"

#include <array>
#include <numeric>

#include "base/assert.h"

namespace kv {
namespace {

constexpr std::size_t kKeyComponent = 0, kValueComponent = 1;

}  // namespace

KvTensor::KvTensor(const TokenShape& shape, std::int64_t token_count) : shape_(shape) {
  Layout layout = layouts::batched({.block_count = shape.batch_count,
                                    .block_tokens = token_count,
                                    .heads = shape.heads,
                                    .key_size = shape.key_size,
                                    .value_size = shape.value_size,
                                    .element = shape.element})
                      .value();
  KV_ASSERT(layout.components[kKeyComponent].role == Role::kKey &&
            layout.components[kValueComponent].role == Role::kValue);
  memory_ = std::make_shared<Memory>();
  memory_->keys.resize(static_cast<std::size_t>(layout.tensor_bytes(0)));
  memory_->values.resize(static_cast<std::size_t>(layout.tensor_bytes(1)));
  bound_ = bind_layout(std::move(layout), std::array<void*, 2>{memory_->keys.data(), memory_->values.data()}).value();
}

float KvTensor::key(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature) const {
  const std::byte* at = memory_->keys.data() + place(sequence, head, token, feature, shape_.key_size);
  return decode_element(shape_.element, load_code(at, shape_.element));
}
float KvTensor::value(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature) const {
  const std::byte* at = memory_->values.data() + place(sequence, head, token, feature, shape_.value_size);
  return decode_element(shape_.element, load_code(at, shape_.element));
}
void KvTensor::set_key(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature,
                       float number) {
  std::byte* at = memory_->keys.data() + place(sequence, head, token, feature, shape_.key_size);
  store_code(at, shape_.element, encode_element(shape_.element, number));
}
void KvTensor::set_value(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature,
                         float number) {
  std::byte* at = memory_->values.data() + place(sequence, head, token, feature, shape_.value_size);
  store_code(at, shape_.element, encode_element(shape_.element, number));
}

/// Without the layout's axes, whose divisions would take most of a quantised cache's time.
std::int64_t KvTensor::place(std::int64_t sequence, std::int64_t head, std::int64_t token, std::int64_t feature,
                             std::int64_t size) const {
  return (((sequence * shape_.heads + head) * token_count() + token) * size + feature) * element_bytes(shape_.element);
}

/// permute() has slots, not sequences: token t of sequence s is slot s * token_count + t. So each sequence's tokens are
/// one call, with all slots moved on by the tensor's token count from one to the next.
void move_tokens(KvTensor& to, std::span<const std::int64_t> to_tokens, const KvTensor& from,
                 std::span<const std::int64_t> from_tokens, const Operation& operation) {
  KV_ASSERT(&to != &from && to.shape() == from.shape() && to_tokens.size() == from_tokens.size());
  std::vector<std::int64_t> to_slots(to_tokens.begin(), to_tokens.end());
  std::vector<std::int64_t> from_slots(from_tokens.begin(), from_tokens.end());
  for (const std::int64_t token : to_slots) KV_ASSERT(token >= 0 && token < to.token_count());
  for (const std::int64_t token : from_slots) KV_ASSERT(token >= 0 && token < from.token_count());
  for (std::int64_t sequence = 0; sequence < to.shape().batch_count; ++sequence) {
    const auto moved = permute(to.layout(), Rows::slots(to_slots.data()), from.layout(), Rows::slots(from_slots.data()),
                               static_cast<std::int64_t>(to_slots.size()), operation);
    KV_ASSERT(moved);
    for (std::int64_t& slot : to_slots) slot += to.token_count();
    for (std::int64_t& slot : from_slots) slot += from.token_count();
  }
}

void copy_tokens(KvTensor& to, std::int64_t to_begin, const KvTensor& from, std::int64_t from_begin,
                 std::int64_t count) {
  KV_ASSERT(count >= 0);  // a negative count would request huge vectors
  std::vector<std::int64_t> to_tokens(static_cast<std::size_t>(count)), from_tokens(to_tokens.size());
  std::iota(to_tokens.begin(), to_tokens.end(), to_begin);
  std::iota(from_tokens.begin(), from_tokens.end(), from_begin);
  move_tokens(to, to_tokens, from, from_tokens);
}

/// In a batched layout a block is a whole sequence, so a selection is a copy of blocks.
KvTensor select_sequences(const KvTensor& from, std::span<const std::int64_t> sequences) {
  TokenShape shape = from.shape();
  shape.batch_count = static_cast<std::int64_t>(sequences.size());
  KvTensor selected(shape, from.token_count());
  for (const std::int64_t sequence : sequences) KV_ASSERT(sequence >= 0 && sequence < from.shape().batch_count);
  std::vector<std::int64_t> to_blocks(sequences.size());
  std::iota(to_blocks.begin(), to_blocks.end(), 0);
  const auto moved = relayout(selected.layout(), to_blocks, from.layout(), sequences);
  KV_ASSERT(moved);
  return selected;
}

}  // namespace kv
