#include "tests/fakes/verbs_fabric.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"

namespace kv::verbs {
namespace {

constexpr Duration kNotReadyDelay = 1ms;  ///< Until a SEND that met no RECV is tried again.

Duration timeout_of(const Path& path) { return std::chrono::nanoseconds(4096) * (1ull << path.timeout_exponent); }

/// Copies `bytes` bytes from `offset` on between pieces, which must hold them, and flat memory.
template <bool kGather>
void copy_pieces(const std::vector<Piece>& pieces, std::uint64_t offset, std::byte* flat, std::uint64_t bytes) {
  for (const Piece& piece : pieces) {
    if (offset >= piece.bytes) {
      offset -= piece.bytes;
      continue;
    }
    const std::uint64_t count = std::min<std::uint64_t>(bytes, piece.bytes - offset);
    if (count == 0) return;
    if constexpr (kGather) {
      std::memcpy(flat, piece.data + offset, count);
    } else {
      std::memcpy(piece.data + offset, flat, count);
    }
    flat += count;
    bytes -= count;
    offset = 0;
  }
  KV_ASSERT(bytes == 0);
}

std::uint64_t total_bytes(const std::vector<Piece>& pieces) {
  std::uint64_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

bool lies_in(const FakeVerbs::Fabric::Registration& memory, std::uint64_t address, std::uint64_t bytes) {
  return address >= memory.address && bytes <= memory.bytes && address - memory.address <= memory.bytes - bytes;
}

/// Errors that the peer's device reports: its own queue pair is then in ERROR too.
bool concerns_peer(Status status) {
  return status == Status::kRemoteAccess || status == Status::kRemoteRequest || status == Status::kRemoteOperation;
}

}  // namespace

FakeVerbs::Fabric::Fabric(Clock& clock, const asio::any_io_executor& executor, const FakeOptions& given)
    : options(given), clock_(clock), alarm_(clock.make_alarm(executor)), random_(given.seed) {
  KV_ASSERT(options.delay_min <= options.delay_max && options.packet_bytes_max > 0);
  for (std::uint32_t i = 0; i < options.device_count; ++i) {
    // ::ffff:10.77.0.(i + 1)
    add_node("fake" + std::to_string(i),
             {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 10, 77, 0, static_cast<std::uint8_t>(i + 1)});
  }
}
FakeVerbs::Fabric::~Fabric() {
  KV_ASSERT(pairs.empty() && by_lkey.empty());  // a handle outlived its provider
}

/// From the back: a returned device is behind its former self.
std::optional<std::size_t> FakeVerbs::Fabric::index_of(const std::string& name) const {
  for (std::size_t i = nodes.size(); i-- > 0;) {
    if (nodes[i].name == name) return i;
  }
  return std::nullopt;
}

std::size_t FakeVerbs::Fabric::add_node(std::string name, const Gid& gid) {
  Node& node = nodes.emplace_back();
  node.name = std::move(name);
  node.gid = gid;
  node.registered_bytes_max = options.registered_bytes_max;
  return nodes.size() - 1;
}

/// As when a card is pulled out: its queue pairs stop without a completion; only the queues' descriptors report it.
void FakeVerbs::Fabric::remove_node(std::size_t index) {
  nodes[index].is_gone = true;
  nodes[index].is_up = false;
  for (auto& [number, pair] : pairs) {
    if (pair.node == index) pair.is_dead = true;
  }
  // The process notices a little later, as from a driver: by a descriptor that becomes readable.
  after(random_delay(), [this, index] {
    for (Queue* const queue : queues) {
      if (queue->node != index) continue;
      queue->is_gone = true;
      const std::uint64_t one = 1;
      KV_ASSERT(::write(queue->event.get(), &one, sizeof one) == sizeof one);
    }
  });
}

/// Gives every key once, in an order that looks random: each step is a bijection of 32 bits. So a stale key never
/// matches another registration, and its use is detected.
std::uint32_t FakeVerbs::Fabric::next_key() {
  std::uint32_t key = ++key_last_ ^ static_cast<std::uint32_t>(options.seed);
  key *= 0x9E3779B1;
  key ^= key >> 15;
  key *= 0x85EBCA77;
  key ^= key >> 13;
  return key;
}

FakeVerbs::Fabric::Pair* FakeVerbs::Fabric::find_pair(std::uint32_t number) {
  const auto found = pairs.find(number);
  return found == pairs.end() ? nullptr : &found->second;
}

void FakeVerbs::Fabric::start(Pair& pair) {
  if (pair.requests.empty() || pair.state != QueuePair::State::kReady) return;
  after(random_delay(), [this, number = pair.number, serial = pair.requests.front().serial] { send(number, serial); });
}

/// The request that an event concerns, if it is still in progress: events may outlive their request.
FakeVerbs::Fabric::Pair::Sent* FakeVerbs::Fabric::current(std::uint32_t number, std::uint64_t serial) {
  Pair* const pair = find_pair(number);
  if (!pair || pair->state != QueuePair::State::kReady || pair->is_dead) return nullptr;
  if (pair->requests.empty() || pair->requests.front().serial != serial) return nullptr;
  return &pair->requests.front();
}

/// Sends the next packet of the request, or the last one again.
void FakeVerbs::Fabric::send(std::uint32_t number, std::uint64_t serial) {
  Pair::Sent* const request = current(number, serial);
  if (!request) return;
  Pair& pair = *find_pair(number);
  Node& node = nodes[pair.node];
  Status injected = Status::kSuccess;
  if (!node.failures.empty()) {
    injected = node.failures.front();
    node.failures.pop_front();
  } else if (chance(options.fault_probability)) {
    injected = static_cast<Status>(std::uniform_int_distribution<int>(1, kStatusCount - 1)(random_));
  }
  if (injected != Status::kSuccess) {
    if (Pair* const peer = find_pair(pair.peer.number); peer && concerns_peer(injected)) fail_pair(*peer);
    return finish(pair, injected);
  }
  if (!request->is_inline && !may_touch(pair, request->pieces, request->opcode == Opcode::kRead)) {
    return finish(pair, Status::kLocalProtection);
  }
  Packet packet{.source = number,
                .target = pair.peer.number,
                .first_psn = pair.path.first_psn,
                .rkey = request->rkey,
                .source_gid = node.gid,
                .target_gid = pair.peer.gid,
                .serial = serial,
                .remote_address = request->remote_address,
                .total = request->bytes,
                .offset = request->done,
                .opcode = request->opcode};
  // A random length, so that callers cannot rely on where a device cuts.
  if (const std::uint64_t left = request->bytes - request->done; left > 0) {
    packet.bytes = std::uniform_int_distribution<std::uint64_t>(
        1, std::min<std::uint64_t>(left, options.packet_bytes_max))(random_);
  }
  if (request->opcode != Opcode::kRead) {
    packet.payload.resize(packet.bytes);
    if (request->is_inline) {
      std::copy_n(request->inlined.begin() + static_cast<std::ptrdiff_t>(packet.offset), packet.bytes,
                  packet.payload.begin());
    } else {
      copy_pieces<true>(request->pieces, packet.offset, packet.payload.data(), packet.bytes);
    }
  }
  // Link down: the packet is lost, which shows by the missing answer.
  if (!node.is_up) return after(timeout_of(pair.path), [this, lost = std::move(packet)] { retry(lost); });
  after(random_delay(), [this, sent = std::move(packet)] { arrive(sent); });
}

void FakeVerbs::Fabric::arrive(const Packet& packet) {
  Pair* const target = find_pair(packet.target);
  // As a device, drops packets from any but the connected queue pair, without an answer.
  const bool is_taken = target && !target->is_dead && target->state == QueuePair::State::kReady &&
                        nodes[target->node].is_up && nodes[target->node].gid == packet.target_gid &&
                        target->peer.number == packet.source && target->peer.gid == packet.source_gid &&
                        target->peer.first_psn == packet.first_psn;
  if (!is_taken) {
    const Pair* const source = find_pair(packet.source);
    if (source) after(timeout_of(source->path), [this, packet] { retry(packet); });
    return;
  }
  ++packet_count;
  // No RECV is posted. A repeated SEND needs none: the first one consumed its RECV.
  if (packet.opcode == Opcode::kSend && target->receives.empty() && target->taken < packet.end()) {
    return after(kNotReadyDelay, [this, packet] { retry_not_ready(packet); });
  }
  std::vector<std::byte> answer;
  const Status status = carry_out(*target, packet, &answer);
  after(random_delay(), [this, packet, status, bytes = std::move(answer)] { answered(packet, status, bytes); });
}

Status FakeVerbs::Fabric::carry_out(Pair& target, const Packet& packet, std::vector<std::byte>* answer) {
  KV_ASSERT(packet.offset + packet.bytes <= packet.total);
  // A WRITE or SEND that was carried out, but whose answer got lost, is answered again and not repeated.
  const bool is_repeated = target.taken >= packet.end();
  if (packet.opcode == Opcode::kRead) {
    const Registration* const memory = packet.total == 0 ? nullptr : find_remote(target, packet, false);
    if (!memory && packet.total > 0) {
      fail_pair(target);
      return Status::kRemoteAccess;
    }
    if (memory) {
      const std::byte* const from = memory->memory + (packet.remote_address - memory->address) + packet.offset;
      answer->assign(from, from + packet.bytes);
    }
  } else if (is_repeated) {
    return Status::kSuccess;
  } else if (packet.opcode == Opcode::kWrite) {
    const Registration* const memory = packet.total == 0 ? nullptr : find_remote(target, packet, true);
    if (!memory && packet.total > 0) {
      fail_pair(target);
      return Status::kRemoteAccess;
    }
    if (memory && packet.bytes > 0) {
      std::memcpy(memory->memory + (packet.remote_address - memory->address) + packet.offset, packet.payload.data(),
                  packet.bytes);
    }
  } else if (const Status status = take_message(target, packet); status != Status::kSuccess) {
    return status;
  }
  target.taken = std::max(target.taken, packet.end());
  return Status::kSuccess;
}

Status FakeVerbs::Fabric::take_message(Pair& target, const Packet& packet) {
  KV_ASSERT(!target.receives.empty());  // arrive() has checked
  Pair::Receive& receive = target.receives.front();
  Status status = Status::kSuccess;
  if (packet.total > total_bytes(receive.pieces)) status = Status::kLocalLength;
  if (status == Status::kSuccess && !may_touch(target, receive.pieces, true)) status = Status::kLocalProtection;
  if (status == Status::kSuccess) {
    copy_pieces<false>(receive.pieces, packet.offset, const_cast<std::byte*>(packet.payload.data()), packet.bytes);
    if (packet.offset + packet.bytes < packet.total) return Status::kSuccess;
  }
  const std::uint64_t id = receive.id;
  target.receives.pop_front();
  complete(target, {.id = id,
                    .status = status,
                    .is_receive = true,
                    .bytes = status == Status::kSuccess ? static_cast<std::uint32_t>(packet.total) : 0});
  if (status == Status::kSuccess) return status;
  fail_pair(target);
  return status == Status::kLocalLength ? Status::kRemoteRequest : Status::kRemoteOperation;
}

void FakeVerbs::Fabric::answered(const Packet& packet, Status status, const std::vector<std::byte>& answer) {
  Pair::Sent* const request = current(packet.source, packet.serial);
  if (!request) return land_late(packet, answer);
  if (request->done != packet.offset) return;  // an answer to a packet that was sent twice
  Pair& pair = *find_pair(packet.source);
  if (!nodes[pair.node].is_up) return after(timeout_of(pair.path), [this, packet] { retry(packet); });
  if (status != Status::kSuccess) return finish(pair, status);
  if (packet.opcode == Opcode::kRead && packet.bytes > 0) {
    if (!may_touch(pair, request->pieces, true)) return finish(pair, Status::kLocalProtection);
    copy_pieces<false>(request->pieces, packet.offset, const_cast<std::byte*>(answer.data()), packet.bytes);
  }
  request->done += packet.bytes;
  request->tries = request->not_ready_tries = 0;
  if (request->done == request->bytes) return finish(pair, Status::kSuccess);
  send(packet.source, packet.serial);
}

/// Between ERROR and the flush a READ's bytes may still land: tests see memory that was freed too early.
void FakeVerbs::Fabric::land_late(const Packet& packet, const std::vector<std::byte>& answer) {
  const Pair* const pair = find_pair(packet.source);
  if (!pair || pair->is_dead || !pair->flushing || pair->flushing->serial != packet.serial) return;
  if (clock_.now() >= pair->flushed || pair->flushing->done != packet.offset || answer.empty()) return;
  if (!nodes[pair->node].is_up || !may_touch(*pair, pair->flushing->pieces, true)) return;
  copy_pieces<false>(pair->flushing->pieces, packet.offset, const_cast<std::byte*>(answer.data()), packet.bytes);
}

/// Lost packets and lost answers look alike, so the request is sent again; carry_out() detects repetition.
void FakeVerbs::Fabric::retry(const Packet& packet) {
  Pair::Sent* const request = current(packet.source, packet.serial);
  if (!request || request->done != packet.offset) return;
  Pair& pair = *find_pair(packet.source);
  if (++request->tries > pair.path.retry_count) return finish(pair, Status::kRetryExceeded);
  send(packet.source, packet.serial);
}

void FakeVerbs::Fabric::retry_not_ready(const Packet& packet) {
  Pair::Sent* const request = current(packet.source, packet.serial);
  if (!request || request->done != packet.offset) return;
  Pair& pair = *find_pair(packet.source);
  if (++request->not_ready_tries > pair.path.not_ready_retry_count) return finish(pair, Status::kNotReadyExceeded);
  send(packet.source, packet.serial);
}

/// Ends the first request, and on an error the whole queue pair.
void FakeVerbs::Fabric::finish(Pair& pair, Status status) {
  KV_ASSERT(!pair.requests.empty());
  const Pair::Sent& request = pair.requests.front();
  if (status != Status::kSuccess || request.is_last) {
    complete(pair, {.id = request.id, .status = status, .is_last = request.is_last});
  }
  pair.requests.pop_front();
  if (status == Status::kSuccess) return start(pair);
  fail_pair(pair);
}

/// Flushes sends first, then receives; each in posting order. A second call flushes later requests.
void FakeVerbs::Fabric::fail_pair(Pair& pair) {
  const bool is_first = std::exchange(pair.state, QueuePair::State::kError) != QueuePair::State::kError;
  for (const Pair::Sent& request : pair.requests) {
    complete(pair, {.id = request.id, .status = Status::kFlushed, .is_last = request.is_last});
    if (!is_first || pair.flushing) continue;
    pair.flushing = request;
    pair.flushed = pair.completes;
  }
  for (const Pair::Receive& receive : pair.receives) {
    complete(pair, {.id = receive.id, .status = Status::kFlushed, .is_receive = true});
  }
  pair.requests.clear();
  pair.receives.clear();
}

void FakeVerbs::Fabric::complete(const Pair& given, Completion completion) {
  Pair& pair = *find_pair(given.number);
  completion.queue_pair = pair.number;
  // Late by chance, but never before an earlier completion of the same queue pair.
  pair.completes = std::max(pair.completes, clock_.now() + random_delay());
  at(pair.completes, [this, completion] {
    Pair* const owner = find_pair(completion.queue_pair);
    if (!owner || owner->is_dead) return;
    Queue& queue = *owner->queue;
    queue.arrived.push_back(completion);
    if (!std::exchange(queue.is_armed, false)) return;
    const std::uint64_t one = 1;
    KV_ASSERT(::write(queue.event.get(), &one, sizeof one) == sizeof one);
  });
}

/// A device's checks of each piece of local memory: the key, the domain, the access and the bounds.
bool FakeVerbs::Fabric::may_touch(const Pair& pair, const std::vector<Piece>& pieces, bool is_write) const {
  return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    if (piece.bytes == 0) return true;
    const auto found = by_lkey.find(piece.lkey);
    if (found == by_lkey.end() || found->second.domain != pair.domain) return false;
    const Registration& memory = found->second;
    if (is_write && !memory.access.local_write) return false;
    const auto address = reinterpret_cast<std::uintptr_t>(piece.data);
    const auto first = reinterpret_cast<std::uintptr_t>(memory.memory);
    return address >= first && piece.bytes <= memory.bytes && address - first <= memory.bytes - piece.bytes;
  });
}

