// KV_WRITE_GOLDEN=1 writes the files that are missing.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/golden_frames.h"

namespace kv {
namespace {

std::map<std::string, golden::Frame> golden_frames() {
  golden::Frames frames;
  golden::add_chain_frames(frames);
  golden::add_set_frames(frames);
  golden::add_context_frames(frames);
  golden::add_session_frames(frames);
  return std::move(frames.by_name);
}

std::string to_text(std::span<const std::byte> bytes) {
  std::string text;
  char pair[4];
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::snprintf(pair, sizeof pair, "%02x%s", static_cast<unsigned>(bytes[i]), i % 16 == 15 ? "\n" : " ");
    text += pair;
  }
  if (bytes.size() % 16 != 0) text.back() = '\n';
  return text;
}

std::vector<std::byte> from_text(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::byte> bytes;
  unsigned value;
  while (in >> std::hex >> value) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(GoldenFrameTest, EveryTypeHasARequestAndAnAnswer) {
  const auto frames = golden_frames();
  for (int type = 1; type <= kFrameTypeMax; ++type) {
    const std::string name = frame_type_name(static_cast<FrameType>(type));
    EXPECT_TRUE(frames.contains(name + ".request")) << name;
    // put_data is answered by put's last frame, cancel by the last frame of what it cancels.
    if (name != "put_data" && name != "cancel") {
      EXPECT_TRUE(frames.contains(name + ".answer")) << name;
    }
  }
}

TEST(GoldenFrameTest, BytesNeverChange) {
  for (const auto& [name, frame] : golden_frames()) {
    SCOPED_TRACE(name);
    const auto payload = std::as_bytes(std::span(frame.payload));
    const auto bytes = frame_bytes(frame.type, frame.request_id, frame.build, payload, frame.flags);
    const std::string path = std::string(KV_GOLDEN_DIR) + "/" + name + ".hex";
    std::ifstream file(path);
    if (!file && std::getenv("KV_WRITE_GOLDEN") != nullptr) {
      std::ofstream(path) << to_text(bytes);
      continue;
    }
    ASSERT_TRUE(file) << path << " is missing; KV_WRITE_GOLDEN=1 writes it";
    std::stringstream text;
    text << file.rdbuf();
    EXPECT_EQ(to_text(bytes), text.str());
  }
}

TEST(GoldenFrameTest, WhatOlderPeersSendIsStillUnderstood) {
  for (const auto& [name, frame] : golden_frames()) {
    SCOPED_TRACE(name);
    std::ifstream file(std::string(KV_GOLDEN_DIR) + "/" + name + ".hex");
    std::stringstream text;
    text << file.rdbuf();
    const auto bytes = from_text(text.str());
    ASSERT_GE(bytes.size(), kFrameHeaderBytes);
    const std::span<const std::byte, kFrameHeaderBytes> head(bytes.data(), kFrameHeaderBytes);
    const auto header = decode_frame_header(head, {.table_bytes_max = UINT32_MAX, .payload_bytes_max = UINT64_MAX});
    ASSERT_TRUE(header) << header.error();
    EXPECT_EQ(header->type, frame.type);
    EXPECT_EQ(header->flags, frame.flags);
    EXPECT_EQ(header->request_id, frame.request_id);
    EXPECT_EQ(header->payload_bytes, frame.payload.size());
    ASSERT_EQ(bytes.size(), kFrameHeaderBytes + header->table_bytes + header->payload_bytes);
    const auto table = std::span(bytes).subspan(kFrameHeaderBytes, header->table_bytes);
    EXPECT_TRUE(frame_checksum_ok(head, table));
    frame.check(table);
  }
}

}  // namespace
}  // namespace kv
