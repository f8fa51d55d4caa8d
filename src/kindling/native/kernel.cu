// One kernel per block of steps: a thread block trains one trial by plain SGD, with its weights in
// shared memory from the first batch to the last.
//
// Products run on tensor cores. Two floats are split into two parts of 11 significant bits each
// (TF32); the product of the lower parts is left out. Bytes are exact in float16, and what they are
// multiplied by is a pair of float16 numbers, which hold 23 of a float32's 24 bits. So the weights
// of a first layer that reads bytes are kept as pairs. Tensor cores cut off sums where float32
// rounds (docs/devices.md, "One kernel per block").
//
// The same text is compiled as C for tests: SIMULATED then stands for the device. PHASE begins what
// each warp does after a barrier; a simulation runs the warps of a phase one after the other. LANES
// begins what a lane does alone; FROM reads a register of another lane of the warp. All threads
// pass the same phases.
//
// The compiler's command line defines:
//   LAYERS       linear layers
//   UNITS(n)     the inputs for n = 0, then the units of layer n
//   ROWS         samples of a batch; the last batch of an epoch may have fewer
//   BYTES        1 if the features are bytes, which are divided by 255; 0 if they are floats
//   ACTIVATION   0 relu, 1 tanh, 2 gelu
//   SMOOTHING    the share of each target that is spread over all classes
//   WARPS        of a thread block

#ifdef SIMULATED
#include <math.h>
#include <string.h>
#define DEVICE static inline
#define UNROLL
#define UNROLL_BY_EIGHT
#ifdef REVERSED
#define PHASE for (int warp = WARPS - 1; warp >= 0; --warp)
#else
#define PHASE for (int warp = 0; warp < WARPS; ++warp)
#endif
#define LANES for (int lane = 0; lane < 32; ++lane)
#define REGISTERS [32]
#define MINE [lane]
#define FROM(lanes, other) lanes[other]
#define SYNC_WARP
#else
#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_EIGHT _Pragma("unroll 8")
#define PHASE for (int warp = (__syncthreads(), threadIdx.x / 32), once = 1; once; once = 0)
#define LANES for (int lane = threadIdx.x % 32, once = 1; once; once = 0)
#define REGISTERS
#define MINE
#define FROM(lanes, other) __shfl_sync(0xffffffff, lanes, other)
#define SYNC_WARP __syncwarp()
#endif

// A lane's place in a tile of the tensor cores.
#define G (lane / 4)
#define T (lane % 4)

#define UP(n, step) (((n) + (step) - 1) / (step) * (step))
#define THREADS (32 * WARPS)
#define SAMPLES UP(ROWS, 16)
#define CLASSES UNITS(LAYERS)

struct Arguments {
  const void *features;     // (samples, UNITS(0)) bytes or floats
  const long long *labels;  // (samples)
  const long long *rows;    // (batches, orders, size): samples of the batches
  const int *order_of;      // (trials of this launch): the order of a trial's batches
  const int *column_of;     // (trials of this launch): a trial's column in the tables
  const float *rates;       // (batches, columns)
  float *losses;            // (batches, columns)
  long long *correct;       // (batches, columns)
  float *weights[LAYERS];   // (trials of this launch, units, inputs)
  float *biases[LAYERS];    // (trials of this launch, units)
  int batches, orders, size, columns;
};

// --- places in shared memory, in floats ----------------------------------------------------------

// Rows of weights and activations begin 2 banks, rows of deltas 8 or 24 banks after the row before:
// no two lanes that load at the same time then want the same bank.
#define STRIDE(units) (UP(units, 32) + 2)
#define DELTA_STRIDE(units) (UP(units, 16) + 8)

// Pairs of float16 lie in two planes, of upper and of lower halves: weights (units, inputs) with so
// many halves in a row, and deltas (units, samples), in the order in which a lane needs them: after
// two samples of a unit the same ones of the unit after the next seven.
#define WEIGHT_HALVES (UP(UNITS(0), 64) + 8)
#define DELTA_HALVES ((SAMPLES / 16 | 1) * 16)
#define DELTA_AT(unit, sample) \
  (((unit) / 16 * 8 + (unit) % 8) * 2 * DELTA_HALVES + (sample) / 2 * 4 + (unit) / 8 % 2 * 2 + \
   (sample) % 2)
#define PAIRED_ROWS UP(UNITS(1), 16)
// Whether the deltas of a layer, or what they are made of, are floats too.
#define HAS_DELTAS(layer) (!BYTES || (layer) > 1 || LAYERS == 1 || ACTIVATION == 2)

// Weights, biases, and what each step writes anew: pairs of deltas, outputs, deltas. All layers are
// counted through, so that a compiler knows the number of turns and leaves no loop.
DEVICE int weight_place(int layer) {
  int place = 0;
  UNROLL
  for (int l = 1; l <= LAYERS; ++l) {
    const int row = BYTES && l == 1 ? WEIGHT_HALVES : STRIDE(UNITS(l - 1));
    place += l < layer ? UP(UNITS(l), 16) * row : 0;
  }
  return place;
}
DEVICE int bias_place(int layer) {
  int place = weight_place(LAYERS + 1);
  UNROLL
  for (int l = 1; l <= LAYERS; ++l) place += l < layer ? UP(UNITS(l), 32) : 0;
  return place;
}
#define DELTA_PAIRS bias_place(LAYERS + 1)
DEVICE int output_place(int layer) {
  int place = DELTA_PAIRS + (BYTES ? PAIRED_ROWS * DELTA_HALVES : 0);
  UNROLL
  for (int l = 1; l <= LAYERS; ++l) place += l < layer ? SAMPLES * STRIDE(UNITS(l)) : 0;
  return place;
}
DEVICE int delta_place(int layer) {
  int place = output_place(LAYERS);
  UNROLL
  for (int l = 1; l <= LAYERS; ++l)
    place += l < layer && HAS_DELTAS(l) ? SAMPLES * DELTA_STRIDE(UNITS(l)) : 0;
  return place;
}
// Of two batches the samples, their labels, and the learning rate of a sample; losses and hits.
#define SAMPLE_PLACE delta_place(LAYERS + 1)
#define LOSS_PLACE (SAMPLE_PLACE + 4 * SAMPLES)
#define STEP_PLACE (LOSS_PLACE + 2 * SAMPLES)
#define FLOATS (STEP_PLACE + 2)

