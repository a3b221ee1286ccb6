#include "gpu/layer_caches/quantised_cache.h"

#include <algorithm>
#include <cmath>

#include "base/assert.h"

namespace kv {
namespace {

constexpr float kFp16Max = 65504.0F;

void check(const GroupFormat& format, std::size_t number_count) {
  KV_ASSERT(format.bits == 2 || format.bits == 4 || format.bits == 8);
  KV_ASSERT(format.group_size > 0 && format.group_size % 4 == 0 && number_count % format.group_size == 0);
}

}  // namespace

/// The scale fits fp16 whenever the zero does: the widest range, 131,008, is divided by at least 3 codes.
QuantisedGroups quantise_groups(std::span<const float> numbers, const GroupFormat& format) {
  check(format, numbers.size());
  const auto codes_per_byte = static_cast<std::size_t>(8 / format.bits);
  const auto code_max = static_cast<float>((1 << format.bits) - 1);
  QuantisedGroups groups;
  groups.codes.resize(numbers.size() / codes_per_byte);
  for (std::size_t begin = 0; begin < numbers.size(); begin += format.group_size) {
    const auto group = numbers.subspan(begin, format.group_size);
    const auto [least, greatest] = std::minmax_element(group.begin(), group.end());
    const float min = std::clamp(*least, -kFp16Max, kFp16Max), max = std::clamp(*greatest, -kFp16Max, kFp16Max);
    // Codes are chosen for the stored zero and scale; those for the exact ones would also carry fp16's rounding error.
    groups.zeros.push_back(static_cast<std::uint16_t>(encode_element(Element::kFp16, min)));
    groups.scales.push_back(static_cast<std::uint16_t>(encode_element(Element::kFp16, (max - min) / code_max)));
    const float zero = decode_element(Element::kFp16, groups.zeros.back());
    const float scale = decode_element(Element::kFp16, groups.scales.back());
    for (std::size_t i = 0; i < group.size(); ++i) {
      const float exact = scale > 0 ? (group[i] - zero) / scale : 0;
      const auto code = static_cast<unsigned>(std::clamp(std::nearbyint(exact), 0.0F, code_max));
      const std::size_t index = begin + i;
      groups.codes[index / codes_per_byte] |=
          static_cast<std::uint8_t>(code << (index % codes_per_byte * static_cast<std::size_t>(format.bits)));
    }
  }
  return groups;
}

void dequantise_groups(const QuantisedGroups& groups, const GroupFormat& format, std::span<float> numbers) {
  check(format, numbers.size());
  const auto codes_per_byte = static_cast<std::size_t>(8 / format.bits);
  KV_ASSERT(groups.codes.size() * codes_per_byte == numbers.size());
  KV_ASSERT(groups.zeros.size() == numbers.size() / format.group_size && groups.scales.size() == groups.zeros.size());
  const unsigned mask = (1U << format.bits) - 1;
  for (std::size_t group = 0; group < groups.zeros.size(); ++group) {
    const float zero = decode_element(Element::kFp16, groups.zeros[group]);
    const float scale = decode_element(Element::kFp16, groups.scales[group]);
    for (std::size_t i = group * format.group_size; i < (group + 1) * format.group_size; ++i) {
      const unsigned code =
          groups.codes[i / codes_per_byte] >> (i % codes_per_byte * static_cast<std::size_t>(format.bits)) & mask;
      numbers[i] = zero + static_cast<float>(code) * scale;
    }
  }
}

QuantisedCache::QuantisedCache(const TokenShape& shape, const Config& config) : shape_(shape), config_(config) {
  KV_ASSERT(config.group_size > 0 && config.group_size % 8 == 0 && config.residual_tokens >= 0);
  const auto group_size = static_cast<std::int64_t>(value_format().group_size);
  KV_ASSERT(group_size % 8 == 0 && shape.value_size % group_size == 0);
}

/// Blocks are cut from the finished view (3): added tokens return as they came, and are read from codes later.
Result<KvView> QuantisedCache::update(const KvTensor& added) {
  KV_ASSERT(added.shape() == shape_);
  view_.emplace(shape_, token_count() + added.token_count());
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    dequantise(blocks_[i], *view_, static_cast<std::int64_t>(i) * config_.group_size);
  }
  const std::int64_t whole_begin = quantised_count();
  if (whole_) copy_tokens(*view_, whole_begin, *whole_, 0, whole_count_);
  copy_tokens(*view_, whole_begin + whole_count_, added, 0, added.token_count());

