// store/node/session/core/session_wire.h: how a session reads and builds tables.
#pragma once

#include <spdlog/fmt/fmt.h>

#include <flatbuffers/flatbuffers.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>

#include "index/block_hash.h"
#include "index/reuse_hint.h"
#include "transport/trace_context.h"
#include "transport/wire_generated.h"

namespace kv {

using flatbuffers::FlatBufferBuilder;

/// An empty builder. One per I/O thread: tables are built and copied into the writer's queue without suspending.
inline FlatBufferBuilder& cleared_builder() {
  static thread_local FlatBufferBuilder builder(4096);
  builder.Clear();
  return builder;
}

/// Values of later clients, unknown here, count as kNone.
inline ReuseHint reuse_of(std::uint8_t value) {
  return value <= kReuseHintMax ? static_cast<ReuseHint>(value) : ReuseHint::kNone;
}

/// Times on the wire. Longer ones count as an hour: they are bounds on a wait.
inline std::chrono::microseconds time_of(std::uint64_t microseconds) {
  return std::chrono::microseconds(std::min<std::uint64_t>(microseconds, 3'600'000'000));
}

inline TraceContext trace_of(const wire::Trace* trace) {
  static_assert(sizeof(wire::Trace) == TraceContext::kBytes);
  return trace == nullptr ? TraceContext() : TraceContext::from_bytes(trace->bytes()->data());
}

/// The hashes of a verified table, in place.
inline std::span<const BlockHash> hashes_of(const flatbuffers::Vector<const wire::Hash*>* hashes) {
  static_assert(sizeof(wire::Hash) == sizeof(BlockHash) && alignof(BlockHash) == 1);
  if (hashes == nullptr) return {};
  return {reinterpret_cast<const BlockHash*>(hashes->data()), hashes->size()};
}

inline std::span<const ExtraDigest> extras_of(const flatbuffers::Vector<const wire::ExtraDigest*>* extras) {
  static_assert(sizeof(wire::ExtraDigest) == sizeof(ExtraDigest) && alignof(ExtraDigest) == 1);
  if (extras == nullptr) return {};
  return {reinterpret_cast<const ExtraDigest*>(extras->data()), extras->size()};
}

template <class T>
std::span<const T> numbers_of(const flatbuffers::Vector<T>* numbers) {
  return numbers == nullptr ? std::span<const T>() : std::span<const T>(numbers->data(), numbers->size());
}

inline flatbuffers::Offset<flatbuffers::Vector<std::uint8_t>> create_bytes(FlatBufferBuilder& builder,
                                                                           std::span<const std::byte> bytes) {
  return builder.CreateVector(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
}

/// "field: value, at most allowed", for error messages.
inline std::string count_text(const char* field, std::uint64_t value, std::uint64_t allowed) {
  return fmt::format("{}: {}, at most {}", field, value, allowed);
}

}  // namespace kv