// --- tensor cores --------------------------------------------------------------------------------

// The part of a number that TF32 can hold; the rest is exact.
DEVICE float upper(float value) {
#ifdef SIMULATED
  unsigned bits;
  memcpy(&bits, &value, 4);
  bits &= 0xffffe000u;
  memcpy(&value, &bits, 4);
  return value;
#else
  return __uint_as_float(__float_as_uint(value) & 0xffffe000u);
#endif
}

// c (16, 8) += a (16, 8) b (8, 8). A lane holds
//   a: (G, T), (G + 8, T), (G, T + 4), (G + 8, T + 4)
//   b: (T, G), (T + 4, G)
//   c: (G, 2 T), (G, 2 T + 1), (G + 8, 2 T), (G + 8, 2 T + 1)
// PTX ISA, "Matrix Fragments for mma.m16n8k8"
typedef struct {
  float of REGISTERS[4];
} Four;
typedef struct {
  float of REGISTERS[2];
} Two;
typedef struct {
  float of REGISTERS[8];
} Eight;

DEVICE void multiply(Four *c, const Four *a, const Two *b) {
#ifdef SIMULATED
  float left[16][8], right[8][8];
  LANES {
    for (int i = 0; i < 4; ++i) left[G + i % 2 * 8][T + i / 2 * 4] = upper(a->of[lane][i]);
    for (int i = 0; i < 2; ++i) right[T + i * 4][G] = upper(b->of[lane][i]);
  }
  LANES for (int i = 0; i < 4; ++i) {
    float sum = 0;
    for (int k = 0; k < 8; ++k) sum += left[G + i / 2 * 8][k] * right[k][2 * T + i % 2];
    c->of[lane][i] += sum;
  }
#else
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c->of[0]), "+f"(c->of[1]), "+f"(c->of[2]), "+f"(c->of[3])
      : "r"(__float_as_uint(a->of[0])), "r"(__float_as_uint(a->of[1])),
        "r"(__float_as_uint(a->of[2])), "r"(__float_as_uint(a->of[3])),
        "r"(__float_as_uint(b->of[0])), "r"(__float_as_uint(b->of[1])));
#endif
}

// Both parts of a number.
DEVICE void split_four(const Four *all, Four part[2]) {
  LANES UNROLL for (int i = 0; i < 4; ++i) {
    part[0].of MINE[i] = upper(all->of MINE[i]);
    part[1].of MINE[i] = all->of MINE[i] - part[0].of MINE[i];
  }
}
DEVICE void split_two(const Two *all, Two part[2]) {
  LANES UNROLL for (int i = 0; i < 2; ++i) {
    part[0].of MINE[i] = upper(all->of MINE[i]);
    part[1].of MINE[i] = all->of MINE[i] - part[0].of MINE[i];
  }
}
#define PRODUCTS 3  // of the upper parts, and of an upper and a lower part

// --- pairs of float16 ----------------------------------------------------------------------------

// What weights and deltas are multiplied by, so that the largest are below 65,504 and the last bits
// of those that matter are above 2^-24.
#define WEIGHT_SCALE 256.0f
#define DELTA_SCALE 256.0f

typedef struct {
  unsigned of[2];
} __attribute__((aligned(8))) EightBytes;
typedef struct {
  unsigned of[4];
} __attribute__((aligned(16))) SixteenBytes;
typedef struct {
  EightBytes of REGISTERS[4];
} FourOfEight;
typedef struct {
  SixteenBytes of REGISTERS[4];
} FourOfSixteen;
// Two halves in each register.
typedef struct {
  unsigned of REGISTERS[4];
} FourPairs;
typedef struct {
  unsigned of REGISTERS[2];
} TwoPairs;

#ifdef SIMULATED
DEVICE float half_to_float(unsigned bits) {
  const unsigned short word = (unsigned short)bits;
  _Float16 value;
  memcpy(&value, &word, 2);
  return (float)value;
}
// Rounded to the nearest one, or towards zero.
DEVICE unsigned float_to_half(float value, int cut) {
  const _Float16 half = (_Float16)value;
  unsigned short word;
  memcpy(&word, &half, 2);
  return cut && fabsf((float)half) > fabsf(value) ? word - 1u : word;
}
#endif

DEVICE float lower_half(unsigned pair) {
#ifdef SIMULATED
  return half_to_float(pair & 0xffff);
#else
  float value;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, a;}" : "=f"(value) : "r"(pair));
  return value;
#endif
}
DEVICE float upper_half(unsigned pair) {
#ifdef SIMULATED
  return half_to_float(pair >> 16);
#else
  float value;
  asm("{.reg .f16 a, b; mov.b32 {a, b}, %1; cvt.f32.f16 %0, b;}" : "=f"(value) : "r"(pair));
  return value;
#endif
}

// Two floats as two pairs. The lower part is cut off: a sum of both parts is then split as it was.
DEVICE void split_halves(float first, float second, unsigned *upper, unsigned *lower) {
#ifdef SIMULATED
  *upper = float_to_half(first, 0) | float_to_half(second, 0) << 16;
  *lower = float_to_half(first - lower_half(*upper), 1) |
           float_to_half(second - upper_half(*upper), 1) << 16;
#else
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(*upper) : "f"(first), "f"(second));
  const float rest = first - lower_half(*upper), next_rest = second - upper_half(*upper);
  asm("cvt.rz.f16x2.f32 %0, %2, %1;" : "=r"(*lower) : "f"(rest), "f"(next_rest));
#endif
}

// Two bytes as two halves. A half of 1024 and more has its last bit at 1, so the byte is put there.
DEVICE unsigned halves_of_bytes(unsigned marked) {
#ifdef SIMULATED
  return float_to_half(lower_half(marked) - 1024, 0) |
         float_to_half(upper_half(marked) - 1024, 0) << 16;
#else
  unsigned pair;
  asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(pair) : "r"(marked), "r"(0x64006400u));
  return pair;
