// tests/transport/verbs_world.h: two sides of a connection on any provider of verbs, for tests that are the same for
// all.
//
// Providers: "fake", and "device" if KV_VERBS_TEST_DEVICES=NODE,CLIENT names two real devices (or one twice).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/fakes/verbs_fake.h"
#include "tests/transport/sim_world.h"
#include "transport/verbs/verbs_choice.h"

namespace kv::verbs {

class VerbsWorld {
 public:
  /// Of a name out of provider_names(). Throws if there is no such provider.
  static std::unique_ptr<VerbsWorld> make(const std::string& name, const FakeOptions& options = {});
  virtual ~VerbsWorld() = default;

  virtual Provider& provider() = 0;
  virtual Clock& clock() = 0;
  virtual asio::io_context& io() = 0;
  virtual FakeVerbs* fake() { return nullptr; }
  virtual std::string node_device() const = 0;
  virtual std::string client_device() const = 0;
  virtual void progressed() {}   ///< Something came: patience begins anew.
  virtual bool wait_some() = 0;  ///< Lets time pass; false when nothing more can come of it.

  /// At least `count` completions, or what came before nothing more could.
  std::vector<Completion> collect(CompletionQueue& queue, std::size_t count);
};
std::vector<std::string> provider_names();

/// A process: a device, a domain, a queue, and some registered memory.
struct Side {
  Side(VerbsWorld& world, const std::string& device_name, std::size_t bytes = 64 * 1024, Access access = kAll);
  static constexpr Access kAll{.local_write = true, .remote_write = true, .remote_read = true};

  Piece piece(std::size_t offset, std::size_t bytes);
  std::uint64_t address(std::size_t offset = 0) const {
    return reinterpret_cast<std::uintptr_t>(memory.data()) + offset;
  }

  std::unique_ptr<Device> device;
  Attachment attachment;
  std::unique_ptr<ProtectionDomain> domain;
  std::unique_ptr<CompletionQueue> queue;
  std::vector<std::byte> memory;
  std::unique_ptr<MemoryRegion> region;
};

/// Connected queue pairs of two sides.
struct Link {
  Link(Side& a, Side& b, const QueuePairOptions& options_a, const QueuePairOptions& options_b,
       std::uint8_t timeout_exponent = 16);
  std::unique_ptr<QueuePair> a, b;
};
inline constexpr QueuePairOptions kOpen{.remote = {.remote_write = true, .remote_read = true}};

}  // namespace kv::verbs