const FakeVerbs::Fabric::Registration* FakeVerbs::Fabric::find_remote(const Pair& target, const Packet& packet,
                                                                      bool is_write) const {
  const auto found = by_rkey.find(packet.rkey);
  if (found == by_rkey.end()) return nullptr;
  const Registration& memory = found->second;
  if (memory.domain != target.domain) return nullptr;
  const Access& through = target.options.remote;
  if (is_write ? !(memory.access.remote_write && through.remote_write)
               : !(memory.access.remote_read && through.remote_read)) {
    return nullptr;
  }
  return lies_in(memory, packet.remote_address, packet.total) ? &memory : nullptr;
}

void FakeVerbs::Fabric::after(Duration delay, std::function<void()> call) { at(clock_.now() + delay, std::move(call)); }

void FakeVerbs::Fabric::at(TimePoint when, std::function<void()> call) {
  const auto added = events_.emplace(std::pair(when, ++event_last_), std::move(call)).first;
  if (!is_running_ && added == events_.begin()) alarm_->arm(when, [this] { run_due(); });
}

/// Events may add events, also for now: the alarm is armed once, after all due ones have run.
void FakeVerbs::Fabric::run_due() {
  is_running_ = true;
  while (!events_.empty() && events_.begin()->first.first <= clock_.now()) {
    const std::function<void()> call = std::move(events_.begin()->second);
    events_.erase(events_.begin());
    call();
  }
  is_running_ = false;
  if (!events_.empty()) alarm_->arm(events_.begin()->first.first, [this] { run_due(); });
}

Duration FakeVerbs::Fabric::random_delay() {
  return Duration(
      std::uniform_int_distribution<Duration::rep>(options.delay_min.count(), options.delay_max.count())(random_));
}

bool FakeVerbs::Fabric::chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random_) < probability;
}

}  // namespace kv::verbs
