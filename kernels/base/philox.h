/* philox.h - Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
 * 1, 2, 3" (SC 2011). The same bits on CPU and CUDA for the same seed, offset and index.
 *
 * Element i of a tensor takes word i % 4 of philox(seed, counter = {offset, i / 4}), 64 bits each. */
#ifndef HS_PHILOX_H
#define HS_PHILOX_H
#include <stdint.h>

#ifdef __CUDACC__
#define HS_PHILOX_FUNCTION static __host__ __device__ __forceinline__
#else
#define HS_PHILOX_FUNCTION static inline
#endif

typedef struct {
    uint32_t word[4];
} hs_philox_words;

HS_PHILOX_FUNCTION hs_philox_words hs_philox(uint64_t seed, uint64_t offset, uint64_t index) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = (uint32_t)offset, c3 = (uint32_t)(offset >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const hs_philox_words words = {{c0, c1, c2, c3}};
    return words;
}
#endif
