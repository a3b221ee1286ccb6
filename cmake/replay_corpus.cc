// Stands in for libFuzzer where that is absent: runs LLVMFuzzerTestOneInput once over every file of the given
// directories. Unless KV_STARTS_THREADS is defined, they must not start threads: ThreadSanitizer omits them.
#include <sys/single_threaded.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

int main(int argc, char** argv) {
  std::size_t file_count = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      std::ifstream in(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
      std::fprintf(stderr, "replaying %s (%zu bytes)\n", entry.path().c_str(), bytes.size());
      LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size());
      ++file_count;
    }
  }
#if !defined(KV_STARTS_THREADS)
  if (__libc_single_threaded == 0) {
    std::fprintf(stderr,
                 "a thread was started: kv_add_fuzzer needs THREADS, else ThreadSanitizer does not see this program\n");
    return 1;
  }
#endif
  std::printf("%zu corpus files replayed\n", file_count);
  return file_count == 0 ? 1 : 0;  // An empty corpus is a mistake in the tree.
}
