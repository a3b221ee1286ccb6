// Random work on several queue pairs against a plain model: what each batch should do to the memory of both sides.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <iostream>
#include <map>
#include <optional>
#include <random>

#include "tests/transport/verbs_world.h"

namespace kv::verbs {
namespace {

constexpr std::size_t kAreaBytes = 32 * 1024;  ///< Each queue pair has its own part of both memories.
constexpr std::size_t kLinkCount = 4;

class VerbsModel {
 public:
  VerbsModel(VerbsWorld& world, std::uint64_t seed, std::size_t batch_count)
      : world_(world),
        random_(seed),
        left_(batch_count),
        node_(world, world.node_device(), kLinkCount * kAreaBytes),
        client_(world, world.client_device(), kLinkCount * kAreaBytes) {
    for (std::byte& byte : node_.memory) byte = static_cast<std::byte>(random_());
    for (std::byte& byte : client_.memory) byte = static_cast<std::byte>(random_());
    node_model_ = node_.memory;
    client_model_ = client_.memory;
    for (std::size_t i = 0; i < kLinkCount; ++i) connect(i);
  }

  void run() {
    while (left_ > 0 || !waiting_.empty()) {
      for (std::size_t i = 0; i < kLinkCount && left_ > 0; ++i) {
        if (links_[i].outstanding < 4 && !links_[i].is_broken && pick(0, 3) != 0) post(i);
      }
      std::array<Completion, 4> some;
      const std::size_t count = node_.queue->poll(some);
      for (std::size_t i = 0; i < count; ++i) {
        take(some[i]);
        if (testing::Test::HasFatalFailure()) return;
      }
      if (count > 0) world_.progressed();
      if (count == 0 && !world_.wait_some() && left_ == 0) break;
    }
    EXPECT_TRUE(waiting_.empty()) << waiting_.size() << " batches never ended";
    EXPECT_TRUE(node_.memory == node_model_);
    EXPECT_TRUE(client_.memory == client_model_);
  }
  std::size_t good_count = 0, bad_count = 0, flushed_count = 0;

 private:
  struct Planned {
    Opcode opcode;
    std::vector<Piece> pieces;
    std::size_t remote = 0;
    bool is_bad = false;
    std::uint32_t rkey = 0;
    std::uint64_t address = 0;
  };
  struct Batch {
    std::size_t link = 0;
    std::vector<Planned> requests;
    std::optional<std::size_t> first_bad;
  };
  struct Connection {
    std::unique_ptr<Link> link;
    std::deque<std::uint64_t> order;
    std::size_t outstanding = 0;
    bool is_broken = false;  ///< A bad request was posted: nothing after it happens.
    bool has_failed = false;
    bool has_read = false;  ///< Since nothing was outstanding.
  };

  std::size_t pick(std::size_t low, std::size_t high) {
    return std::uniform_int_distribution<std::size_t>(low, high)(random_);
  }
  void connect(std::size_t i) {
    links_[i] = {};
    links_[i].link = std::make_unique<Link>(node_, client_, QueuePairOptions{.piece_count_max = 4}, kOpen);
    by_number_[links_[i].link->a->number()] = i;
  }

  void post(std::size_t i) {
    Batch batch{.link = i, .requests = {}, .first_bad = {}};
    std::vector<Request> requests;
    const std::size_t count = pick(1, 6);
    if (links_[i].outstanding == 0) links_[i].has_read = false;
    for (std::size_t r = 0; r < count; ++r) {
      // What follows a READ may overtake it: WRITEs wait until it has ended.
      links_[i].has_read = links_[i].has_read || pick(0, 2) == 0;
      Planned planned{
          .opcode = links_[i].has_read ? Opcode::kRead : Opcode::kWrite, .pieces = {}, .rkey = client_.region->rkey()};
      // Pieces that do not overlap: a READ into one byte twice has no defined end.
      std::size_t at = pick(0, 2000), bytes = 0;
      for (std::size_t p = pick(1, 4); p > 0 && at < kAreaBytes; --p) {
        const std::size_t length = std::min(pick(0, 7000), kAreaBytes - at);
        planned.pieces.push_back(node_.piece(i * kAreaBytes + at, length));
        at += length + pick(0, 3000);
        bytes += length;
      }
      planned.remote = i * kAreaBytes + pick(0, kAreaBytes - bytes);
      planned.address = client_.address(planned.remote);
      if (bytes > 0 && pick(0, 40) == 0) {
        planned.is_bad = true;
        if (pick(0, 1)) {
          planned.rkey ^= 1u << pick(8, 31);
        } else {
          planned.address = client_.address(client_.memory.size()) - pick(0, bytes - 1);
        }
        if (!batch.first_bad) batch.first_bad = r;
      }
      batch.requests.push_back(std::move(planned));
    }
    for (const Planned& each : batch.requests) {
      requests.push_back(
          {.opcode = each.opcode, .pieces = each.pieces, .remote_address = each.address, .rkey = each.rkey});
    }
    const std::uint64_t id = ++last_id_;
    ASSERT_TRUE(links_[i].link->a->post(requests, id));
    links_[i].is_broken = batch.first_bad.has_value();
    links_[i].order.push_back(id);
    ++links_[i].outstanding;
    --left_;
    waiting_[id] = std::move(batch);
  }

