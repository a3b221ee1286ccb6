#include "tests/transport/verbs_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <thread>

#include "transport/verbs/verbs_module.h"

namespace kv::verbs {
namespace {

class FakeWorld final : public VerbsWorld {
 public:
  explicit FakeWorld(const FakeOptions& options) : verbs_(sim_.clock, sim_.io.get_executor(), options) {}
  Provider& provider() override { return verbs_; }
  Clock& clock() override { return sim_.clock; }
  asio::io_context& io() override { return sim_.io; }
  FakeVerbs* fake() override { return &verbs_; }
  std::string node_device() const override { return "fake0"; }
  std::string client_device() const override { return "fake1"; }
  bool wait_some() override {
    sim_.poll();
    if (!sim_.clock.has_alarm()) return false;
    sim_.clock.advance_to(std::max(sim_.clock.now(), sim_.clock.next_alarm()));
    sim_.poll();
    return true;
  }

 private:
  SimWorld sim_;
  FakeVerbs verbs_;
};

/// NODE,CLIENT out of KV_VERBS_TEST_DEVICES.
std::pair<std::string, std::string> real_devices() {
  const char* const named = std::getenv("KV_VERBS_TEST_DEVICES");
  const std::string text = named ? named : "";
  const std::size_t comma = text.find(',');
  if (comma == std::string::npos) return {};
  return {text.substr(0, comma), text.substr(comma + 1)};
}

class DeviceWorld final : public VerbsWorld {
 public:
  DeviceWorld() {
    auto loaded = load_verbs();
    if (!loaded) throw std::runtime_error(loaded.error().text);
    verbs_ = std::move(*loaded);
  }
  Provider& provider() override { return *verbs_; }
  Clock& clock() override { return clock_; }
  asio::io_context& io() override { return io_; }
  std::string node_device() const override { return real_devices().first; }
  std::string client_device() const override { return real_devices().second; }
  void progressed() override { last_ = clock_.now(); }
  bool wait_some() override {
    io_.restart();
    if (io_.poll() == 0) std::this_thread::yield();
    return clock_.now() - last_ < kPatience;
  }

 private:
  static constexpr Duration kPatience = 20s;  ///< Far beyond what any test waits for.
  SteadyClock clock_;
  asio::io_context io_{1};
  std::unique_ptr<Provider> verbs_;
  TimePoint last_ = clock_.now();
};

}  // namespace

std::unique_ptr<VerbsWorld> VerbsWorld::make(const std::string& name, const FakeOptions& options) {
  if (name == "fake") return std::make_unique<FakeWorld>(options);
  if (name == "device") return std::make_unique<DeviceWorld>();
  throw std::runtime_error("no provider of verbs is called " + name);
}

std::vector<std::string> provider_names() {
  if (real_devices().first.empty()) return {"fake"};
  return {"fake", "device"};
}

std::vector<Completion> VerbsWorld::collect(CompletionQueue& queue, std::size_t count) {
  std::vector<Completion> all;
  progressed();
  for (;;) {
    std::array<Completion, 8> some;
    const std::size_t got = queue.poll(some);
    all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(got));
    if (all.size() >= count) return all;
    if (got == 0 && !wait_some()) return all;
  }
}

Side::Side(VerbsWorld& world, const std::string& device_name, std::size_t bytes, Access access)
    : device(world.provider().open(device_name).value()), memory(bytes) {
  attachment = attach(device->query().value(), std::nullopt).value();
  domain = device->create_domain().value();
  queue = device->create_completion_queue(4096).value();
  region = domain->register_memory(memory, access).value();
}

Piece Side::piece(std::size_t offset, std::size_t bytes) {
  return {memory.data() + offset, static_cast<std::uint32_t>(bytes), region->lkey()};
}

Link::Link(Side& side_a, Side& side_b, const QueuePairOptions& options_a, const QueuePairOptions& options_b,
           std::uint8_t timeout_exponent)
    : a(side_a.domain->create_queue_pair(*side_a.queue, options_a).value()),
      b(side_b.domain->create_queue_pair(*side_b.queue, options_b).value()) {
  const std::uint32_t psn_a = random_psn(), psn_b = random_psn();
  const QueuePairAddress address_a = address_of(side_a.attachment, a->number(), psn_a);
  const QueuePairAddress address_b = address_of(side_b.attachment, b->number(), psn_b);
  Path from_a = path_to(side_a.attachment, psn_a, address_b);
  Path from_b = path_to(side_b.attachment, psn_b, address_a);
  from_a.timeout_exponent = from_b.timeout_exponent = timeout_exponent;
  EXPECT_TRUE(a->connect(address_b, from_a));
  EXPECT_TRUE(b->connect(address_a, from_b));
}

}  // namespace kv::verbs