#endif
}
// Bytes 2 n and 2 n + 1 of a word.
DEVICE unsigned neighbours(unsigned word, int n) {
#ifdef SIMULATED
  const unsigned both = word >> 16 * n;
  return halves_of_bytes(0x64006400u | (both & 255) | (both >> 8 & 255) << 16);
#else
  return halves_of_bytes(__byte_perm(word, 0x64646464u, n ? 0x4342 : 0x4140));
#endif
}
// Byte n of two words.
DEVICE unsigned both_bytes(unsigned word, unsigned other, int n) {
#ifdef SIMULATED
  const unsigned both = (word >> 8 * n & 255) | (other >> 8 * n & 255) << 16;
#else
  const unsigned both = __byte_perm(word, other, 0x4400 + n * 0x1111);
#endif
  return halves_of_bytes((both & 0x00ff00ffu) | 0x64006400u);
}

// c (16, 8) += a (16, 16) b (16, 8). A lane holds
//   a: (G, 2 T), (G + 8, 2 T), (G, 2 T + 8), (G + 8, 2 T + 8), each with the next column
//   b: (2 T, G), (2 T + 8, G), each with the next row
//   c: as above
// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type"
DEVICE void multiply_halves(Four *c, const FourPairs *a, const TwoPairs *b) {
#ifdef SIMULATED
  float left[16][16], right[16][8];
  LANES {
    for (int i = 0; i < 4; ++i) {
      left[G + i % 2 * 8][2 * T + i / 2 * 8] = lower_half(a->of[lane][i]);
      left[G + i % 2 * 8][2 * T + i / 2 * 8 + 1] = upper_half(a->of[lane][i]);
    }
    for (int i = 0; i < 2; ++i) {
      right[2 * T + i * 8][G] = lower_half(b->of[lane][i]);
      right[2 * T + i * 8 + 1][G] = upper_half(b->of[lane][i]);
    }
  }
  LANES for (int i = 0; i < 4; ++i) {
    float sum = 0;
    for (int k = 0; k < 16; ++k) sum += left[G + i / 2 * 8][k] * right[k][2 * T + i % 2];
    c->of[lane][i] += sum;
  }
#else
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c->of[0]), "+f"(c->of[1]), "+f"(c->of[2]), "+f"(c->of[3])
      : "r"(a->of[0]), "r"(a->of[1]), "r"(a->of[2]), "r"(a->of[3]), "r"(b->of[0]), "r"(b->of[1]));
#endif
}

// --- what a layer reads --------------------------------------------------------------------------

// Where the bytes of a sample begin, from a column.
DEVICE const unsigned char *bytes_of(const struct Arguments *given, int sample, int column) {
  return (const unsigned char *)given->features + column + (long long)sample * UNITS(0);
}

// `count` bytes from `column`, a multiple of `count`; beyond the last they are zero.
DEVICE void load_bytes(const unsigned char *at, int column, int count, unsigned *out) {
  const int units = UNITS(0);
  UNROLL
  for (int i = 0; i < (count + 3) / 4; ++i) out[i] = 0;
  if (count % 8 == 0 && units % count == 0) {
    if (column >= units) return;
#ifdef SIMULATED
    memcpy(out, at, count);
#else
    if (count == 16) {
      const uint4 found = __ldg((const uint4 *)at);
      out[0] = found.x, out[1] = found.y, out[2] = found.z, out[3] = found.w;
    } else {
      const uint2 found = __ldg((const uint2 *)at);
      out[0] = found.x, out[1] = found.y;
    }
#endif
    return;
  }
  UNROLL
  for (int i = 0; i < count; ++i)
    if (column + i < units) out[i / 4] |= (unsigned)at[i] << 8 * (i % 4);
}

// Eight features of a sample from `column`, a multiple of 8; beyond the last they are zero.
DEVICE void load_features(const void *features, int sample, int column, float *out) {
  const float *row = (const float *)features + (long long)sample * UNITS(0);
  UNROLL
  for (int i = 0; i < 8; ++i) out[i] = column + i < UNITS(0) ? row[column + i] : 0;
}

// Eight inputs of a layer: features, or outputs of the layer before. `place` is that of a sample in
// the batch.
DEVICE void load_inputs(int layer, const struct Arguments *given, const float *shared,
                        const int *samples, int place, int column, float *out) {
  const int units = UNITS(layer - 1);
  if (layer == 1) {
    load_features(given->features, samples[place], column, out);
    return;
  }
  const float *row = shared + output_place(layer - 1) + place * STRIDE(units) + column;
  UNROLL
  for (int i = 0; i < 8; ++i) out[i] = column < UP(units, 32) ? row[i] : 0;
}

// --- activations ---------------------------------------------------------------------------------

DEVICE float activate(float value) {
  if (ACTIVATION == 0) return value <= 0 ? 0 : value;  // a NaN stays
  if (ACTIVATION == 1) return tanhf(value);
  return value * 0.5f * (1 + erff(value * 0.70710678f));
}

// The derivative, by the output; that of gelu by the input.
DEVICE float derivative(float value) {
  if (ACTIVATION == 0) return value <= 0 ? 0 : 1;
  if (ACTIVATION == 1) return 1 - value * value;
  return 0.5f * (1 + erff(value * 0.70710678f)) + value * 0.39894228f * expf(-0.5f * value * value);
}

// --- phases, of one warp each --------------------------------------------------------------------

DEVICE void clear(Four *sums, int count) {
  LANES UNROLL for (int i = 0; i < 4 * count; ++i) sums[i / 4].of MINE[i % 4] = 0;
}

// The products of a and of two tiles b, each summed by itself: a sum that waited for the one before
// would take three times as long.
DEVICE void multiply_split(Four sum[PRODUCTS][2], const Four *a, const Two b[2]) {
  Four left[2];
  Two right[2][2];
  split_four(a, left);
  split_two(&b[0], right[0]);
  split_two(&b[1], right[1]);
  UNROLL
  for (int i = 0; i < 2 * PRODUCTS; ++i)
    multiply(&sum[i / 2][i % 2], &left[i / 2 == 1], &right[i % 2][i / 2 == 2]);
}
DEVICE void add_products(Four sum[PRODUCTS][2]) {
  LANES UNROLL for (int i = 0; i < 8; ++i)
    sum[0][i / 4].of MINE[i % 4] +=
        sum[1][i / 4].of MINE[i % 4] + sum[2][i / 4].of MINE[i % 4];
}

