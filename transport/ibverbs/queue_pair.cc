#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "transport/ibverbs/objects.h"

namespace kv::verbs {
namespace {

constexpr std::uint8_t kNotReadyTimer = 12;  ///< 0.64 ms between tries of a SEND that meets no RECV.
constexpr std::uint8_t kHopLimit = 64;       ///< Routers between the two sides; Linux's default for IP.

ibv_wr_opcode opcode_of(Opcode opcode) {
  switch (opcode) {
    case Opcode::kRead: return IBV_WR_RDMA_READ;
    case Opcode::kSend: return IBV_WR_SEND;
    case Opcode::kWrite: break;
  }
  return IBV_WR_RDMA_WRITE;
}

void append(std::vector<ibv_sge>& to, std::span<const Piece> pieces) {
  for (const Piece& piece : pieces) {
    to.push_back({.addr = reinterpret_cast<std::uintptr_t>(piece.data), .length = piece.bytes, .lkey = piece.lkey});
  }
}

Failure refuse(int error, const std::string& what) { return {system_error(error), what + ": " + std::strerror(error)}; }

}  // namespace

/// Ends in INIT: receives can be posted for the peer's first message, which cannot arrive yet.
Result<std::unique_ptr<QueuePair>, Failure> IbQueuePair::create(ibv_pd& domain, IbCompletionQueue& queue,
                                                                const QueuePairOptions& given,
                                                                const DeviceLimits& limits) {
  QueuePairOptions options = given;
  ibv_qp_init_attr attributes{};
  attributes.send_cq = attributes.recv_cq = &queue.handle();
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap = {.max_send_wr = options.request_count_max,
                    .max_recv_wr = options.receive_count_max,
                    .max_send_sge = options.piece_count_max,
                    .max_recv_sge = options.piece_count_max,
                    .max_inline_data = options.inline_bytes_max};
  IbPair pair(ibv_create_qp(&domain, &attributes));
  if (!pair && options.inline_bytes_max > 0 && (errno == EINVAL || errno == ENOMEM)) {
    options.inline_bytes_max = 0;  // the device does not report its limit: do without
    attributes.cap.max_inline_data = 0;
    pair.reset(ibv_create_qp(&domain, &attributes));
  }
  if (!pair) return refuse(errno, "creating a queue pair");
  options.inline_bytes_max = std::min(options.inline_bytes_max, attributes.cap.max_inline_data);

  ibv_qp_attr attribute{};
  attribute.qp_state = IBV_QPS_INIT;
  attribute.port_num = options.port;
  attribute.qp_access_flags = static_cast<unsigned>((options.remote.remote_write ? IBV_ACCESS_REMOTE_WRITE : 0) |
                                                    (options.remote.remote_read ? IBV_ACCESS_REMOTE_READ : 0));
  if (const int error =
          ibv_modify_qp(pair.get(), &attribute, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
      error != 0) {
    return refuse(error, "queue pair to INIT");
  }
  std::unique_ptr<IbQueuePair> made(new IbQueuePair(std::move(pair), queue, options, limits));
  // Room for every possible completion, both ways: the queue cannot overflow.
  queue.add(*made, options.request_count_max + options.receive_count_max);
  return std::unique_ptr<QueuePair>(std::move(made));
}

IbQueuePair::~IbQueuePair() { queue_.remove(number(), options_.request_count_max + options_.receive_count_max); }

/// From the device, which enters ERROR without notice. A device that does not answer is gone.
QueuePair::State IbQueuePair::state() const {
  ibv_qp_attr attribute{};
  ibv_qp_init_attr unused{};
  if (ibv_query_qp(pair_.get(), &attribute, IBV_QP_STATE, &unused) != 0) return State::kError;
  switch (attribute.qp_state) {
    case IBV_QPS_RESET:
    case IBV_QPS_INIT: return State::kInit;
    case IBV_QPS_RTR:
    case IBV_QPS_RTS: return State::kReady;
    default: return State::kError;
  }
}

/// Slow: the kernel resolves the peer's address on Ethernet, for seconds without an answer.
Result<void, Failure> IbQueuePair::connect(const QueuePairAddress& peer, const Path& path) {
  const auto checked = check_path(peer, path, limits_);
  if (!checked) return checked;
  if (is_connected_) return Failure(Errc::kBadRequest, "the queue pair was connected before; make a new one");
  // Ready to receive needs the peer's values, ready to send those of our own requests.
  ibv_qp_attr attribute{};
  attribute.qp_state = IBV_QPS_RTR;
  attribute.path_mtu = static_cast<ibv_mtu>(std::countr_zero(path.mtu_bytes) - 7);  // IBV_MTU_256 is 1
  attribute.dest_qp_num = peer.number;
  attribute.rq_psn = peer.first_psn;
  attribute.max_dest_rd_atomic = static_cast<std::uint8_t>(std::min(path.read_count, 255u));
  attribute.min_rnr_timer = kNotReadyTimer;
  attribute.ah_attr.port_num = path.port;
  attribute.ah_attr.dlid = peer.lid;
  attribute.ah_attr.is_global = path.is_global;
  if (path.is_global) {
    std::copy(peer.gid.begin(), peer.gid.end(), attribute.ah_attr.grh.dgid.raw);
    attribute.ah_attr.grh.sgid_index = static_cast<std::uint8_t>(path.gid_index);
    attribute.ah_attr.grh.hop_limit = kHopLimit;
    attribute.ah_attr.grh.traffic_class = path.traffic_class;
  }
  if (const int error = ibv_modify_qp(pair_.get(), &attribute,
                                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                          IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
      error != 0) {
    return refuse(error, "queue pair to RTR (is the peer's address reachable?)");
  }
  attribute = {};
  attribute.qp_state = IBV_QPS_RTS;
  attribute.sq_psn = path.first_psn;
  attribute.timeout = path.timeout_exponent;
  attribute.retry_cnt = path.retry_count;
  attribute.rnr_retry = path.not_ready_retry_count;
  attribute.max_rd_atomic = static_cast<std::uint8_t>(std::min(path.read_count, 255u));
  if (const int error = ibv_modify_qp(pair_.get(), &attribute,
                                      IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                                          IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
      error != 0) {
    return refuse(error, "queue pair to RTS");
  }
  is_connected_ = true;  // even after a concurrent fail(): posting then works, and is flushed
  return {};
}

/// Flushes outstanding requests, and the device leaves their memory alone: the only way to stop a transfer early.
Result<void> IbQueuePair::fail() {
  ibv_qp_attr attribute{};
  attribute.qp_state = IBV_QPS_ERR;
  if (const int error = ibv_modify_qp(pair_.get(), &attribute, IBV_QP_STATE); error != 0) return system_error(error);
  return {};
}

Result<void> IbQueuePair::post(std::span<const Request> batch, std::uint64_t id) {
  const auto checked = check_batch(batch, id, options_.piece_count_max, options_.inline_bytes_max);
  if (!checked) return checked;
  if (!is_connected_) return Errc::kBadRequest;
  if (!sends_.has_room(batch.size())) return Errc::kBusy;
  // All pieces first: the work requests point into the vector. The last request's completion implies all others.
  pieces_.clear();
  requests_.assign(batch.size(), {});
  for (const Request& request : batch) append(pieces_, request.pieces);
  ibv_sge* pieces = pieces_.data();
  for (std::size_t i = 0; i < batch.size(); ++i) {
    const Request& request = batch[i];
    const bool is_last = i + 1 == batch.size();
    ibv_send_wr& work = requests_[i];
    work.wr_id = pack_id(id, false, is_last);
    work.next = is_last ? nullptr : &requests_[i + 1];
    work.sg_list = pieces;
    work.num_sge = static_cast<int>(request.pieces.size());
    work.opcode = opcode_of(request.opcode);
    if (is_last) work.send_flags |= IBV_SEND_SIGNALED;
    if (request.is_inline) work.send_flags |= IBV_SEND_INLINE;
    work.wr.rdma = {.remote_addr = request.remote_address, .rkey = request.rkey};
    pieces += request.pieces.size();
  }
  KV_ASSERT(pieces == pieces_.data() + pieces_.size());
  ibv_send_wr* refused = nullptr;
  const int error = ibv_post_send(pair_.get(), requests_.data(), &refused);
  if (error != 0) {
    if (refused == requests_.data()) return system_error(error);
    // Part of the batch is in flight and has to end as a failed batch, but the request that would report it was
    // refused: post an empty one in its place. A device that refuses even that is gone, and will report nothing.
    [[maybe_unused]] const auto failed = fail();
    ibv_send_wr last{};
    last.wr_id = pack_id(id, false, true);
    last.opcode = IBV_WR_RDMA_WRITE;
    last.send_flags = IBV_SEND_SIGNALED;
    [[maybe_unused]] const int told = ibv_post_send(pair_.get(), &last, &refused);
  }
  sends_.add(batch.size());
  return {};
}

/// Allowed before connect(), unlike post(): the peer's first message must find a receive.
Result<void> IbQueuePair::post_receive(std::span<const Piece> pieces, std::uint64_t id) {
  if (pieces.size() > options_.piece_count_max || id >> 62 != 0) return Errc::kBadRequest;
  if (receive_count_ == options_.receive_count_max) return Errc::kBusy;
  pieces_.clear();
  append(pieces_, pieces);
  ibv_recv_wr work{};
  work.wr_id = pack_id(id, true, true);
  work.sg_list = pieces_.data();
  work.num_sge = static_cast<int>(pieces_.size());
  ibv_recv_wr* refused = nullptr;
  if (const int error = ibv_post_recv(pair_.get(), &work, &refused); error != 0) return system_error(error);
  ++receive_count_;
  return {};
}

/// A place is freed when its completion has been polled, not when it arrives: until then it occupies the queue.
void IbQueuePair::took(const Completion& completion) {
  // A device that completes more than was posted is failing. The poster detects that by the id; here it is ignored.
  if (completion.is_receive) {
    if (receive_count_ > 0) --receive_count_;
  } else if (completion.is_last && !sends_.is_empty()) {
    sends_.end_first();
  }
}

}  // namespace kv::verbs
