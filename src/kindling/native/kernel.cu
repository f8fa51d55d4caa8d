// One kernel per block of steps: a thread block trains one trial by plain SGD, with its weights in
// shared memory from the first batch to the last.
//
// Products run on tensor cores. Each float is split into two parts of 11 significant bits each
// (TF32). Bytes need no split. The results are a little less exact than in float32: the product of
// the lower parts is left out, and tensor cores cut off sums where float32 rounds
// (docs/devices.md, "One kernel per block").
//
// The same text is compiled as C for tests: SIMULATED then stands for the device. PHASE begins what
// each warp does after a barrier; a simulation runs the warps of a phase one after the other. LANES
// begins what a lane does alone. All threads pass the same phases.
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
#ifdef REVERSED
#define PHASE for (int warp = WARPS - 1; warp >= 0; --warp)
#else
#define PHASE for (int warp = 0; warp < WARPS; ++warp)
#endif
#define LANES for (int lane = 0; lane < 32; ++lane)
#define REGISTERS [32]
#define MINE [lane]
#else
#define DEVICE static __device__ __forceinline__
#define UNROLL _Pragma("unroll")
#define PHASE for (int warp = (__syncthreads(), threadIdx.x / 32), once = 1; once; once = 0)
#define LANES for (int lane = threadIdx.x % 32, once = 1; once; once = 0)
#define REGISTERS
#define MINE
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

// Rows of weights and activations begin 2 banks, rows of deltas 8 banks after the row before: no
// two lanes that load at the same time then want the same bank.
#define STRIDE(units) (UP(units, 32) + 2)
#define DELTA_STRIDE(units) (UP(units, 32) + 8)

// Each case has a step of its own: a division by `layer == 1 ? 16 : 32` would stay one.
DEVICE int weight_rows(int layer) {
  return layer == 1 ? UP(UNITS(layer), 16) : UP(UNITS(layer), 32);
}
DEVICE int weight_place(int layer) {
  int place = 0;
  UNROLL
  for (int l = 1; l < layer; ++l) place += weight_rows(l) * STRIDE(UNITS(l - 1));
  return place;
}
DEVICE int bias_place(int layer) {
  int place = weight_place(LAYERS + 1);
  UNROLL
  for (int l = 1; l < layer; ++l) place += UP(UNITS(l), 32);
  return place;
}
DEVICE int output_place(int layer) {
  int place = bias_place(LAYERS + 1);
  UNROLL
  for (int l = 1; l < layer; ++l) place += SAMPLES * STRIDE(UNITS(l));
  return place;
}
DEVICE int delta_place(int layer) {
  int place = output_place(LAYERS);
  UNROLL
  for (int l = 1; l < layer; ++l) place += SAMPLES * DELTA_STRIDE(UNITS(l));
  return place;
}
#define SAMPLE_PLACE delta_place(LAYERS + 1)  // two batches' samples and labels, losses, hits
#define FLOATS (SAMPLE_PLACE + 6 * SAMPLES)

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

// c += a b, of which both are split, unless the numbers of one are known to be short.
DEVICE void multiply_split(Four *c, const Four *a, const Two *b, int short_a, int short_b) {
  Four upper_a, lower_a;
  Two upper_b, lower_b;
  LANES {
    UNROLL
    for (int i = 0; i < 4; ++i) {
      upper_a.of MINE[i] = upper(a->of MINE[i]);
      lower_a.of MINE[i] = a->of MINE[i] - upper_a.of MINE[i];
    }
    UNROLL
    for (int i = 0; i < 2; ++i) {
      upper_b.of MINE[i] = upper(b->of MINE[i]);
      lower_b.of MINE[i] = b->of MINE[i] - upper_b.of MINE[i];
    }
  }
  if (!short_b) multiply(c, &upper_a, &lower_b);
  if (!short_a) multiply(c, &lower_a, &upper_b);
  multiply(c, &upper_a, &upper_b);
}

// --- what a layer reads --------------------------------------------------------------------------

#define BYTES_OF(layer) (BYTES && (layer) == 1)
// What is due to a product with bytes.
#define SCALE(layer) (BYTES_OF(layer) ? 1.0f / 255 : 1.0f)

