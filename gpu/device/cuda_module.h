// gpu/device/cuda_module.h: permute() on an NVIDIA device, from a module that is loaded when first asked for. A process
// without CUDA, or without a device, gets an error here and goes on with the host's version. The room's files, in
// reading order; the first four are compiled by nvcc for kernels and by the host's compiler for tests:
//
//   device_plan.h       a PermutePlan as a kernel takes it
//   device_values.h     numbers of a row, as one thread loads, converts and stores them
//   device_body.h       what one thread of a kernel does
//   device_checksum.h   checksums of blocks, as the threads of one stripe share the work
//   cuda_functions.h    the module's functions, found by name
//   cuda_module.h       the module and its devices
//   cuda_staging.h      staging's lanes and marks as streams and events
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
  /// Loads the file that the environment names in KV_CUDA_MODULE, else libkvstore_cuda.so as the loader finds it.
  /// Errors: kUnavailable: no such module, another version's, or no device; the text says which.
  static Result<std::shared_ptr<const CudaModule>, Failure> load();
  ~CudaModule();
  int device_count() const;  ///< At least 1.
  /// Where device number `device` is, such as "0000:3B:00.0"; -1: the thread's. Errors: kUnsupported where the driver
  /// does not say, CUDA's own.
  Result<std::string> pci_address(int device) const;
  /// Loads all kernels on the thread's device now: else each one's first call takes milliseconds longer.
  Result<void> warm_up() const;

  /// permute() enqueued on `stream` (a cudaStream_t), one launch for each kind of body, each of at most
  /// `block_count_max` blocks, over all components and layers. The memory behind the layouts, the ids of the rows,
  /// frequencies and deltas are the device's or page-locked, and stay until the stream has passed. All is of the pages'
  /// device, which need not be the thread's: the stream too, of which null is that device's default one. Nothing is
  /// allocated on the device and nothing waited for. A slot beyond the cache is skipped: only the device knows it.
  /// Errors: kMismatch as permute() has it; CUDA's own, if the launch failed.
  Result<void> permute(const BoundLayout& to, const Rows& to_rows, const BoundLayout& from, const Rows& from_rows,
                       std::int64_t row_count, const Operation& operation, void* stream,
                       int block_count_max = kBlockCountMax) const;
  static constexpr int kBlockCountMax = 1 << 16;

  /// scatter_kept() enqueued on `stream`. `rows` is the device's or page-locked; a row that is not within is skipped.
  /// Errors: kMismatch as scatter_kept() has it; CUDA's own.
  Result<void> scatter_kept(const BoundLayout& cache, std::span<const KeepRow> rows, const BoundLayout& source,
                            void* stream, int block_count_max = kBlockCountMax) const;

  /// Enqueued on `stream`: verifies so many of the store's blocks, `blocks`' first, and scatters those that are what
  /// their names say, rows [i * block_tokens, (i + 1) * block_tokens) for block i. verdicts[i] is 0 for a block that
  /// is, else 1, and then its rows are left alone; other than on the host, sound blocks after it are scattered. All
  /// arrays are the device's, or page-locked. Errors: as permute(), and kMismatch if `blocks` are not the store's,
  /// kBadRequest for more than it holds and for rows in blocks that a store's block cuts.
  Result<void> scatter_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                                const VerifiedBlocks& verified, const Operation& operation, void* stream,
                                int block_count_max = kBlockCountMax) const;
  /// Enqueued on `stream`: gathers so many blocks and writes their checksums to verified.sums.
  Result<void> gather_with_checksums(const BoundLayout& blocks, const BoundLayout& cache, const Rows& rows,
                                     const VerifiedBlocks& verified, const Operation& operation, void* stream,
                                     int block_count_max = kBlockCountMax) const;

  /// Copies from[i] to to[i], bytes[i] each, enqueued on `stream`, in one call of the driver where it can. The arrays
  /// are read before the call returns. Host memory that is not page-locked makes the call wait.
  Result<void> copy_batch(std::span<void* const> to, std::span<const void* const> from,
                          std::span<const std::size_t> bytes, void* stream) const;

  enum class MemoryKind : std::uint8_t { kHost, kPageLocked, kDevice };
  struct MemoryPlace {
    MemoryKind kind = MemoryKind::kHost;
    int device = -1;  ///< Of kDevice: whose.
  };
  /// Asks the driver: about a microsecond. Memory that CUDA does not know is the host's.
  MemoryPlace place_of(const void* memory) const;

  /// Makes a device the thread's while it lives, and then the one before it again: the thread is the engine's.
  class DeviceScope {
   public:
    DeviceScope(const CudaModule& module, int device);
    ~DeviceScope();
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;

    Result<void> status;  ///< Nothing may be asked of the device unless this is sound.

   private:
    const CudaModule& module_;
    int before_ = -1;
  };

  void* allocate(std::size_t bytes) const;  ///< Device memory, or null. The caller frees it.
  void free(void* memory) const;
  Result<void> copy(void* to, const void* from, std::size_t bytes) const;  ///< Between any two memories; waits.
  /// Page-locks the caller's memory, a client's region for instance, and lets kernels reach it, until it is unlocked.
  /// Unlock it before it is freed or lent memory ends. Takes as long as touching each page.
  Result<void> lock_pages(std::span<std::byte> memory) const;
  Result<void> unlock_pages(std::byte* memory) const;
  struct Dmabuf {
    int fd = -1;               ///< The caller's to close.
    std::uint64_t offset = 0;  ///< Of the memory in it.
  };
  /// Device memory as RDMA devices take it (client.h's DeviceMemory). It stays allocated until the descriptor and all
  /// registrations are gone. Errors: kUnsupported where the driver cannot (nvidia-peermem may be there instead), CUDA's
  /// own.
  Result<Dmabuf> export_dmabuf(std::span<std::byte> memory) const;
  Result<void> synchronise(void* stream) const;

  // Streams and events, for callers that link no CUDA runtime: each is made on the thread's device, see DeviceScope.
  Result<void*> create_stream() const;      ///< One that waits for no other, the default one included.
  void destroy_stream(void* stream) const;  ///< What it was given still runs.
  Result<void*> create_event() const;
  void destroy_event(void* event) const;
  Result<void> record(void* event, void* stream) const;  ///< Passed once all is done that the stream was given so far.
  Result<void> wait_on_stream(void* stream, void* event) const;  ///< The stream's later work waits for the event.
  Result<void> ask(void* event, bool* is_passed) const;          ///< Whether it has passed; waits for nothing.
  Result<void> wait(void* event) const;                          ///< This thread waits, asleep.
  void* allocate_page_locked(std::size_t bytes) const;           ///< Host memory that kernels reach, or null.
  void free_page_locked(void* memory) const;

 private:
  struct Functions;
  friend class CudaStagingDevice;
  explicit CudaModule(std::unique_ptr<Functions> functions);
  Result<void> check(int error) const;
  Result<void> run_verified(const BoundLayout& cache, const Rows& rows, const BoundLayout& blocks,
                            const VerifiedBlocks& verified, const Operation& operation, bool is_scatter, void* stream,
                            int block_count_max) const;

  std::unique_ptr<Functions> functions_;
};

}  // namespace kv
