// gpu/device/cuda_module.h: permute() on an NVIDIA device, from a module that is loaded on first use. A process without
// CUDA, or without a device, gets an error here and uses the host's version. The folder's files, in reading order; the
// first four are compiled by nvcc for kernels and by the host's compiler for tests:
//
//   device_plan.h       a PermutePlan in a kernel's form
//   device_values.h     numbers of a row, as one thread loads, converts and stores them
//   device_body.h       the work of one thread of a kernel
//   device_checksum.h   checksums of blocks, shared by the threads of one stripe
//   cuda_functions.h    the module's functions, found by name
//   cuda_module.h       the module and its devices
//   cuda_staging.h      staging's lines and marks as streams and events
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "gpu/compress.h"
#include "gpu/permute.h"

namespace kv {

struct VerifiedBlocks;

/// libkvstore_cuda.so, held open. Thread safety: calls may come from any thread.
class CudaModule {
 public:
  /// Loads the file named by KV_CUDA_MODULE in the environment, else libkvstore_cuda.so as the loader finds it. Errors:
  /// kUnavailable: no such module, another version's, or no device; the text says which.
  static Result<std::shared_ptr<const CudaModule>, Failure> load();
  ~CudaModule();
  int device_count() const;  ///< At least 1.
  /// PCI address, such as "0000:3B:00.0"; -1: the thread's device. Errors: kUnsupported if unknown, CUDA's own.
  Result<std::string> pci_address(int device) const;
  /// Loads all kernels on the thread's device now: otherwise each one's first call takes milliseconds longer.
  Result<void> warm_up() const;

  /// permute() enqueued on `stream` (a cudaStream_t), one launch per kind of body, each of at most `block_count_max`
  /// blocks, over all components and layers. The memory behind the layouts, the rows' ids, frequencies and deltas is
  /// device memory or page-locked, and stays until the stream has passed. All belong to the pages' device, which need
  /// not be the thread's; so does the stream (null: its default one). Neither allocates on the device nor waits. A slot
  /// beyond the cache is skipped. Errors: kMismatch as in permute(); CUDA's own, if the launch failed.
  Result<void> permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                       std::int64_t row_count, const Operation& operation, void* stream,
                       int block_count_max = kBlockCountMax) const;
  static constexpr int kBlockCountMax = 1 << 16;

  /// scatter_kept() enqueued on `stream`. `rows` as in permute(); skips rows out of range. Errors: also CUDA's.
  Result<void> scatter_kept(const BoundLayout& cache, std::span<const KeepRow> rows, const BoundLayout& source,
                            void* stream, int block_count_max = kBlockCountMax) const;

  /// Enqueued on `stream`: verifies the first verified.block_count blocks and scatters the sound ones, rows [i *
  /// block_tokens, (i + 1) * block_tokens) for block i. verdicts[i] is 0 for a sound block, else 1; unlike on the host,
  /// sound blocks behind a bad one are scattered. Arrays are device memory, or page-locked. Errors: as permute(),
  /// kMismatch if `blocks` are not the store's, kBadRequest for too many blocks and rows that straddle a block.
  Result<void> scatter_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                const VerifiedBlocks& verified, const Operation& operation, void* stream,
                                int block_count_max = kBlockCountMax) const;
  /// Enqueued on `stream`: gathers as many blocks and writes their checksums to verified.sums.
  Result<void> gather_with_checksums(const BoundLayout& blocks, const BoundLayout& cache, const Rows& rows,
                                     const VerifiedBlocks& verified, const Operation& operation, void* stream,
                                     int block_count_max = kBlockCountMax) const;

  /// Copies from[i] to to[i], bytes[i] each, enqueued on `stream`, in one driver call where it can. The arrays are read
  /// before the call returns. Host memory that is not page-locked makes the call wait.
  Result<void> copy_batch(std::span<void* const> to, std::span<const void* const> from,
                          std::span<const std::size_t> bytes, void* stream) const;

  enum class MemoryKind : std::uint8_t { kHost, kPageLocked, kDevice };
  struct MemoryPlace {
    MemoryKind kind = MemoryKind::kHost;
    int device = -1;  ///< Of kDevice.
  };
  /// Asks the driver: about a microsecond. Memory unknown to CUDA is the host's.
  MemoryPlace place_of(const void* memory) const;

  /// Makes a device current in its scope, then restores the previous one: the thread is the engine's.
  class DeviceScope {
   public:
    DeviceScope(const CudaModule& module, int device);
    ~DeviceScope();
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

    Result<void> status;  ///< On an error, the device must not be used.

   private:
    const CudaModule& module_;
    int before_ = -1;
  };

  void* allocate(std::size_t bytes) const;  ///< Device memory, or null. The caller frees it.
  void free(void* memory) const;
  Result<void> copy(void* to, const void* from, std::size_t bytes) const;  ///< Between any two memories; waits.
  /// Page-locks the caller's memory, such as a client's region, and lets kernels reach it, until it is unlocked. Unlock
  /// it before it is freed or lent memory ends. Takes as long as touching each page.
  Result<void> lock_pages(std::span<std::byte> memory) const;
  Result<void> unlock_pages(std::byte* memory) const;
  struct Dmabuf {
    int fd = -1;               ///< The caller closes it.
    std::uint64_t offset = 0;  ///< Of the memory in the dma-buf.
  };
  /// Device memory in the form that RDMA devices register (client.h's DeviceMemory). It stays allocated until the
  /// descriptor and all registrations are gone. Errors: kUnsupported (nvidia-peermem may serve instead), CUDA's own.
  Result<Dmabuf> export_dmabuf(std::span<std::byte> memory) const;
  Result<void> synchronise(void* stream) const;

  // Streams and events, for callers that link no CUDA runtime: each is made on the thread's device, see DeviceScope.
  Result<void*> create_stream() const;      ///< Independent of other streams, the default one included.
  void destroy_stream(void* stream) const;  ///< Its enqueued work still runs.
  Result<void*> create_event() const;
  void destroy_event(void* event) const;
  Result<void> record(void* event, void* stream) const;          ///< Passed once the stream's work so far is done.
  Result<void> wait_on_stream(void* stream, void* event) const;  ///< The stream's later work waits for the event.
  Result<void> ask(void* event, bool* is_passed) const;          ///< Whether it has passed; does not wait.
  Result<void> wait(void* event) const;                          ///< This thread sleeps until then.
  void* allocate_page_locked(std::size_t bytes) const;           ///< Host memory that kernels reach, or null.
  void free_page_locked(void* memory) const;

 private:
  struct Functions;
  friend class CudaStagingDevice;
  explicit CudaModule(std::unique_ptr<Functions> functions);
  Result<void> check(int error) const;
  Result<void*> made_by(int (*create)(void**)) const;
  Result<void> run_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                            const VerifiedBlocks& verified, const Operation& operation, bool is_scatter, void* stream,
                            int block_count_max) const;

  std::unique_ptr<Functions> functions_;
};

}  // namespace kv
