#include "tests/attack/attacked_node.h"

#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>

namespace kv::attack {
namespace {

/// The value of a line such as "VmRSS:     1234 kB", in bytes.
std::uint64_t status_bytes(const std::string& status, const std::string& name) {
  const auto at = status.find(name + ":");
  return at == std::string::npos ? 0 : std::strtoull(status.c_str() + at + name.size() + 1, nullptr, 10) * 1024;
}

}  // namespace

ProcessUse use_of(pid_t process) {
  const std::string root = "/proc/" + std::to_string(process);
  std::ifstream file(root + "/status");
  const std::string status{std::istreambuf_iterator<char>(file), {}};
  ProcessUse use;
  use.rss_bytes = status_bytes(status, "VmRSS");
  use.rss_peak_bytes = status_bytes(status, "VmHWM");
  std::error_code gone;
  for (const auto& entry : std::filesystem::directory_iterator(root + "/fd", gone)) {
    (void)entry;
    ++use.descriptor_count;
  }
  return use;
}

std::uint64_t printed_seed() {
  const char* const given = std::getenv("KV_SEED");
  const std::uint64_t seed = given != nullptr ? std::strtoull(given, nullptr, 0) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// -- Bystander

Bystander::Bystander(const std::string& endpoint, Transport transport, std::uint64_t number)
    : client_(endpoint, transport, e2e::make_record(kBlockBytes, "bystander" + std::to_string(number)), kBlockCount),
      number_(number),
      kept_(e2e::make_chain(1000 * number + 1, kBlockCount)) {
  expect(client_.put(kept_, kRoundDeadline).stored == kBlockCount, "the first put was not taken");
  const auto pinned = client_->retain(client_.space(), kept_, kRoundDeadline);
  expect(pinned && *pinned == kBlockCount, "the first chain was not pinned");
  thread_ = std::thread([this] { run(); });
}

Bystander::~Bystander() {
  stops_ = true;
  thread_.join();
}

bool Bystander::wait_for_rounds(std::size_t count) {
  const std::uint64_t wanted = begun_ + count;
  return e2e::eventually([&] { return ended_ >= wanted; });
}

std::string Bystander::complaints() const {
  const std::scoped_lock lock(mutex_);
  return complaints_;
}

void Bystander::expect(bool is_right, const std::string& what) {
  if (is_right) return;
  const std::scoped_lock lock(mutex_);
  if (complaints_.size() < 1000) complaints_ += "bystander " + std::to_string(number_) + ": " + what + "\n";
}

void Bystander::run() {
  while (!stops_) {
    const std::uint64_t round = ++begun_;
    try {
      play_round(round);
    } catch (const std::exception& error) {
      expect(false, error.what());
    }
    ended_ = round;
  }
}

void Bystander::play_round(std::uint64_t round) {
  const auto chain = e2e::make_chain((number_ << 32) + 2 * round, kBlockCount);
  const std::string where = " in round " + std::to_string(round);
  const PutResult put = client_.put(chain, kRoundDeadline);
  expect(put.stored == kBlockCount,
         "put stored " + std::to_string(put.stored) + " of 4 (" + put.why.message() + ")" + where);
  for (const auto& which : {chain, kept_}) {
    const GetResult got = client_.get(which, kRoundDeadline);
    expect(got.block_count == kBlockCount,
           "get brought " + std::to_string(got.block_count) + " of 4 (" + got.why.message() + ")" + where);
    expect(client_.wrong_bytes(which, got.block_count) == 0, "get brought wrong bytes" + where);
  }
  const auto match = client_->match(client_.space(), chain, {.deadline = kRoundDeadline, .lease = true});
  expect(match && match->block_count == kBlockCount, "match did not find the chain" + where);
  if (match) client_->release(match->lease);
  const auto touched = client_->touch(client_.space(), kept_, kRoundDeadline);
  expect(touched && *touched == kBlockCount, "touch did not find the chain" + where);
  const auto dropped = client_->drop(client_.space(), std::span(chain).first(1), kRoundDeadline);
  // How many is not looked at: while others drop much at once, the counts are of all of them together.
  expect(dropped.has_value(), "drop was refused" + where);
  const auto gone = client_->match(client_.space(), chain, {.deadline = kRoundDeadline});
  expect(gone && gone->block_count == 0, "match found what was dropped" + where);
}

// -- AttackTest

void AttackTest::start(std::vector<std::string> options) {
  bystanders_.clear();
  std::vector<std::string> all = {"--capacity", "64MiB", "--threads", "1", "--rdma", "off"};
  for (std::size_t i = 0; i + 1 < options.size(); i += 2) {
    const auto given = std::find(all.begin(), all.end(), options[i]);
    if (given != all.end()) {
      *(given + 1) = options[i + 1];
    } else {
      all.insert(all.end(), {options[i], options[i + 1]});
    }
  }
  node = std::make_unique<e2e::NodeProcess>(all);
  base_ = use_of(node->pid());
  add_bystander(Transport::kUnix);
}

void AttackTest::add_bystander(Transport transport) {
  bystanders_.push_back(
      std::make_unique<Bystander>(e2e::endpoint_of(*node, transport), transport, bystanders_.size() + 1));
}

NamespaceRecord AttackTest::record_of(std::size_t block_bytes, const std::string& name) {
  return e2e::make_record(block_bytes, "attacker-" + name);
}

void AttackTest::expect_bystanders_served() {
  for (const auto& each : bystanders_) {
    EXPECT_TRUE(each->wait_for_rounds(2)) << "a bystander gets no answers any more";
    EXPECT_EQ(each->complaints(), "");
  }
}

void AttackTest::TearDown() {
  expect_bystanders_served();
  bystanders_.clear();
  expect_nothing_left();
  const ProcessUse use = use_of(node->pid());
  const std::uint64_t growth = use.rss_peak_bytes - std::min(use.rss_peak_bytes, base_.rss_bytes);
  std::printf("node: grew by %llu KiB at most, log %zu bytes\n", static_cast<unsigned long long>(growth >> 10),
              node->log().size());
  if (!is_sanitized()) {
    EXPECT_LE(growth, bounds.rss_growth_bytes) << "the node's peak over its start";
  }
  EXPECT_LE(node->log().size(), bounds.log_bytes);
  expect_clean_exit();
}

/// Sessions, lent memory, incoming blocks, leases and descriptors are gone, and once every namespace was dropped
/// nothing is allocated: so nothing is pinned.
void AttackTest::expect_nothing_left() {
  const auto becomes = [&](const std::string& metric, double value) {
    EXPECT_TRUE(e2e::eventually([&] { return node->metric(metric) == value; }))
        << metric << " is " << node->metric(metric);
  };
  becomes("kvstore_sessions", 0);
  becomes("kvstore_region_bytes", 0);
  becomes("kvstore_incoming_blocks", 0);
  becomes("kvstore_leases", 0);
  EXPECT_TRUE(e2e::eventually([&] { return use_of(node->pid()).descriptor_count <= base_.descriptor_count; }))
      << use_of(node->pid()).descriptor_count << " descriptors are open, " << base_.descriptor_count << " were";

  e2e::TestClient cleaner(node->unix_socket(), Transport::kUnix, e2e::make_record(Bystander::kBlockBytes, "bystander1"),
                          1);
  std::string after;
  do {
    const auto stats = cleaner->ask({.path = "/stats.json", .query = after}, e2e::kDeadline);
    ASSERT_TRUE(stats && stats->size() == 1 && !stats->at(0).error);
    const auto said = nlohmann::json::parse(stats->at(0).json);
    after = said.contains("next") ? "after=" + said["next"].get<std::string>() : "";
    for (const nlohmann::json& each : said.at("namespaces")) {
      const auto record = NamespaceRecord::parse(each.at("record").get<std::string>());
      ASSERT_TRUE(record) << record.error();
      const auto space = cleaner->open(*record, e2e::kDeadline);
      ASSERT_TRUE(space) << space.error().message();
      EXPECT_TRUE(cleaner->drop(*space, {}, e2e::kDeadline));
    }
  } while (!after.empty());
  becomes("kvstore_allocated_bytes", 0);
}

void AttackTest::expect_clean_exit() {
  const auto end = [&] {
    node->signal(SIGTERM);
    return node->wait();
  };
  EXPECT_EQ(end(), 0);
  const std::string log = node->log();
  for (const char* const word : {"Sanitizer", "runtime error:", "assertion"}) {
    const auto at = log.find(word);
    EXPECT_EQ(at, std::string::npos) << log.substr(at - std::min<std::size_t>(at, 500), 5000);
  }
}

}  // namespace kv::attack
