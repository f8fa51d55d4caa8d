/* Vectors of the widest kind that the instruction set has. Included after SINGLE is defined, or not. */
#pragma once
#include "engine.h"

#if defined(NARROW) && defined(__FMA__) /* for tests: vectors as narrow as those of Arm */
#include <immintrin.h>
enum { VECTOR_BYTES = 16, MOST_ROWS = 6, MOST_VECTORS = 3 };
#define FUSED_32(a, b, c) ((Vector)_mm_fmadd_ps((__m128)(a), (__m128)(b), (__m128)(c)))
#define FUSED_64(a, b, c) ((Vector)_mm_fmadd_pd((__m128d)(a), (__m128d)(b), (__m128d)(c)))
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#elif defined(__AVX512F__)
#include <immintrin.h>
enum { VECTOR_BYTES = 64, MOST_ROWS = 8, MOST_VECTORS = 3 };
#define FUSED_32(a, b, c) ((Vector)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define FUSED_64(a, b, c) ((Vector)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { VECTOR_BYTES = 32, MOST_ROWS = 6, MOST_VECTORS = 2 };
#define FUSED_32(a, b, c) ((Vector)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define FUSED_64(a, b, c) ((Vector)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#elif defined(__aarch64__)
#include <arm_neon.h>
enum { VECTOR_BYTES = 16, MOST_ROWS = 6, MOST_VECTORS = 3 };
#define FUSED_32(a, b, c) ((Vector)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define FUSED_64(a, b, c) ((Vector)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)))
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#error "the engine needs AVX2 with FMA, AVX-512, or NEON"
#endif

#if defined(SINGLE)
typedef float REAL;
typedef int32_t Bits; /* as wide as REAL */
#define FMA FUSED_32
#define ROOT __builtin_sqrtf
#define EXPORTED(x) x##_32
#else
typedef double REAL;
typedef int64_t Bits;
#define FMA FUSED_64
#define ROOT __builtin_sqrt
#define EXPORTED(x) x##_64
#endif

typedef REAL Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef Bits Integers __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

enum { LANES = VECTOR_BYTES / sizeof(REAL), PAD = LINE / sizeof(REAL) };

#define AT(place) (*(Vector *)(place))
#define BROADCAST(x) ((REAL)(x) - (Vector){0})
#define SELECT(mask, a, b) ((Vector)(((Integers)(a) & (mask)) | ((Integers)(b) & ~(mask))))
#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

/* From now on this thread takes numbers below the normal ones for 0. Returns the mode of before, for
   `restore_subnormals`. Processors are slow with such numbers, and a moving mean of gradients that have
   become 0 ends among them: docs/performance.md, "Moments that fade". */
static inline uint64_t flush_subnormals(void)
{
#if defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"(before | 1 << 24));
#else
    const uint64_t before = _mm_getcsr();
    _mm_setcsr((unsigned)before | 0x8040); /* results, and operands */
#endif
    return before;
}

static inline void restore_subnormals(uint64_t mode)
{
#if defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
#else
    _mm_setcsr((unsigned)mode);
#endif
}
