#include "tests/fakes/verbs_fake.h"

#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/assert.h"
#include "tests/fakes/verbs_fabric.h"

namespace kv::verbs {
namespace {

using Fabric = FakeVerbs::Fabric;

error_code no_device() { return {ENODEV, boost::system::system_category()}; }

class FakeMemory final : public MemoryRegion {
 public:
  FakeMemory(Fabric& fabric, Fabric::Node& node, std::size_t& domain_users, Fabric::Registration registration,
             std::span<std::byte> mapping)
      : fabric_(fabric), node_(node), users_(domain_users), mapping_(mapping), bytes_(registration.bytes) {
    // Two keys, so that code which confuses them fails here as on a device.
    lkey_ = fabric.next_key();
    rkey_ = fabric.next_key();
    fabric.by_lkey.emplace(lkey_, registration);
    fabric.by_rkey.emplace(rkey_, registration);
    node_.registered_bytes += bytes_;
    ++users_;
  }
  ~FakeMemory() override {
    fabric_.by_lkey.erase(lkey_);
    fabric_.by_rkey.erase(rkey_);
    node_.registered_bytes -= bytes_;
    --users_;
    if (!mapping_.empty()) KV_ASSERT(::munmap(mapping_.data(), mapping_.size()) == 0);
  }
  std::uint32_t lkey() const override { return lkey_; }
  std::uint32_t rkey() const override { return rkey_; }

 private:
  Fabric& fabric_;
  Fabric::Node& node_;
  std::size_t& users_;
  std::span<std::byte> mapping_;  ///< Of a dma-buf.
  std::uint64_t bytes_;
  std::uint32_t lkey_ = 0, rkey_ = 0;
};

class FakeQueue final : public CompletionQueue {
 public:
  FakeQueue(Fabric& fabric, std::size_t node, std::uint32_t count) : fabric_(fabric) {
    state.node = node;
    state.room = count;
    state.event = Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    fabric.queues.insert(&state);
  }
  ~FakeQueue() override {
    KV_ASSERT(user_count == 0);  // a queue pair outlived its queue
    fabric_.queues.erase(&state);
  }

  std::size_t poll(std::span<Completion> to) override {
    std::size_t count = 0;
    for (; count < to.size() && !state.arrived.empty(); ++count) {
      to[count] = state.arrived.front();
      state.arrived.pop_front();
      // The queue pair exists: its destructor takes its completions out of the queue.
      Fabric::Pair& pair = *fabric_.find_pair(to[count].queue_pair);
      if (to[count].is_receive) {
        KV_ASSERT(pair.receive_count > 0);
        --pair.receive_count;
      } else if (to[count].is_last) {
        pair.sends.end_first();
      }
    }
    return count;
  }
  Result<void> arm() override {
    state.is_armed = true;
    return {};
  }
  int descriptor() const override { return state.event.get(); }
  Result<void> take_events() override {
    if (state.is_gone) return no_device();
    std::uint64_t count = 0;
    KV_ASSERT(::read(state.event.get(), &count, sizeof count) == sizeof count || errno == EAGAIN);
    return {};
  }

  Fabric::Queue state;
  std::size_t user_count = 0;

 private:
  Fabric& fabric_;
};

class FakeQueuePair final : public QueuePair {
 public:
  FakeQueuePair(Fabric& fabric, std::size_t node, std::uint64_t domain, std::size_t& domain_users, FakeQueue& queue,
                const QueuePairOptions& options)
      : fabric_(fabric), queue_(queue), users_(domain_users) {
    // Scattered, as real devices' numbers may be, so that code cannot rely on their order.
    number_ = (++fabric.number_last * 0x9E3779u) & 0xFFFFFF;
    Fabric::Pair& pair = fabric.pairs.emplace(number_, Fabric::Pair(options)).first->second;
    pair.options.inline_bytes_max = std::min(options.inline_bytes_max, fabric.options.inline_bytes_max);
    pair.number = number_;
    pair.node = node;
    pair.domain = domain;
    pair.queue = &queue.state;
    queue.state.room -= options.request_count_max + options.receive_count_max;
    ++queue.user_count;
    ++fabric.nodes[node].queue_pair_count;
    ++users_;
  }
  ~FakeQueuePair() override {
    // Unpolled completions go too: their owner is gone after this.
    const Fabric::Pair& pair = *fabric_.find_pair(number_);
    std::erase_if(queue_.state.arrived, [&](const Completion& each) { return each.queue_pair == number_; });
    queue_.state.room += pair.options.request_count_max + pair.options.receive_count_max;
    --queue_.user_count;
    --fabric_.nodes[pair.node].queue_pair_count;
    --users_;
    fabric_.pairs.erase(number_);
  }

  std::uint32_t number() const override { return number_; }
  State state() const override { return pair().state; }
  std::uint32_t inline_bytes_max() const override { return pair().options.inline_bytes_max; }

