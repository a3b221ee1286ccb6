/* client/python/src/xxh3.c: XXH3 for one instruction set, compiled once for each (KV_XXH3_NAME); and the choice between
 * them. The static library lacks xxh_x86dispatch.h's own choice; only libxxhash.so has it. */
#include <xxhash.h>

#if defined(KV_XXH3_NAME)

XXH64_hash_t KV_XXH3_NAME(const void* input, size_t bytes, XXH64_hash_t seed);
XXH64_hash_t KV_XXH3_NAME(const void* input, size_t bytes, XXH64_hash_t seed) {
  return XXH3_64bits_withSeed(input, bytes, seed);
}

#else

XXH64_hash_t kv_xxh3_sse2(const void* input, size_t bytes, XXH64_hash_t seed);
XXH64_hash_t kv_xxh3_avx2(const void* input, size_t bytes, XXH64_hash_t seed);
XXH64_hash_t kv_xxh3_avx512(const void* input, size_t bytes, XXH64_hash_t seed);
XXH64_hash_t XXH3_64bits_withSeed_dispatch(const void* input, size_t bytes, XXH64_hash_t seed);

XXH64_hash_t XXH3_64bits_withSeed_dispatch(const void* input, size_t bytes, XXH64_hash_t seed) {
  if (__builtin_cpu_supports("avx512f")) return kv_xxh3_avx512(input, bytes, seed);
  if (__builtin_cpu_supports("avx2")) return kv_xxh3_avx2(input, bytes, seed);
  return kv_xxh3_sse2(input, bytes, seed);
}

#endif