// Keeps an output of the layer. Logits lie in the place of the last deltas, and inputs of gelu in
// that of the layer's deltas.
DEVICE void keep(int layer, float *shared, int place, int unit, float value) {
  const int units = UNITS(layer);
  if (layer == LAYERS || ACTIVATION == 2)
    shared[delta_place(layer) + place * DELTA_STRIDE(units) + unit] = value;
  if (layer < LAYERS) shared[output_place(layer) + place * STRIDE(units) + unit] = activate(value);
}
// Adds the biases to a tile of 16 samples and 16 units, and keeps it. Whatever is read is read
// before something is written: a compiler would let each read wait for the writes before it.
DEVICE void keep_tile(int layer, float *shared, int first, int unit, const Four *sum) {
  LANES {
    const float *bias = shared + bias_place(layer) + unit + 2 * T;
    float own[4];
    UNROLL
    for (int i = 0; i < 4; ++i) own[i] = bias[i / 2 * 8 + i % 2];
    UNROLL
    for (int i = 0; i < 8; ++i) {
      const int place = first + G + i % 4 / 2 * 8, column = unit + 2 * T + i / 4 * 8 + i % 2;
      keep(layer, shared, place, column, sum[i / 4].of MINE[i % 4] + own[i / 4 * 2 + i % 2]);
    }
  }
}

// What a first layer that reads bytes adds up, by tiles of 32 samples and 32 units, or 16, and half
// of the inputs: a byte is converted once. The sums of the first half lie in the place of the
// outputs, or of the logits, those of the second half in that of the deltas' pairs.
#define SUM_STRIDE (LAYERS == 1 ? DELTA_STRIDE(UNITS(1)) : STRIDE(UNITS(1)))
#define SUM_PLACE (LAYERS == 1 ? delta_place(1) : output_place(1))
#define SUMS (SAMPLES * PAIRED_ROWS)
#define TILES_OF_SAMPLES (SAMPLES > 16 ? 2 : 1)
#define TILES_OF_UNITS (PAIRED_ROWS > 16 ? 2 : 1)
#define CHUNKS (UP(UNITS(0), 64) / 64)
typedef struct {
  const unsigned char *of REGISTERS[2 * TILES_OF_SAMPLES];
} Rows;
DEVICE void forward_bytes(const struct Arguments *given, float *shared, const int *samples,
                          int warp) {
  const int tiles = TILES_OF_SAMPLES, columns = 2 * TILES_OF_UNITS;  // of 8 units
  const int down = UP(SAMPLES, 16 * tiles) / (16 * tiles);
  const int across = UP(PAIRED_ROWS, 8 * columns) / (8 * columns);
  const unsigned short *weight = (const unsigned short *)shared;
  for (int job = warp; job < down * across * 2; job += WARPS) {
    const int first = job % down * 16 * tiles, unit = job / down % across * 8 * columns;
    const int second = job / down / across;
    const int begin = second ? CHUNKS / 2 * 64 : 0, end = second ? CHUNKS * 64 : CHUNKS / 2 * 64;
    Four sum[2][4];  // of samples, of units
    clear(&sum[0][0], 8);
    Rows from;           // the samples G, G + 8, G + 16, G + 24
    FourOfSixteen next;  // their inputs 16 T to 16 T + 15
    LANES UNROLL for (int i = 0; i < 2 * tiles; ++i) {
      const int place = first + G + 8 * i;
      from.of MINE[i] = bytes_of(given, samples[place < SAMPLES ? place : 0], begin + 16 * T);
      load_bytes(from.of MINE[i], begin + 16 * T, 16, next.of MINE[i].of);
    }
    for (int chunk = begin; chunk < end; chunk += 64) {
      const FourOfSixteen row = next;
      if (chunk + 64 < end) {
        LANES UNROLL for (int i = 0; i < 2 * tiles; ++i) {
          from.of MINE[i] += 64;
          load_bytes(from.of MINE[i], chunk + 64 + 16 * T, 16, next.of MINE[i].of);
        }
      }
      UNROLL
      for (int step = 0; step < 2; ++step) {  // inputs 16 T + 8 step and the seven after
        UNROLL
        for (int plane = 1; plane >= 0; --plane) {  // the lower halves first
          FourOfSixteen half;                       // of four tiles of units
          LANES UNROLL for (int i = 0; i < columns; ++i) {
            const int at = (plane * PAIRED_ROWS + unit + i * 8 + G) * WEIGHT_HALVES;
            half.of MINE[i] = *(const SixteenBytes *)(weight + at + chunk + 16 * T + 8 * step);
          }
          UNROLL
          for (int pair = 0; pair < 2; ++pair) {
            UNROLL
            for (int tile = 0; tile < tiles; ++tile) {
              FourPairs a;
              LANES UNROLL for (int i = 0; i < 4; ++i)
                a.of MINE[i] =
                    neighbours(row.of MINE[2 * tile + i % 2].of[2 * step + pair], i / 2);
              UNROLL
              for (int i = 0; i < columns; ++i) {
                TwoPairs b;
                LANES UNROLL for (int k = 0; k < 2; ++k)
                  b.of MINE[k] = half.of MINE[i].of[2 * pair + k];
                multiply_halves(&sum[tile][i], &a, &b);
              }
            }
          }
        }
      }
    }
    UNROLL
    for (int tile = 0; tile < tiles; ++tile) {
      if (first + 16 * tile >= SAMPLES) break;
      LANES {
        const int stride = second ? PAIRED_ROWS : SUM_STRIDE;
        float *at = shared + (second ? DELTA_PAIRS : SUM_PLACE) +
                    (first + 16 * tile + G) * stride + unit + 2 * T;
        UNROLL
        for (int i = 0; i < 4 * columns; ++i)
          if (unit + i / 4 * 8 < PAIRED_ROWS)
            at[i % 4 / 2 * 8 * stride + i / 4 * 8 + i % 2] = sum[tile][i / 4].of MINE[i % 4];
      }
    }
  }
}