  while (view_->token_count() - quantised_count() >= config_.residual_tokens + config_.group_size) {
    blocks_.push_back(quantise(*view_, quantised_count()));
  }
  whole_count_ = view_->token_count() - quantised_count();
  KV_ASSERT(whole_count_ >= 0 && whole_count_ < config_.residual_tokens + config_.group_size);  // 1
  whole_.reset();
  if (whole_count_ > 0) {
    whole_.emplace(shape_, whole_count_);
    copy_tokens(*whole_, 0, *view_, quantised_count(), whole_count_);
  }
  return KvView{&*view_, 0, view_->token_count()};
}

/// Whole blocks can go. The rest of a cut one would be rounded again once the block is full (2).
Result<void> QuantisedCache::keep_first(std::int64_t token_count) {
  if (token_count < quantised_count() && token_count % config_.group_size != 0) return Errc::kUnsupported;
  blocks_.resize(std::min(blocks_.size(), static_cast<std::size_t>(token_count / config_.group_size)));
  whole_count_ = token_count - quantised_count();
  KV_ASSERT(whole_count_ >= 0);
  return {};
}

/// Codes are copied as they are: decoding and rounding them again would wear a beam search's prompt away.
void QuantisedCache::select(std::span<const std::int64_t> sequences) {
  for (Block& block : blocks_) {
    Block selected;
    for (const std::int64_t sequence : sequences) selected.push_back(block[static_cast<std::size_t>(sequence)]);
    block = std::move(selected);
  }
  if (whole_) whole_ = select_sequences(*whole_, sequences);
  view_.reset();
  shape_.batch_count = static_cast<std::int64_t>(sequences.size());
}

std::int64_t QuantisedCache::memory_bytes() const {
  std::size_t bytes = 0;
  for (const Block& block : blocks_) {
    for (const SequenceBlock& sequence : block) bytes += sequence.keys.bytes() + sequence.values.bytes();
  }
  return static_cast<std::int64_t>(bytes) + (whole_ ? whole_->memory_bytes() : 0) + (view_ ? view_->memory_bytes() : 0);
}

GroupFormat QuantisedCache::key_format() const {
  return {.bits = config_.bits, .group_size = static_cast<std::size_t>(config_.group_size)};
}

GroupFormat QuantisedCache::value_format() const {
  return {.bits = config_.bits,
          .group_size = static_cast<std::size_t>(std::min(config_.group_size, shape_.value_size))};
}

/// A key's group is one feature over the block's tokens, a value's group is some features of one token.
QuantisedCache::Block QuantisedCache::quantise(const KvTensor& tokens, std::int64_t begin) const {
  KV_ASSERT(begin >= 0 && begin + config_.group_size <= tokens.token_count());
  Block block;
  for (std::int64_t sequence = 0; sequence < shape_.batch_count; ++sequence) {
    std::vector<float> keys, values;
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      for (std::int64_t f = 0; f < shape_.key_size; ++f) {
        for (std::int64_t t = 0; t < config_.group_size; ++t) keys.push_back(tokens.key(sequence, head, begin + t, f));
      }
      for (std::int64_t t = 0; t < config_.group_size; ++t) {
        for (std::int64_t f = 0; f < shape_.value_size; ++f)
          values.push_back(tokens.value(sequence, head, begin + t, f));
      }
    }
    block.push_back({quantise_groups(keys, key_format()), quantise_groups(values, value_format())});
  }
  return block;
}

void QuantisedCache::dequantise(const Block& block, KvTensor& tokens, std::int64_t begin) const {
  const std::int64_t per_feature = shape_.heads * config_.group_size;
  std::vector<float> keys(static_cast<std::size_t>(per_feature * shape_.key_size));
  std::vector<float> values(static_cast<std::size_t>(per_feature * shape_.value_size));
  for (std::int64_t sequence = 0; sequence < shape_.batch_count; ++sequence) {
    KV_ASSERT(static_cast<std::size_t>(sequence) < block.size());  // select() keeps one per sequence
    const SequenceBlock& stored = block[static_cast<std::size_t>(sequence)];
    dequantise_groups(stored.keys, key_format(), keys);
    dequantise_groups(stored.values, value_format(), values);
    auto key = keys.begin(), value = values.begin();
    for (std::int64_t head = 0; head < shape_.heads; ++head) {
      for (std::int64_t f = 0; f < shape_.key_size; ++f) {
        for (std::int64_t t = 0; t < config_.group_size; ++t) tokens.set_key(sequence, head, begin + t, f, *key++);
      }
      for (std::int64_t t = 0; t < config_.group_size; ++t) {
        for (std::int64_t f = 0; f < shape_.value_size; ++f) tokens.set_value(sequence, head, begin + t, f, *value++);
      }
    }
  }
}

}  // namespace kv
