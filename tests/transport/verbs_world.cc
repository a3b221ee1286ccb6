#include "tests/transport/verbs_world.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace kv::verbs {
namespace {

class FakeWorld final : public VerbsWorld {
 public:
  explicit FakeWorld(const FakeOptions& options) : verbs_(sim_.clock, sim_.io.get_executor(), options) {}
  Provider& provider() override { return verbs_; }
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

}  // namespace

std::unique_ptr<VerbsWorld> VerbsWorld::make(const std::string& name, const FakeOptions& options) {
  if (name == "fake") return std::make_unique<FakeWorld>(options);
  throw std::runtime_error("no provider of verbs is called " + name);
}

std::vector<std::string> provider_names() { return {"fake"}; }

std::vector<Completion> VerbsWorld::collect(CompletionQueue& queue, std::size_t count) {
  std::vector<Completion> all;
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
  std::string why;
  attachment = attach(device->query().value(), std::nullopt, &why).value();
  domain = device->create_domain().value();
  queue = device->create_completion_queue(4096).value();
  region = domain->register_memory(memory, access, &why).value();
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
  std::string why;
  EXPECT_TRUE(a->connect(address_b, from_a, &why)) << why;
  EXPECT_TRUE(b->connect(address_a, from_b, &why)) << why;
}

}  // namespace kv::verbs