// Adds both halves and the biases. All is read before something is written, as in keep_tile.
#define MOST_SUMS (UP(SUMS, THREADS) / THREADS)
DEVICE void finish_bytes(float *shared, int thread) {
  float sum[MOST_SUMS];
  UNROLL
  for (int i = 0; i < MOST_SUMS; ++i) {
    const int at = i * THREADS + thread, place = at / PAIRED_ROWS, unit = at % PAIRED_ROWS;
    if (at < SUMS)
      sum[i] = (shared[SUM_PLACE + place * SUM_STRIDE + unit] + shared[DELTA_PAIRS + at]) *
                   (1 / (255 * WEIGHT_SCALE)) + shared[bias_place(1) + unit];
  }
  UNROLL
  for (int i = 0; i < MOST_SUMS; ++i) {
    const int at = i * THREADS + thread;
    if (at < SUMS) keep(1, shared, at / PAIRED_ROWS, at % PAIRED_ROWS, sum[i]);
  }
}

// Outputs of a layer by tiles of 16 samples and 16 units.
DEVICE void forward(int layer, const struct Arguments *given, float *shared, const int *samples,
                    int warp) {
  const int units = UNITS(layer), inputs = UNITS(layer - 1), across = UP(units, 16) / 16;
  const float *weight = shared + weight_place(layer);
  for (int job = warp; job < SAMPLES / 16 * across; job += WARPS) {
    const int first = job / across * 16, unit = job % across * 16;
    Four sum[PRODUCTS][2];
    clear(&sum[0][0], 2 * PRODUCTS);
    for (int chunk = 0; chunk < UP(inputs, 32); chunk += 32) {
      Eight row, next_row;  // inputs of the samples G and G + 8
      LANES {
        load_inputs(layer, given, shared, samples, first + G, chunk + 8 * T, row.of MINE);
        load_inputs(layer, given, shared, samples, first + G + 8, chunk + 8 * T, next_row.of MINE);
      }
      UNROLL
      for (int step = 0; step < 4; ++step) {  // inputs 8 T + 2 step and the next one
        Four a;
        Two b[2];
        LANES UNROLL for (int i = 0; i < 2; ++i) {
          a.of MINE[2 * i] = row.of MINE[2 * step + i];
          a.of MINE[2 * i + 1] = next_row.of MINE[2 * step + i];
        }
        LANES UNROLL for (int i = 0; i < 4; ++i) {
          const float *at = weight + (unit + i / 2 * 8 + G) * STRIDE(inputs) + chunk + 8 * T;
          b[i / 2].of MINE[i % 2] = at[2 * step + i % 2];
        }
        multiply_split(sum, &a, b);
      }
    }
    add_products(sum);
    keep_tile(layer, shared, first, unit, sum[0]);
  }
}

// Whether a class is predicted rather than another: its logit is larger, or no number, or as large,
// and it comes first.
DEVICE int is_better(float value, int n, float most, int best) {
  if (value != value || most != most) return value != value && (most == most || n < best);
  return value > most || (value == most && n < best);
}

// Keeps a delta of the first layer of bytes as a pair.
DEVICE void keep_pair(float *shared, int place, int unit, float delta) {
  unsigned short *at = (unsigned short *)(shared + DELTA_PAIRS) + DELTA_AT(unit, place);
  unsigned upper, lower;
  split_halves(delta * DELTA_SCALE, 0, &upper, &lower);
  at[0] = (unsigned short)upper;
  at[PAIRED_ROWS * DELTA_HALVES] = (unsigned short)lower;
}

// Logits to deltas, the gradients of a sample's loss; losses; correct ones. A warp has eight
// samples, and a lane has each fourth class. Deltas and losses beyond the batch are zero.
#if CLASSES <= 32
#define EACH_CLASS UNROLL
#else
#define EACH_CLASS
#endif
typedef struct {
  float most REGISTERS, sum REGISTERS, total REGISTERS, of_label REGISTERS;
  int best REGISTERS;
} Logits;
#define QUARTER (UP(CLASSES, 4) / 4)
DEVICE void softmax(const struct Arguments *given, float *shared, const int *labels, int warp) {
  float *losses = shared + LOSS_PLACE, *correct = losses + SAMPLES;
  float *logits = shared + delta_place(LAYERS);
  for (int first = 8 * warp; first < SAMPLES; first += 8 * WARPS) {
    Logits own, next;
    LANES {
      const float *z = logits + (first + G) * DELTA_STRIDE(CLASSES);
      own.best MINE = T < CLASSES ? T : 0;
      own.most MINE = z[own.best MINE];
      EACH_CLASS
      for (int k = 1; k < QUARTER; ++k) {
        const int n = 4 * k + T;
        if (n < CLASSES && is_better(z[n], n, own.most MINE, own.best MINE))
          own.most MINE = z[n], own.best MINE = n;
      }
      own.of_label MINE = z[first + G < given->size ? labels[first + G] : 0];
    }
    UNROLL
    for (int by = 1; by < 4; by *= 2) {
      LANES next.most MINE = FROM(own.most, lane ^ by), next.best MINE = FROM(own.best, lane ^ by);
      LANES if (is_better(next.most MINE, next.best MINE, own.most MINE, own.best MINE))
        own.most MINE = next.most MINE, own.best MINE = next.best MINE;
    }
    SYNC_WARP;  // all have read the logit of the label
    LANES {
      float *z = logits + (first + G) * DELTA_STRIDE(CLASSES);
      own.sum MINE = own.total MINE = 0;
      EACH_CLASS
      for (int k = 0; k < QUARTER; ++k) {
        const int n = 4 * k + T;
        if (n >= CLASSES) continue;
        own.total MINE += z[n];
        z[n] = expf(z[n] - own.most MINE);
        own.sum MINE += z[n];
      }
    }
    UNROLL
    for (int by = 1; by < 4; by *= 2) {
      LANES next.sum MINE = FROM(own.sum, lane ^ by), next.total MINE = FROM(own.total, lane ^ by);
      LANES own.sum MINE += next.sum MINE, own.total MINE += next.total MINE;
    }
    LANES {
      float *z = logits + (first + G) * DELTA_STRIDE(CLASSES);
      const int place = first + G, real = place < given->size, label = real ? labels[place] : 0;
      const float share = SMOOTHING / CLASSES, by = 1 / own.sum MINE;
      const float mean = (1 - SMOOTHING) * own.of_label MINE + share * own.total MINE;
      EACH_CLASS
      for (int k = 0; k < QUARTER; ++k) {
        const int n = 4 * k + T;
        if (n >= CLASSES) continue;
        const float target = share + (n == label ? 1 - SMOOTHING : 0);
        const float delta = real ? z[n] * by - target : 0;
        if (BYTES && LAYERS == 1) keep_pair(shared, place, n, delta);
        else z[n] = delta;
      }
      if (T == 0) losses[place] = real ? logf(own.sum MINE) + own.most MINE - mean : 0;
      if (T == 1) correct[place] = real && own.best MINE == label;
    }
  }
}