  Result<void, Failure> connect(const QueuePairAddress& peer, const Path& path) override {
    const auto checked = check_path(peer, path, fabric_.options.limits);
    if (!checked) return checked;
    if (fabric_.nodes[pair().node].is_gone) return no_device();
    if (pair().state != State::kInit || path.port != 1 || path.gid_index != 0) {
      return Failure(Errc::kBadRequest, "port, gid_index: no such entry, or the queue pair is not in INIT");
    }
    pair().peer = peer;
    pair().path = path;
    pair().state = State::kReady;
    return {};
  }
  Result<void> fail() override {
    fabric_.fail_pair(pair());
    return {};
  }

  Result<void> post(std::span<const Request> batch, std::uint64_t id) override {
    const auto checked = check_batch(batch, id, pair().options.piece_count_max, inline_bytes_max());
    if (!checked) return checked;
    if (pair().state == State::kInit) return Errc::kBadRequest;
    if (!pair().sends.has_room(batch.size())) return Errc::kBusy;
    pair().sends.add(batch.size());
    const bool was_idle = pair().requests.empty();
    for (const Request& request : batch) {
      Fabric::Pair::Sent& sent = pair().requests.emplace_back();
      sent.id = id;
      sent.serial = ++pair().serial_last;
      sent.is_last = &request == &batch.back();
      sent.opcode = request.opcode;
      sent.remote_address = request.remote_address;
      sent.rkey = request.rkey;
      sent.is_inline = request.is_inline;
      for (const Piece& piece : request.pieces) {
        sent.bytes += piece.bytes;
        if (request.is_inline) sent.inlined.insert(sent.inlined.end(), piece.data, piece.data + piece.bytes);
      }
      if (!request.is_inline) sent.pieces.assign(request.pieces.begin(), request.pieces.end());
    }
    // As on a device, posting to a queue pair in ERROR works, and the requests are flushed.
    if (pair().state == State::kError) {
      fabric_.fail_pair(pair());
    } else if (was_idle) {
      fabric_.start(pair());
    }
    return {};
  }

  Result<void> post_receive(std::span<const Piece> pieces, std::uint64_t id) override {
    if (pieces.size() > pair().options.piece_count_max || id >> 62 != 0) return Errc::kBadRequest;
    if (pair().receive_count == pair().options.receive_count_max) return Errc::kBusy;
    ++pair().receive_count;
    pair().receives.push_back({id, {pieces.begin(), pieces.end()}});
    if (pair().state == State::kError) fabric_.fail_pair(pair());
    return {};
  }

 private:
  Fabric::Pair& pair() const { return *fabric_.find_pair(number_); }

  Fabric& fabric_;
  FakeQueue& queue_;
  std::size_t& users_;
  std::uint32_t number_ = 0;
};

class FakeDomain final : public ProtectionDomain {
 public:
  FakeDomain(Fabric& fabric, std::size_t node) : fabric_(fabric), node_(node), domain_(++fabric.domain_last) {}
  ~FakeDomain() override { KV_ASSERT(users_ == 0); }  // a region or a queue pair outlived its domain

  Result<std::unique_ptr<MemoryRegion>, Failure> register_memory(std::span<std::byte> memory, Access access) override {
    return add({.domain = domain_,
                .address = reinterpret_cast<std::uintptr_t>(memory.data()),
                .bytes = memory.size(),
                .memory = memory.data(),
                .access = access},
               {});
  }
  Result<std::unique_ptr<MemoryRegion>, Failure> register_dmabuf(int fd, std::uint64_t offset, std::uint64_t bytes,
                                                                 std::uint64_t address, Access access) override {
    const auto checked = check_access(bytes, fabric_.options.limits.region_bytes_max, access);
    if (!checked) return checked.error();
    if (!fabric_.options.takes_dmabuf) return Failure(Errc::kUnsupported, "not with this device");
    // From the beginning of the file: an offset within a page could not be mapped.
    void* const mapped = ::mmap(nullptr, offset + bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (mapped == MAP_FAILED) return last_errno();
    auto* const first = static_cast<std::byte*>(mapped);
    auto region = add({domain_, address, bytes, first + offset, access}, std::span(first, offset + bytes));
    if (!region) ::munmap(mapped, offset + bytes);
    return region;
  }

  Result<std::unique_ptr<QueuePair>, Failure> create_queue_pair(CompletionQueue& queue,
                                                                const QueuePairOptions& options) override {
    const Fabric::Node& node = fabric_.nodes[node_];
    const DeviceInfo info{.name = node.name, .limits = fabric_.options.limits, .ports = {PortInfo{}}};
    const auto checked = check_options(options, info);
    if (!checked) return checked.error();
    if (node.is_gone) return no_device();
    auto& fake_queue = static_cast<FakeQueue&>(queue);
    if (fake_queue.state.room < options.request_count_max + options.receive_count_max) {
      return Failure(Errc::kTooLarge, "queue: no room for all completions that may be outstanding");
    }
    if (node.queue_pair_count == fabric_.options.limits.queue_pair_count_max) {
      return Failure(Errc::kTooLarge,
                     "queue pairs: the device has " + std::to_string(node.queue_pair_count) + ", no more are allowed");
    }
    return std::unique_ptr<QueuePair>(
        std::make_unique<FakeQueuePair>(fabric_, node_, domain_, users_, fake_queue, options));
  }

 private:
  Result<std::unique_ptr<MemoryRegion>, Failure> add(const Fabric::Registration& registration,
                                                     std::span<std::byte> mapping) {
    const auto checked = check_access(registration.bytes, fabric_.options.limits.region_bytes_max, registration.access);
    if (!checked) return checked.error();
    Fabric::Node& node = fabric_.nodes[node_];
    if (node.is_gone) return no_device();
    if (registration.bytes > node.registered_bytes_max - node.registered_bytes) {
      return Failure(error_code(ENOMEM, boost::system::system_category()),
                     "bytes: " + std::to_string(registration.bytes) + ", the memlock limit leaves " +
                         std::to_string(node.registered_bytes_max - node.registered_bytes));
    }
    return std::unique_ptr<MemoryRegion>(std::make_unique<FakeMemory>(fabric_, node, users_, registration, mapping));
  }

  Fabric& fabric_;
  std::size_t node_;
  std::uint64_t domain_;
  std::size_t users_ = 0;
};

class FakeDevice final : public Device {
 public:
  FakeDevice(Fabric& fabric, std::size_t node) : fabric_(fabric), node_(node) {}

