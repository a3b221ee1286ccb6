// transport/sim_network.h: a network inside one process, on virtual time, with faults. Every run of a seed is the same.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "transport/stream.h"

namespace kv {

/// What may happen to the streams of a SimNetwork. Probabilities are per write; all default to a good day.
struct SimFaults {
  Duration delay_min = 20us, delay_max = 200us;  ///< One way, per chunk; order within a stream is kept.
  std::size_t chunk_bytes_max = 256 * 1024;      ///< A write is taken in chunks of 1..this many bytes.
  std::size_t capacity_bytes = 512 * 1024;       ///< One way, as a socket buffer: a writer waits when it is full.
  double full_probability = 0;                   ///< There is no room, and at the next try there is: a peer that reads.
  double break_probability = 0;                  ///< The stream breaks, both ways; what is in flight is lost.
  double flip_probability = 0;                   ///< One bit of the chunk is flipped.
  double stall_probability = 0;                  ///< The chunk, and so all after it, is late by up to stall_max.
  Duration stall_max = 2s;
};

/// Endpoints are sim://NAME. NAME also identifies the listening host for kill() and freeze().
/// Thread safety: none; one thread, one io_context. Outlives its streams and listeners.
class SimNetwork final : public Network {
 public:
  SimNetwork(VirtualClock& clock, std::uint64_t seed);
  ~SimNetwork() override;

  Result<std::unique_ptr<Listener>> listen(const Endpoint& endpoint, asio::any_io_executor executor) override;
  Async<std::unique_ptr<Stream>> connect(Endpoint endpoint, asio::any_io_executor executor) override;

  /// The network as one host has it: what it connects to knows where it comes from. Lives as long as this.
  Network& from(const std::string& name);

  void set_faults(const SimFaults& faults) { faults_ = faults; }  ///< Of streams from now on and of those that exist.
  /// Breaks every stream of the host at once, to it and from it, as kill -9 does. The listener stays until its owner
  /// closes it, and refuses connections.
  void kill(const std::string& name);
  void revive(const std::string& name);
  /// Nothing arrives at the host or leaves any more, as with SIGSTOP or a black hole. thaw() ends that; nothing is
  /// lost.
  void freeze(const std::string& name);
  void thaw(const std::string& name);
  /// Nothing that `from` sends reaches `to` any more, and no connection between the two is made. Of hosts that connect
  /// by from(). mend_all() ends it; nothing is lost.
  void cut(const std::string& from, const std::string& to);
  void mend_all();
  bool is_cut(const std::string& from, const std::string& to) const { return cuts_.contains({from, to}); }
  /// Whether streams pass descriptors, as Unix sockets do and TCP does not. At first they do.
  void set_passes_descriptors(bool passes) { passes_descriptors_ = passes; }
  /// What streams say that they are. At first kLocal: nobody listens to a simulation.
  void set_protection(Stream::Protection protection) { protection_ = protection; }
  /// Breaks one random stream, if there is any.
  void break_one();

  std::size_t stream_count() const;  ///< Half-streams that are open.

 private:
  struct Pipe;
  struct Link;
  class SimStream;
  class SimListener;
  class Host;

  Async<std::unique_ptr<Stream>> connect_from(std::string from, Endpoint endpoint, asio::any_io_executor executor);
  bool is_unreachable(const std::string& from, const std::string& to) const;
  void reschedule_all();
  Duration random_delay();
  bool chance(double probability);

  VirtualClock& clock_;
  std::mt19937_64 random_;
  SimFaults faults_;
  std::map<std::string, SimListener*> listeners_;
  std::map<std::string, std::unique_ptr<Host>> hosts_;
  std::set<std::string> killed_, frozen_;
  std::set<std::pair<std::string, std::string>> cuts_;  ///< From, to.
  bool passes_descriptors_ = true;
  Stream::Protection protection_ = Stream::Protection::kLocal;
  std::uint64_t link_count_ = 0;          ///< Ever made.
  std::map<std::uint64_t, Link*> links_;  ///< By number, so that every run visits them in one order.
};

}  // namespace kv