// Deltas of the layer below, by tiles of 16 samples and 16 units.
DEVICE void backward(int layer, float *shared, int warp) {
  const int units = UNITS(layer), inputs = UNITS(layer - 1), across = UP(inputs, 16) / 16;
  const float *weight = shared + weight_place(layer), *delta = shared + delta_place(layer);
  const float *output = shared + output_place(layer - 1);
  float *below = shared + delta_place(layer - 1);
  for (int job = warp; job < SAMPLES / 16 * across; job += WARPS) {
    const int first = job / across * 16, column = job % across * 16;
    Four sum[PRODUCTS][2];
    clear(&sum[0][0], 2 * PRODUCTS);
    for (int chunk = 0; chunk < UP(units, 8); chunk += 8) {
      Four a;
      Two b[2];
      LANES UNROLL for (int i = 0; i < 4; ++i) {
        const float *at = delta + (first + G) * DELTA_STRIDE(units) + chunk + T;
        a.of MINE[i] = at[i % 2 * 8 * DELTA_STRIDE(units) + i / 2 * 4];
      }
      LANES UNROLL for (int i = 0; i < 4; ++i) {
        const float *at = weight + (chunk + T) * STRIDE(inputs) + column + i / 2 * 8 + G;
        b[i / 2].of MINE[i % 2] = at[i % 2 * 4 * STRIDE(inputs)];
      }
      multiply_split(sum, &a, b);
    }
    add_products(sum);
    LANES {
      float found[8];
      UNROLL
      for (int i = 0; i < 8; ++i) {
        const int place = first + G + i % 4 / 2 * 8, unit = column + i / 4 * 8 + 2 * T + i % 2;
        const float by = ACTIVATION == 2 ? below[place * DELTA_STRIDE(inputs) + unit]
                                         : output[place * STRIDE(inputs) + unit];
        found[i] = sum[0][i / 4].of MINE[i % 4] * derivative(by);
      }
      UNROLL
      for (int i = 0; i < 8; ++i) {
        const int place = first + G + i % 4 / 2 * 8, unit = column + i / 4 * 8 + 2 * T + i % 2;
        if (BYTES && layer == 2) keep_pair(shared, place, unit, found[i]);
        else below[place * DELTA_STRIDE(inputs) + unit] = found[i];
      }
    }
  }
}

// Some bytes of each of four samples.
DEVICE void load_samples(const struct Arguments *given, const int *samples, int column, int count,
                         EightBytes *out) {
  const SixteenBytes four = *(const SixteenBytes *)samples;
  UNROLL
  for (int i = 0; i < 4; ++i)
    load_bytes(bytes_of(given, (int)four.of[i], column), column, count, out[i].of);
}

// Up to eight weights.
typedef struct {
  SixteenBytes upper, lower;
} Pairs;
DEVICE Pairs load_pairs(const unsigned short *at, int count) {
  const unsigned short *below = at + PAIRED_ROWS * WEIGHT_HALVES;
  Pairs out = {{{0, 0, 0, 0}}, {{0, 0, 0, 0}}};
  if (count == 8) {
    out.upper = *(const SixteenBytes *)at, out.lower = *(const SixteenBytes *)below;
    return out;
  }
  UNROLL
  for (int k = 0; k < count / 2; ++k) {
    out.upper.of[k] = ((const unsigned *)at)[k];
    out.lower.of[k] = ((const unsigned *)below)[k];
  }
  return out;
}
DEVICE void store_pairs(unsigned short *at, int count, const Pairs *pairs) {
  unsigned short *below = at + PAIRED_ROWS * WEIGHT_HALVES;
  if (count == 8) {
    *(SixteenBytes *)at = pairs->upper, *(SixteenBytes *)below = pairs->lower;
    return;
  }
  UNROLL
  for (int k = 0; k < count / 2; ++k) {
    ((unsigned *)at)[k] = pairs->upper.of[k];
    ((unsigned *)below)[k] = pairs->lower.of[k];
  }
}

// Subtracts the deltas' products with the inputs, times `step`, from the weights of a first layer
// that reads bytes, in a tile of 32 units, or 16, and 8 * `each` inputs.
// Where the first weight of the sums i lies.
#define PAIR_AT(i) \
  ((unit + (i) / 4 * 16 + (i) / 2 % 2 * 8 + G) * WEIGHT_HALVES + column + each * (2 * T + (i) % 2))
DEVICE void descend_tile(const struct Arguments *given, float *shared, const int *samples,
                         float step, int unit, int column, const int each) {
  const int halves = TILES_OF_UNITS;
  const unsigned short *delta = (const unsigned short *)(shared + DELTA_PAIRS);
  unsigned short *weight = (unsigned short *)shared;
  Four sum[2][8];  // input each * G + j in tile j
  clear(&sum[0][0], 16);
  for (int place = 0; place < SAMPLES; place += 16) {
    FourOfEight row;
    LANES load_samples(given, samples + place + 4 * T, column + each * G, each, row.of MINE);
    FourPairs a[2][2];  // of two tiles of units, upper and lower halves
    UNROLL
    for (int half = 0; half < halves; ++half) {
      LANES UNROLL for (int plane = 0; plane < 2; ++plane) {  // of the units G and G + 8
        const int at = plane * PAIRED_ROWS * DELTA_HALVES + DELTA_AT(unit + 16 * half + G, place);
        const SixteenBytes found = *(const SixteenBytes *)(delta + at + 8 * T);
        UNROLL
        for (int i = 0; i < 4; ++i) a[half][plane].of MINE[i] = found.of[i];
      }
    }
    UNROLL
    for (int j = 0; j < each; ++j) {
      TwoPairs b;
      LANES UNROLL for (int i = 0; i < 2; ++i)
        b.of MINE[i] =
            both_bytes(row.of MINE[2 * i].of[j / 4], row.of MINE[2 * i + 1].of[j / 4], j % 4);
      UNROLL
      for (int i = 0; i < 2 * halves; ++i)  // the lower halves first; no sum twice in a row
        multiply_halves(&sum[i % halves][j], &a[i % halves][i < halves], &b);
    }
  }
  const float by = step * (WEIGHT_SCALE / DELTA_SCALE / 255);
  LANES {
    Pairs next = load_pairs(weight + PAIR_AT(0), each);
    UNROLL
    for (int i = 0; i < 4 * halves; ++i) {
      Pairs own = next;
      if (i + 1 < 4 * halves) next = load_pairs(weight + PAIR_AT(i + 1), each);
      UNROLL
      for (int k = 0; k < each / 2; ++k) {
        const float first = lower_half(own.upper.of[k]) + lower_half(own.lower.of[k]);
        const float second = upper_half(own.upper.of[k]) + upper_half(own.lower.of[k]);
        split_halves(first - sum[i / 4][2 * k].of MINE[i % 4] * by,
                     second - sum[i / 4][2 * k + 1].of MINE[i % 4] * by, &own.upper.of[k],
                     &own.lower.of[k]);
      }
      if (unit + i / 4 * 16 + i / 2 % 2 * 8 + G < UNITS(1))
        store_pairs(weight + PAIR_AT(i), each, &own);
    }
  }
}