  Result<DeviceInfo> query() const override {
    const Fabric::Node& node = fabric_.nodes[node_];
    if (node.is_gone) return no_device();
    PortInfo port{.is_active = node.is_up, .is_ethernet = true, .mtu_bytes = 4096};
    port.gids.push_back({0, node.gid, GidType::kRoceV2});
    return DeviceInfo{.name = node.name, .numa_node = 0, .limits = fabric_.options.limits, .ports = {port}};
  }
  Result<std::unique_ptr<ProtectionDomain>> create_domain() override {
    if (fabric_.nodes[node_].is_gone) return no_device();
    return std::unique_ptr<ProtectionDomain>(std::make_unique<FakeDomain>(fabric_, node_));
  }
  Result<std::unique_ptr<CompletionQueue>> create_completion_queue(std::uint32_t count) override {
    if (count == 0) return Errc::kBadRequest;
    if (count > fabric_.options.limits.completion_count_max) return Errc::kTooLarge;
    if (fabric_.nodes[node_].is_gone) return no_device();
    return std::unique_ptr<CompletionQueue>(std::make_unique<FakeQueue>(fabric_, node_, count));
  }

 private:
  Fabric& fabric_;
  std::size_t node_;
};

}  // namespace

FakeVerbs::FakeVerbs(Clock& clock, const asio::any_io_executor& executor, const FakeOptions& options)
    : fabric_(std::make_unique<Fabric>(clock, executor, options)) {}
FakeVerbs::~FakeVerbs() = default;

std::vector<std::string> FakeVerbs::device_names() const {
  std::vector<std::string> names;
  for (const Fabric::Node& node : fabric_->nodes) {
    if (!node.is_gone) names.push_back(node.name);
  }
  return names;
}

Result<std::unique_ptr<Device>> FakeVerbs::open(const std::string& name) {
  const std::optional<std::size_t> index = fabric_->index_of(name);
  if (!index || fabric_->nodes[*index].is_gone) return Errc::kBadRequest;
  return std::unique_ptr<Device>(std::make_unique<FakeDevice>(*fabric_, *index));
}

void FakeVerbs::fail_next(const std::string& device, Status status) {
  KV_ASSERT(status != Status::kSuccess);
  fabric_->node(device).failures.push_back(status);
}
void FakeVerbs::set_fault_probability(double probability) { fabric_->options.fault_probability = probability; }
void FakeVerbs::set_link(const std::string& device, bool is_up) { fabric_->node(device).is_up = is_up; }

void FakeVerbs::remove_device(const std::string& device) { fabric_->remove_node(fabric_->index_of(device).value()); }

void FakeVerbs::return_device(const std::string& device) {
  const Fabric::Node& before = fabric_->node(device);
  KV_ASSERT(before.is_gone);
  fabric_->add_node(device, before.gid);
}

void FakeVerbs::set_registered_bytes_max(const std::string& device, std::uint64_t bytes_max) {
  fabric_->node(device).registered_bytes_max = bytes_max;
}

void FakeVerbs::kill(const std::string& device) {
  for (auto& [number, pair] : fabric_->pairs) {
    if (fabric_->nodes[pair.node].name == device) pair.is_dead = true;
  }
}

std::uint64_t FakeVerbs::packet_count() const { return fabric_->packet_count; }
std::uint64_t FakeVerbs::registered_bytes(const std::string& device) const {
  std::uint64_t bytes = 0;
  for (const Fabric::Node& node : fabric_->nodes) {
    if (node.name == device) bytes += node.registered_bytes;
  }
  return bytes;
}

}  // namespace kv::verbs