  void take(const Completion& completion) {
    const auto found = by_number_.find(completion.queue_pair);
    ASSERT_NE(found, by_number_.end());
    Connection& connection = links_[found->second];
    ASSERT_FALSE(connection.order.empty());
    ASSERT_EQ(completion.id, connection.order.front()) << "out of order on its queue pair";
    Batch& batch = waiting_.at(completion.id);
    if (completion.status == Status::kSuccess) {
      ASSERT_FALSE(batch.first_bad) << "a bad request went well";
      ASSERT_FALSE(connection.has_failed);
      ASSERT_TRUE(completion.is_last);
      for (const Planned& each : batch.requests) apply(each);
      ++good_count;
    } else if (!connection.has_failed) {
      ASSERT_TRUE(batch.first_bad) << "failed without a reason: " << name_of(completion.status);
      ASSERT_EQ(completion.status, Status::kRemoteAccess);
      connection.has_failed = true;
      ++bad_count;
      for (std::size_t r = 0; r < *batch.first_bad; ++r) apply(batch.requests[r]);
    } else {
      ASSERT_EQ(completion.status, Status::kFlushed);
      ++flushed_count;
    }
    if (!completion.is_last) return;
    connection.order.pop_front();
    --connection.outstanding;
    waiting_.erase(completion.id);
    if (!connection.has_failed || connection.outstanding > 0) return;
    by_number_.erase(found);
    connect(batch_link(connection));
  }
  std::size_t batch_link(const Connection& connection) const {
    return static_cast<std::size_t>(&connection - links_.data());
  }

  void apply(const Planned& each) {
    std::size_t remote = each.remote;
    for (const Piece& piece : each.pieces) {
      const auto local = node_model_.begin() + (piece.data - node_.memory.data());
      const auto there = client_model_.begin() + static_cast<std::ptrdiff_t>(remote);
      if (each.opcode == Opcode::kWrite) {
        std::copy_n(local, piece.bytes, there);
      } else {
        std::copy_n(there, piece.bytes, local);
      }
      remote += piece.bytes;
    }
  }

  VerbsWorld& world_;
  std::mt19937_64 random_;
  std::size_t left_;
  Side node_, client_;
  std::vector<std::byte> node_model_, client_model_;
  std::array<Connection, kLinkCount> links_;
  std::map<std::uint32_t, std::size_t> by_number_;
  std::map<std::uint64_t, Batch> waiting_;
  std::uint64_t last_id_ = 0;
};

class VerbsModelTest : public testing::TestWithParam<std::string> {};

TEST_P(VerbsModelTest, RandomBatchesDoWhatTheModelSays) {
  const std::uint64_t first = seed_or(1);
  const std::uint64_t last = std::getenv("KV_SEED") ? first : GetParam() == "fake" ? 20 : 2;
  std::size_t good = 0, bad = 0, flushed = 0;
  for (std::uint64_t seed = first; seed <= last && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const auto world = VerbsWorld::make(GetParam(), {.seed = seed});
    VerbsModel model(*world, seed, 400);
    model.run();
    good += model.good_count;
    bad += model.bad_count;
    flushed += model.flushed_count;
  }
  std::cout << "seeds " << first << " to " << last << ": " << good << " batches went well, " << bad << " were refused, "
            << flushed << " requests flushed\n";
  EXPECT_GT(good, 100u);
  EXPECT_GT(bad, 5u);
}

INSTANTIATE_TEST_SUITE_P(Providers, VerbsModelTest, testing::ValuesIn(provider_names()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace kv::verbs