// `job` is the number of a tile: of those of 64 inputs, then of what is left.
#define WIDE (UNITS(0) / 64)
#define LEFT (UP(UNITS(0) - 64 * WIDE, 16) / 8)
DEVICE void descend_bytes(const struct Arguments *given, float *shared, const int *samples,
                          float step, int job) {
  const int down = UP(UNITS(1), 16 * TILES_OF_UNITS) / (16 * TILES_OF_UNITS);
  const int unit = job % down * 16 * TILES_OF_UNITS, column = job / down * 64;
  if (column < 64 * WIDE) descend_tile(given, shared, samples, step, unit, column, 8);
  else if (LEFT) descend_tile(given, shared, samples, step, unit, column, LEFT);
}

// The same for other layers, by tiles of 32 units and 64 inputs, or 32 where there are no more.
#define EACH(layer) (UNITS((layer) - 1) > 32 ? 8 : 4)  // inputs of a lane
#define TILES(layer)                                                           \
  (BYTES && (layer) == 1                                                       \
       ? UP(UNITS(1), 16 * TILES_OF_UNITS) / (16 * TILES_OF_UNITS) * (WIDE + !!LEFT) \
       : UP(UNITS(layer), 32) / 32 * (UP(UNITS((layer) - 1), 8 * EACH(layer)) / (8 * EACH(layer))))
DEVICE void descend(int layer, const struct Arguments *given, float *shared, const int *samples,
                    float step, int job) {
  const int units = UNITS(layer), inputs = UNITS(layer - 1), down = UP(units, 32) / 32;
  const int each = EACH(layer), unit = job % down * 32, column = job / down * 8 * each;
  const int halves = UP(units, 16) > 16 ? 2 : 1;
  const float *delta = shared + delta_place(layer);
  float *weight = shared + weight_place(layer);
  Four sum[2][8];  // input each * G + j in tile j
  clear(&sum[0][0], 16);
  for (int place = 0; place < UP(ROWS, 8); place += 8) {
    Eight row, next_row;  // inputs of the samples T and T + 4
    LANES {
      const int from = column + each * G;
      load_inputs(layer, given, shared, samples, place + T, from, row.of MINE);
      load_inputs(layer, given, shared, samples, place + T + 4, from, next_row.of MINE);
    }
    Four left[2][2];
    UNROLL
    for (int half = 0; half < halves; ++half) {
      Four a;
      LANES UNROLL for (int i = 0; i < 4; ++i) {
        const int column = unit + 16 * half + i % 2 * 8 + G;
        const int at = (place + T + i / 2 * 4) * DELTA_STRIDE(units) + column;
        a.of MINE[i] = column < UP(units, 16) ? delta[at] : 0;
      }
      split_four(&a, left[half]);
    }
    UNROLL
    for (int four = 0; four < each; four += 4) {
      Two right[4][2];
      UNROLL
      for (int j = 0; j < 4; ++j) {
        Two b;
        LANES b.of MINE[0] = row.of MINE[four + j], b.of MINE[1] = next_row.of MINE[four + j];
        split_two(&b, right[j]);
      }
      UNROLL
      for (int product = PRODUCTS - 1; product >= 0; --product) {
        UNROLL
        for (int i = 0; i < 4 * halves; ++i)
          multiply(&sum[i / 4][four + i % 4], &left[i / 4][product == 1],
                   &right[i % 4][product == 2]);
      }
    }
  }
  LANES {
    UNROLL
    for (int i = 0; i < 4 * each * halves; ++i) {
      const int half = i / (4 * each), j = i / 4 % each;
      const int row = unit + half * 16 + G + i % 4 / 2 * 8;
      const int at = column + each * (2 * T + i % 2) + j;
      if (row < units && at < inputs)
        weight[row * STRIDE(inputs) + at] -= sum[half][j].of MINE[i % 4] * step;
    }
  }
}

// Subtracts the deltas' sums, times `step`, from the biases of a layer.
DEVICE void descend_biases(int layer, float *shared, float step, int lane) {
  float *bias = shared + bias_place(layer);
  for (int unit = lane; unit < UNITS(layer); unit += 32) {
    float sum = 0;
    if (BYTES && layer == 1) {
      const unsigned *row = (const unsigned *)(shared + DELTA_PAIRS) + DELTA_AT(unit, 0) / 2;
      UNROLL_BY_EIGHT
      for (int i = 0; i < SAMPLES / 2; ++i) {
        const int later = i + unit % 8 / 2 + unit / 16 % 2 * 4;  // so that each lane has its bank
        const int at = later < SAMPLES / 2 ? later : later - SAMPLES / 2;
        const unsigned upper = row[2 * at], lower = row[2 * at + PAIRED_ROWS * DELTA_HALVES / 2];
        sum += lower_half(upper) + lower_half(lower) + (upper_half(upper) + upper_half(lower));
      }
      sum *= 1 / DELTA_SCALE;
    } else {
      const float *delta = shared + delta_place(layer) + unit;
      UNROLL_BY_EIGHT
      for (int place = 0; place < SAMPLES; ++place)
        sum += delta[place * DELTA_STRIDE(UNITS(layer))];
    }
    bias[unit] -= sum * step;
  }
}

