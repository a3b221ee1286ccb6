// tests/fakes/sim_network.h: a network inside one process, on virtual time, with faults. Every run of a seed is the
// same.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>

#include "base/clock.h"
#include "tests/fakes/virtual_clock.h"
#include "transport/stream.h"

namespace kv {

/// Faults of a SimNetwork's streams. Probabilities are per write; the defaults are without faults.
struct SimFaults {
  Duration delay_min = 20us, delay_max = 200us;  ///< One way, per chunk; order within a stream is kept.
  std::size_t chunk_bytes_max = 256 * 1024;      ///< A write is taken in chunks of 1..this many bytes.
  std::size_t capacity_bytes = 512 * 1024;       ///< One way, as a socket buffer: a writer waits when it is full.
  double full_probability = 0;                   ///< The write finds no room; the next try does.
  double break_probability = 0;                  ///< The stream breaks, both ways; bytes in flight are lost.
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

  /// The network as seen from host `name`: its connections carry that origin. Lives as long as this.
  Network& from(const std::string& name);

  void set_faults(const SimFaults& faults) { faults_ = faults; }  ///< For existing and later streams.
  /// Breaks every stream to and from the host at once, as kill -9 does. Its listener then refuses connections.
  void kill(const std::string& name);
  void revive(const std::string& name);
  /// Stops traffic to and from the host, as SIGSTOP or a black hole does. thaw() resumes it; all bytes are kept.
  void freeze(const std::string& name);
  void thaw(const std::string& name);
  /// Stops traffic from `from` to `to`, and connections between the two, until mend_all(); all bytes are kept. For
  /// hosts that connect by from().
  void cut(const std::string& from, const std::string& to);
  void mend_all();
  bool is_cut(const std::string& from, const std::string& to) const { return cuts_.contains({from, to}); }
  /// Whether streams pass descriptors, as Unix sockets do and TCP does not. Default: they do.
  void set_passes_descriptors(bool passes) { passes_descriptors_ = passes; }
  /// The protection that streams report. Default: kLocal, since a simulation has no eavesdroppers.
  void set_protection(Stream::Protection protection) { protection_ = protection; }
  void break_one();

  std::size_t stream_count() const;  ///< Open half-streams.

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
  std::set<std::pair<std::string, std::string>> cuts_;  ///< Source, target.
  bool passes_descriptors_ = true;
  Stream::Protection protection_ = Stream::Protection::kLocal;
  std::uint64_t link_count_ = 0;          ///< Ever made.
  std::map<std::uint64_t, Link*> links_;  ///< By number, so that every run visits them in one order.
};

}  // namespace kv
