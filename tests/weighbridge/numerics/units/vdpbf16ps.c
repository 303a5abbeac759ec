/* Executes VDPBF16PS on what is read: records of four pairs a, four pairs b and four addends; writes four results. */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>

__attribute__((target("avx512f,avx512vl,avx512bf16")))
int main(void)
{
    uint32_t given[3][4], found[4];
    while (fread(given, sizeof given, 1, stdin) == 1) {
        __m128i a = _mm_loadu_si128((const __m128i *)given[0]), b = _mm_loadu_si128((const __m128i *)given[1]);
        __m128 c = _mm_castsi128_ps(_mm_loadu_si128((const __m128i *)given[2]));
        __m128 d = _mm_dpbf16_ps(c, (__m128bh)a, (__m128bh)b);
        _mm_storeu_si128((__m128i *)found, _mm_castps_si128(d));
        fwrite(found, sizeof found, 1, stdout);
    }
    return 0;
}