// The mean of the losses, or the number of correct predictions.
DEVICE void report(const struct Arguments *given, const float *shared, long long at, int second) {
  const float *values = shared + LOSS_PLACE + second * SAMPLES;
  float sum = 0;
  UNROLL_BY_EIGHT
  for (int i = 0; i < SAMPLES; ++i) sum += values[i];
  if (second) given->correct[at] = (long long)sum;
  else given->losses[at] = sum / given->size;
}

// Looks up the samples, labels and learning rate of a batch, and asks for the features.
DEVICE void look_up(const struct Arguments *given, float *shared, int trial, int batch, int lane) {
  int *samples = (int *)(shared + SAMPLE_PLACE) + (batch & 1) * 2 * SAMPLES;
  const long long *rows =
      given->rows + ((long long)batch * given->orders + given->order_of[trial]) * given->size;
  for (int first = lane; first < given->size; first += 128) {
    long long row[4], label[4];  // four at a time: each takes as long as a thousand instructions
    UNROLL
    for (int i = 0; i < 4; ++i) row[i] = first + 32 * i < given->size ? rows[first + 32 * i] : 0;
    UNROLL
    for (int i = 0; i < 4; ++i) label[i] = given->labels[row[i]];
    UNROLL
    for (int i = 0; i < 4; ++i) {
      if (first + 32 * i >= given->size) continue;
      samples[first + 32 * i] = (int)row[i];
      samples[SAMPLES + first + 32 * i] = (int)label[i];
#ifndef SIMULATED
      const int bytes = UNITS(0) * (BYTES ? 1 : 4);
      const char *at = (const char *)given->features + row[i] * bytes;
      for (int k = 0; k < bytes; k += 128) asm volatile("prefetch.global.L2 [%0];" ::"l"(at + k));
#endif
    }
  }
  if (lane == 0) {
    const long long at = (long long)batch * given->columns + given->column_of[trial];
    shared[STEP_PLACE + (batch & 1)] = given->rates[at] / given->size;
  }
}

// Copies the weights and biases of a trial from device to shared memory, or back.
DEVICE void copy(const struct Arguments *given, float *shared, int trial, int back, int thread) {
  UNROLL
  for (int layer = 1; layer <= LAYERS; ++layer) {
    const int units = UNITS(layer), inputs = UNITS(layer - 1);
    float *weight = given->weights[layer - 1] + (long long)trial * units * inputs;
    float *bias = given->biases[layer - 1] + (long long)trial * units;
    for (int i = thread; i < units * inputs; i += THREADS) {
      if (BYTES && layer == 1) {
        unsigned short *here =
            (unsigned short *)shared + i / inputs * WEIGHT_HALVES + i % inputs;
        unsigned short *below = here + PAIRED_ROWS * WEIGHT_HALVES;
        unsigned upper, lower;
        if (back) {
          weight[i] = (lower_half(*here) + lower_half(*below)) * (1 / WEIGHT_SCALE);
        } else {
          split_halves(weight[i] * WEIGHT_SCALE, 0, &upper, &lower);
          *here = (unsigned short)upper, *below = (unsigned short)lower;
        }
        continue;
      }
      float *here = shared + weight_place(layer) + i / inputs * STRIDE(inputs) + i % inputs;
      *(back ? weight + i : here) = *(back ? here : weight + i);
    }
    for (int i = thread; i < units; i += THREADS) {
      float *here = shared + bias_place(layer) + i;
      *(back ? bias + i : here) = *(back ? here : bias + i);
    }
  }
}

#ifdef SIMULATED
void train(struct Arguments arguments, int trial, float *shared)
#else
extern "C" __global__ void __launch_bounds__(THREADS, 16 / WARPS)
train(const struct Arguments arguments)
#endif
{
#ifndef SIMULATED
  extern __shared__ __align__(16) float shared[];
  const int trial = blockIdx.x;
#endif
  const struct Arguments *given = &arguments;
  PHASE LANES for (int i = 32 * warp + lane; i < FLOATS; i += THREADS) shared[i] = 0;
  PHASE LANES {
    copy(given, shared, trial, 0, 32 * warp + lane);
    if (warp == 0) look_up(given, shared, trial, 0, lane);
  }
  for (int batch = 0; batch < given->batches; ++batch) {
    // Two places take turns: the samples of the next batch are looked up ahead.
    const int *samples = (const int *)(shared + SAMPLE_PLACE) + (batch & 1) * 2 * SAMPLES;
    UNROLL
    for (int layer = 1; layer <= LAYERS; ++layer) {
      PHASE {
        if (BYTES && layer == 1) forward_bytes(given, shared, samples, warp);
        else forward(layer, given, shared, samples, warp);
      }
      if (BYTES && layer == 1) PHASE LANES finish_bytes(shared, 32 * warp + lane);
    }
    PHASE softmax(given, shared, samples + SAMPLES, warp);
    UNROLL
    for (int layer = LAYERS; layer > 1; --layer) {
      PHASE backward(layer, shared, warp);
    }
    PHASE {
      const float step = shared[STEP_PLACE + (batch & 1)];
      int tiles = 0;  // of the layers before
      UNROLL
      for (int layer = 1; layer <= LAYERS; ++layer) {
        for (int job = warp; job < tiles + TILES(layer); job += WARPS) {
          if (job < tiles) continue;
          if (BYTES && layer == 1) descend_bytes(given, shared, samples, step, job - tiles);
          else descend(layer, given, shared, samples, step, job - tiles);
        }
        tiles += TILES(layer);
      }
      // The warps after the last tile have the rest.
      const int rest = (warp + WARPS - tiles % WARPS) % WARPS;
      LANES {
        if (rest == 0 && batch + 1 < given->batches)
          look_up(given, shared, trial, batch + 1, lane);
        if (rest == 1) {
          UNROLL
          for (int layer = 1; layer <= LAYERS; ++layer) descend_biases(layer, shared, step, lane);
          const long long at = (long long)batch * given->columns + given->column_of[trial];
          if (lane < 2) report(given, shared, at, lane);
        }
      }
    }
  }
  PHASE LANES copy(given, shared, trial, 1, 32 * warp + lane);
}

#ifdef SIMULATED
int floats(void) { return FLOATS; }
#endif