// Halves of 32 bits: a GPU converts 64 bits to a float 4 to 32 times as slowly.
typedef struct {
  unsigned of[2];
} __attribute__((aligned(8))) EightBytes;

// Eight features of a sample from `column`, a multiple of 8; beyond the last they are zero.
DEVICE void load_features(const void *features, int sample, int column, float *out) {
  const int units = UNITS(0);
  const long long first = (long long)sample * units + column;
  if (BYTES && units % 8 == 0) {
    EightBytes bytes = {{0, 0}};
    if (column < units)
      bytes = *(const EightBytes *)((const unsigned char *)features + first);
    UNROLL
    for (int i = 0; i < 8; ++i) out[i] = (float)(bytes.of[i / 4] >> 8 * (i % 4) & 255);
    return;
  }
  UNROLL
  for (int i = 0; i < 8; ++i) {
    out[i] = 0;
    if (column + i < units)
      out[i] = BYTES ? (float)((const unsigned char *)features)[first + i]
                     : ((const float *)features)[first + i];
  }
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

// Outputs of a layer by tiles of 16 samples and 16 units. The logits lie in the place of the last
// deltas, and inputs of gelu in that of the layer's deltas.
DEVICE void forward(int layer, const struct Arguments *given, float *shared, const int *samples,
                    int warp) {
  const int units = UNITS(layer), inputs = UNITS(layer - 1), across = UP(units, 16) / 16;
  const float *weight = shared + weight_place(layer), *bias = shared + bias_place(layer);
  float *output = shared + output_place(layer), *delta = shared + delta_place(layer);
  for (int job = warp; job < SAMPLES / 16 * across; job += WARPS) {
    const int first = job / across * 16, unit = job % across * 16;
    Four sum[2];
    LANES UNROLL for (int i = 0; i < 8; ++i) sum[i / 4].of MINE[i % 4] = 0;
    for (int chunk = 0; chunk < UP(inputs, 32); chunk += 32) {
      Eight row, next_row;  // inputs of the samples G and G + 8
      LANES {
        load_inputs(layer, given, shared, samples, first + G, chunk + 8 * T, row.of MINE);
        load_inputs(layer, given, shared, samples, first + G + 8, chunk + 8 * T, next_row.of MINE);
      }
      UNROLL
      for (int step = 0; step < 4; ++step) {  // inputs 8 T + 2 step and the next one
        Four a;
        LANES {
          UNROLL
          for (int i = 0; i < 2; ++i) {
            a.of MINE[2 * i] = row.of MINE[2 * step + i];
            a.of MINE[2 * i + 1] = next_row.of MINE[2 * step + i];
          }
        }
        UNROLL
        for (int tile = 0; tile < 2; ++tile) {
          Two b;
          LANES {
            const float *at = weight + (unit + 8 * tile + G) * STRIDE(inputs) + chunk + 8 * T;
            UNROLL
            for (int i = 0; i < 2; ++i) b.of MINE[i] = at[2 * step + i];
          }
          multiply_split(&sum[tile], &a, &b, BYTES_OF(layer), 0);
        }
      }
    }
    LANES {
      UNROLL
      for (int i = 0; i < 8; ++i) {
        const int place = first + G + i % 4 / 2 * 8, column = unit + i / 4 * 8 + 2 * T + i % 2;
        const float value = sum[i / 4].of MINE[i % 4] * SCALE(layer) + bias[column];
        if (layer == LAYERS || ACTIVATION == 2)
          delta[place * DELTA_STRIDE(units) + column] = value;
        if (layer < LAYERS) output[place * STRIDE(units) + column] = activate(value);
      }
    }
  }
}

// Logits to deltas, the gradients of the logits times the learning rate; losses; correct ones. A
// lane has a sample. Deltas beyond the batch are zero.
DEVICE void softmax(const struct Arguments *given, float *shared, const int *labels, float rate,
                    int place) {
  float *z = shared + delta_place(LAYERS) + place * DELTA_STRIDE(CLASSES);
  float *losses = shared + SAMPLE_PLACE + 4 * SAMPLES, *correct = losses + SAMPLES;
  const int real = place < given->size, label = real ? labels[place] : 0;
  float most = z[0], sum = 0, total = 0;
  int best = 0;
  for (int n = 1; n < CLASSES; ++n)
    if (z[n] > most || (z[n] != z[n] && most == most)) most = z[n], best = n;
  for (int n = 0; n < CLASSES; ++n) sum += expf(z[n] - most), total += z[n];
  const float share = SMOOTHING / CLASSES, scale = real ? rate / given->size : 0;
  losses[place] = logf(sum) + most - (1 - SMOOTHING) * z[label] - (SMOOTHING ? share * total : 0);
  correct[place] = best == label;
  for (int n = 0; n < CLASSES; ++n) {
    const float target = share + (n == label ? 1 - SMOOTHING : 0);
    z[n] = real ? (expf(z[n] - most) / sum - target) * scale : 0;
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
    Four sum[2];
    LANES UNROLL for (int i = 0; i < 8; ++i) sum[i / 4].of MINE[i % 4] = 0;
    for (int chunk = 0; chunk < UP(units, 32); chunk += 8) {
      Four a;
      LANES {
        const float *at = delta + (first + G) * DELTA_STRIDE(units) + chunk + T;
        UNROLL
        for (int i = 0; i < 4; ++i)
          a.of MINE[i] = at[i % 2 * 8 * DELTA_STRIDE(units) + i / 2 * 4];
      }
      UNROLL
      for (int tile = 0; tile < 2; ++tile) {
        Two b;
        LANES {
          const float *at = weight + (chunk + T) * STRIDE(inputs) + column + 8 * tile + G;
          UNROLL
          for (int i = 0; i < 2; ++i) b.of MINE[i] = at[4 * i * STRIDE(inputs)];
        }
        multiply_split(&sum[tile], &a, &b, 0, 0);
      }
    }
    LANES {
      UNROLL
      for (int i = 0; i < 8; ++i) {
        const int place = first + G + i % 4 / 2 * 8, unit = column + i / 4 * 8 + 2 * T + i % 2;
        float *at = below + place * DELTA_STRIDE(inputs) + unit;
        const float by = ACTIVATION == 2 ? *at : output[place * STRIDE(inputs) + unit];
        *at = sum[i / 4].of MINE[i % 4] * derivative(by);
      }
    }
  }
}

// Subtracts the deltas' products with the inputs from a layer's weights, by tiles of 32 units and
// 64 inputs. `job` is the number of a tile.
DEVICE void descend(int layer, const struct Arguments *given, float *shared, const int *samples,
                    int job) {
  const int units = UNITS(layer), inputs = UNITS(layer - 1), down = UP(units, 32) / 32;
  const int unit = job % down * 32, column = job / down * 64;
  const float *delta = shared + delta_place(layer);
  float *weight = shared + weight_place(layer);
  Four sum[2][8];  // input 8 G + j in tile j
  LANES UNROLL for (int i = 0; i < 64; ++i) sum[i / 32][i / 4 % 8].of MINE[i % 4] = 0;
  for (int place = 0; place < UP(ROWS, 8); place += 8) {
    Eight row, next_row;  // inputs of the samples T and T + 4
    LANES {
      load_inputs(layer, given, shared, samples, place + T, column + 8 * G, row.of MINE);
      load_inputs(layer, given, shared, samples, place + T + 4, column + 8 * G, next_row.of MINE);
    }
    UNROLL
    for (int half = 0; half < 2; ++half) {
      Four a;
      LANES {
        const float *at = delta + (place + T) * DELTA_STRIDE(units) + unit + 16 * half + G;
        UNROLL
        for (int i = 0; i < 4; ++i)
          a.of MINE[i] = at[i / 2 * 4 * DELTA_STRIDE(units) + i % 2 * 8];
      }
      UNROLL
      for (int j = 0; j < 8; ++j) {
        Two b;
        LANES b.of MINE[0] = row.of MINE[j], b.of MINE[1] = next_row.of MINE[j];
        multiply_split(&sum[half][j], &a, &b, 0, BYTES_OF(layer));
      }
    }
  }
  LANES {
    UNROLL
    for (int i = 0; i < 64; ++i) {
      const int row = unit + i / 32 * 16 + G + i % 4 / 2 * 8;
      const int at = column + 8 * (2 * T + i % 2) + i / 4 % 8;
      if (row < units && at < inputs)
        weight[row * STRIDE(inputs) + at] -= sum[i / 32][i / 4 % 8].of MINE[i % 4] * SCALE(layer);
    }
  }
}

#define TILES(layer) (UP(UNITS(layer), 32) / 32 * (UP(UNITS((layer) - 1), 64) / 64))

// Subtracts the deltas' sums from the biases of all layers.
DEVICE void descend_biases(const struct Arguments *given, float *shared) {
  UNROLL
  for (int layer = 1; layer <= LAYERS; ++layer) {
    const float *delta = shared + delta_place(layer);
    float *bias = shared + bias_place(layer);
    LANES for (int unit = lane; unit < UNITS(layer); unit += 32) {
      float sum = 0;
      for (int place = 0; place < given->size; ++place)
        sum += delta[place * DELTA_STRIDE(UNITS(layer)) + unit];
      bias[unit] -= sum;
    }
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
extern "C" __global__ void __launch_bounds__(THREADS) train(const struct Arguments arguments)
#endif
{
#ifndef SIMULATED
  extern __shared__ float shared[];
  const int trial = blockIdx.x;
#endif
  const struct Arguments *given = &arguments;
  const int column = given->column_of[trial], size = given->size;
  PHASE LANES for (int i = 32 * warp + lane; i < FLOATS; i += THREADS) shared[i] = 0;
  PHASE LANES copy(given, shared, trial, 0, 32 * warp + lane);
  const long long *rows = given->rows + (long long)given->order_of[trial] * size;
  for (int batch = -1; batch < given->batches; ++batch) {
    // Two places take turns: the samples of the next batch are looked up ahead.
    int *both = (int *)(shared + SAMPLE_PLACE);
    int *samples = both + (batch & 1) * 2 * SAMPLES, *ahead = both + (~batch & 1) * 2 * SAMPLES;
    UNROLL
    for (int layer = 1; layer <= LAYERS; ++layer) {
      if (batch >= 0) PHASE forward(layer, given, shared, samples, warp);
    }
    PHASE LANES for (int i = 32 * warp + lane; i < SAMPLES; i += THREADS) {
      if (batch + 1 < given->batches && i < size) {
        const long long row = rows[(long long)(batch + 1) * given->orders * size + i];
        ahead[i] = (int)row;
        ahead[SAMPLES + i] = (int)given->labels[row];
      }
      if (batch >= 0)
        softmax(given, shared, samples + SAMPLES,
                given->rates[(long long)batch * given->columns + column], i);
    }
    if (batch < 0) continue;
    UNROLL
    for (int layer = LAYERS; layer > 1; --layer) {
      PHASE backward(layer, shared, warp);
    }
    PHASE {
      int tiles = 0;  // of the layers before
      UNROLL
      for (int layer = 1; layer <= LAYERS; ++layer) {
        for (int job = warp; job < tiles + TILES(layer); job += WARPS)
          if (job >= tiles) descend(layer, given, shared, samples, job - tiles);
        tiles += TILES(layer);
      }
      if (warp == tiles % WARPS) descend_biases(given, shared);
      if (warp == (tiles + 1) % WARPS) LANES if (lane < 2) {
        const float *values = shared + SAMPLE_PLACE + (4 + lane) * SAMPLES;
        float sum = 0;
        for (int i = 0; i < size; ++i) sum += values[i];
        const long long at = (long long)batch * given->columns + column;
        if (lane == 0) given->losses[at] = sum / size;
        else given->correct[at] = (long long)sum;
      }
    }
  }
  PHASE LANES copy(given, shared, trial, 1, 32 * warp + lane);
}

#ifdef SIMULATED
int floats(void) { return FLOATS; }
#endif
