/* Random numbers: masks of dropout, and noise. Each is a function of seed, number of the batch, sample,
   layer and unit alone. */
#pragma once
#include "functions.h"
#include "memory.h"

/* Counters that are computed side by side. */
enum { COUNTERS = 16 };

typedef uint32_t Words[4][COUNTERS];

/* Philox 4x32-10 (Salmon et al. 2011): four random words, a function of key and counter. The counters
   differ in their first word, which is `first` + j in column j. */
static void philox(Words word, uint32_t first, uint32_t sample, uint32_t batch, uint32_t layer,
                   int64_t seed)
{
    for (uint32_t j = 0; j < COUNTERS; j++) {
        word[0][j] = first + j;
        word[1][j] = sample;
        word[2][j] = batch;
        word[3][j] = layer;
    }
    uint32_t key0 = (uint32_t)seed, key1 = (uint32_t)((uint64_t)seed >> 32);
    for (int round = 0; round < 10; round++) {
        for (int j = 0; j < COUNTERS; j++) {
            const uint64_t a = (uint64_t)0xD2511F53u * word[0][j], b = (uint64_t)0xCD9E8D57u * word[2][j];
            const uint32_t w0 = (uint32_t)(b >> 32) ^ word[1][j] ^ key0;
            const uint32_t w2 = (uint32_t)(a >> 32) ^ word[3][j] ^ key1;
            word[1][j] = (uint32_t)b;
            word[3][j] = (uint32_t)a;
            word[0][j] = w0;
            word[2][j] = w2;
        }
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

/* Draws of a mask from one call of philox. */
enum { MASK_CHUNK = 8 * COUNTERS };

/* The masks of `units` units of a sample, from unit `first` on, a multiple of MASK_CHUNK: 0 with the
   probability, which is rounded to a multiple of 1/2¹⁶ below 1, else the inverse of the rest. Each
   counter gives eight draws of 16 bits. */
static void draw_mask(REAL *mask, ptrdiff_t first, ptrdiff_t units, double probability, int64_t seed,
                      uint32_t batch, uint32_t sample, uint32_t layer)
{
    const double exact = probability * 65536 + 0.5;
    const uint32_t dropped = exact < 65535 ? (uint32_t)exact : 65535;
    const REAL kept = (REAL)(65536.0 / (65536 - dropped));
    for (ptrdiff_t begin = 0; begin < units; begin += MASK_CHUNK) {
        Words word;
        philox(word, (uint32_t)((first + begin) / 8), sample, batch, layer, seed);
        REAL drawn[8][COUNTERS]; /* unit u of the chunk has number u / 8 of row u % 8 */
        for (int row = 0; row < 8; row++)
            for (int j = 0; j < COUNTERS; j++) {
                const uint32_t draw = word[row / 2][j] >> (16 * (row % 2)) & 0xFFFF;
                drawn[row][j] = draw < dropped ? 0 : kept;
            }
        for (ptrdiff_t u = 0; u < least(MASK_CHUNK, units - begin); u++)
            mask[begin + u] = drawn[u % 8][u / 8];
    }
}

/* Adds normal numbers of mean 0 to `units` units of a sample, by the transform of Box and Muller (1958):
   if u and v are uniform between 0 and 1, (-2 log u)^½ cos(2 π v) and (-2 log u)^½ sin(2 π v) are
   normal and independent. The four words of a counter are two pairs (u, v), and so give four numbers.
   Column j of the words is for the units j, 16 + j, 32 + j and 48 + j of 64. */
static void add_noise(REAL *to, ptrdiff_t units, double deviation, int64_t seed, uint32_t batch,
                      uint32_t sample, uint32_t layer)
{
    enum { CHUNK = 4 * COUNTERS };
    const REAL scale = (REAL)deviation;
    for (ptrdiff_t first = 0; first < units; first += CHUNK) {
        Words word;
        REAL uniform[COUNTERS], turn[COUNTERS], noise[CHUNK];
        Bits quarter[COUNTERS];
        /* By the highest bit of the layer, noise and masks have different counters. */
        philox(word, (uint32_t)first / 4, sample, batch, layer | 0x80000000u, seed);
        for (int pair = 0; pair < 2; pair++) {
            for (int j = 0; j < COUNTERS; j++) {
                const uint32_t u = word[2 * pair][j], v = word[2 * pair + 1][j];
                /* Of 24 bits, so that both precisions hold them exactly. An eighth of a turn less
                   than v: that changes nothing for a uniform angle. */
                uniform[j] = (REAL)(int32_t)(u >> 8 | 1) * (REAL)0x1p-24;
                turn[j] = (REAL)(int32_t)(v >> 8 & 0x3FFFFF) * (REAL)0x1p-22 - (REAL)0.5;
                quarter[j] = (Bits)(v >> 30);
            }
            for (int j = 0; j < COUNTERS; j += LANES) {
                Vector radius = logarithm(AT(uniform + j)) * -2;
                EACH(i, LANES) radius[i] = ROOT(radius[i]);
                Vector cosine, sine;
                circle(AT(turn + j), *(Integers *)(quarter + j), &cosine, &sine);
                AT(noise + 2 * pair * COUNTERS + j) = radius * scale * cosine;
                AT(noise + (2 * pair + 1) * COUNTERS + j) = radius * scale * sine;
            }
        }
        const ptrdiff_t count = least(CHUNK, units - first);
        for (ptrdiff_t i = 0; i < count; i++) to[first + i] += noise[i];
    }
}
