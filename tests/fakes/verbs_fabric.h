// tests/fakes/verbs_fabric.h: the network behind FakeVerbs: queue pairs, registrations, packets. Private to it.
//
//   post -> send (gather one packet) -> arrive (the peer checks, moves bytes) -> answered -> ... -> completion
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/fakes/verbs_fake.h"
#include "transport/stream.h"

namespace kv::verbs {

class FakeVerbs::Fabric {
 public:
  struct Node {  ///< A device, until it is removed. A returned device is another Node.
    std::string name;
    Gid gid{};
    bool is_up = true, is_gone = false;
    std::uint64_t registered_bytes = 0, registered_bytes_max = 0;
    std::uint32_t queue_pair_count = 0;
    std::deque<Status> failures;  ///< To inject.
  };
  struct Registration {
    std::uint64_t domain = 0, address = 0, bytes = 0;  ///< `address` is the peer's address of the first byte.
    std::byte* memory = nullptr;
    Access access;
  };
  struct Queue {
    std::deque<Completion> arrived;
    std::size_t node = 0;
    bool is_armed = false, is_gone = false;
    Descriptor event;
    std::uint32_t room = 0;  ///< Room for completions beyond its queue pairs' possible ones.
  };
  struct Pair {
    explicit Pair(const QueuePairOptions& given) : options(given), sends(given.request_count_max) {}

    struct Sent {
      std::uint64_t id = 0, serial = 0;
      bool is_last = false;
      Opcode opcode{};
      std::vector<Piece> pieces;
      std::vector<std::byte> inlined;
      bool is_inline = false;
      std::uint64_t remote_address = 0, bytes = 0, done = 0;
      std::uint32_t rkey = 0;
      int tries = 0, not_ready_tries = 0;
    };
    struct Receive {
      std::uint64_t id = 0;
      std::vector<Piece> pieces;
      std::uint64_t done = 0;
    };
    QueuePairOptions options;
    std::uint32_t number = 0;
    std::size_t node = 0;
    std::uint64_t domain = 0;
    Queue* queue = nullptr;
    QueuePair::State state = QueuePair::State::kInit;
    bool is_dead = false;  ///< Its process was killed, or its device is gone: it neither answers nor reports.
    QueuePairAddress peer;
    Path path;
    Outstanding sends;
    std::uint32_t receive_count = 0;
    std::deque<Sent> requests;
    std::deque<Receive> receives;
    std::optional<Sent> flushing;  ///< The request in progress when the queue pair failed: its answer may still land.
    TimePoint flushed{};           ///< The time of the flush report, which ends `flushing`.
    std::uint64_t serial_last = 0;
    std::pair<std::uint64_t, std::uint64_t> taken{0, 0};  ///< As the peer: the last packet's end().
    TimePoint completes{};                                ///< Arrival of the last completion so far.
  };

  Fabric(Clock& clock, const asio::any_io_executor& executor, const FakeOptions& options);
  ~Fabric();

  std::optional<std::size_t> index_of(const std::string& name) const;  ///< Of the latest with that name.
  Node& node(const std::string& name) { return nodes[index_of(name).value()]; }
  std::size_t add_node(std::string name, const Gid& gid);
  void remove_node(std::size_t node);
  std::uint32_t next_key();
  Pair* find_pair(std::uint32_t number);
  void start(Pair& pair);      ///< Starts the first request, if there is one.
  void fail_pair(Pair& pair);  ///< To ERROR; flushes.
  void complete(const Pair& pair, Completion completion);

  FakeOptions options;
  std::deque<Node> nodes;  ///< References stay valid.
  std::set<Queue*> queues;
  std::map<std::uint32_t, Registration> by_lkey, by_rkey;
  std::map<std::uint32_t, Pair> pairs;
  std::uint64_t domain_last = 0;
  std::uint32_t number_last = 0;
  std::uint64_t packet_count = 0;

 private:
  /// A packet. Holds all data that the peer needs, so it outlives its queue pair.
  struct Packet {
    std::uint32_t source = 0, target = 0, first_psn = 0, rkey = 0;
    Gid source_gid{}, target_gid{};
    std::uint64_t serial = 0, remote_address = 0, total = 0, offset = 0, bytes = 0;
    Opcode opcode{};
    std::vector<std::byte> payload;
    /// The peer's progress after this packet. Bytes plus one, so that an empty request counts too.
    std::pair<std::uint64_t, std::uint64_t> end() const { return {serial, offset + bytes + 1}; }
  };

  void after(Duration delay, std::function<void()> call);
  void at(TimePoint when, std::function<void()> call);
  void run_due();
  Duration random_delay();
  bool chance(double probability);

  Pair::Sent* current(std::uint32_t number, std::uint64_t serial);
  void send(std::uint32_t number, std::uint64_t serial);
  void arrive(const Packet& packet);
  Status carry_out(Pair& target, const Packet& packet, std::vector<std::byte>* answer);
  Status take_message(Pair& target, const Packet& packet);
  void answered(const Packet& packet, Status status, const std::vector<std::byte>& answer);
  void land_late(const Packet& packet, const std::vector<std::byte>& answer);
  void retry(const Packet& packet);
  void retry_not_ready(const Packet& packet);
  void finish(Pair& pair, Status status);
  bool may_touch(const Pair& pair, const std::vector<Piece>& pieces, bool is_write) const;
  const Registration* find_remote(const Pair& target, const Packet& packet, bool is_write) const;

  Clock& clock_;
  std::unique_ptr<Alarm> alarm_;
  std::map<std::pair<TimePoint, std::uint64_t>, std::function<void()>> events_;
  std::uint64_t event_last_ = 0;
  std::uint32_t key_last_ = 0;
  bool is_running_ = false;
  std::mt19937_64 random_;
};

}  // namespace kv::verbs
