/* Trains and evaluates multilayer perceptrons on a CPU: a call trains one model on a whole block of
   batches, without memory of its own and without other libraries.

   A result depends on the model, its data and its settings alone: every sum has one order, products
   and sums are fused where the source says so and nowhere else, and exp, log, tanh and erf are
   computed here. Threads, blocks, neighbours, vector widths and compilers change no bit.

   Weights lie input-major, weight[input * stride + unit], so that a product reads whole vectors of
   units. Columns from `units` to `stride` are zero and stay zero. */
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { RELU, TANH, GELU };
enum { NO_NORM, BATCH_NORM, LAYER_NORM };
enum { SGD, ADAM, ADAMW };
enum { BYTES, FLOATS, DOUBLES };
enum { LINE = 64, MOST_LAYERS = 1024 };

/* Places are indices into the flat vectors of a model; -1 says that there is none. */
typedef struct {
    int64_t inputs, units, stride;
    int64_t weight, bias;
    int64_t scale, shift;   /* of the norm after this layer */
    int64_t mean, variance; /* running statistics of a batch norm */
    double dropout;
} Layer;

typedef struct {
    const Layer *layers;
    int64_t depth;
    int64_t activation, norm;
    double input_dropout;
    double max_norm; /* 0: none */
    double norm_eps, norm_momentum;
    int64_t trained, size; /* flat vectors hold `trained` parameters, then running statistics */
} Network;

typedef struct {
    int64_t kind, nesterov;
    double weight_decay, momentum, beta1, beta2, eps;
} Optimizer;

/* How batches become steps. Batch k of a block follows `first` batches of its epoch. */
typedef struct {
    int64_t batches_per_epoch, accumulate;
    double clip, smoothing, ema_decay; /* 0: none */
} Plan;

/* Flat vectors of one model, aligned to 64 bytes. `first` and `second` are the moments of the
   optimizer. All but `weights` may be 0 if nothing needs them. */
typedef struct {
    void *weights, *gradient, *first, *second, *average;
    int64_t seed;  /* of dropout */
    int64_t steps; /* that the optimizer has taken */
} Model;

/* Sample i of batch k is features[rows[k * batch + i]]; without `rows`, features[k * batch + i].
   Labels are indexed in the same way. rates[k] is the learning rate of the step after batch k.
   Writes losses[k], the mean of a batch, and correct[k]. */
typedef struct {
    const void *features;
    int64_t source; /* BYTES or FLOATS; DOUBLES only for models of 64 bits */
    const int64_t *rows, *labels;
    int64_t batch, epoch, first;
    int64_t begin, end; /* the batches of the block that a call trains */
    const double *rates;
    double *losses;
    int64_t *correct;
} Block;

/* Threads that train one model together. They meet at the barrier between two phases of a step. A
   thread spins for a moment, because a phase lasts some microseconds, and then sleeps. */
typedef struct {
    int64_t threads;
    pthread_mutex_t mutex;
    pthread_cond_t condition;
    atomic_int arrived;
    atomic_uint round;
} Team;

typedef struct {
    Team *team;
    int64_t number;
} Member;

static inline ptrdiff_t least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }
static inline ptrdiff_t most(ptrdiff_t a, ptrdiff_t b) { return a > b ? a : b; }
static inline ptrdiff_t rounded(ptrdiff_t n, ptrdiff_t unit) { return (n + unit - 1) / unit * unit; }

static ptrdiff_t bytes_of(int64_t source) { return source == BYTES ? 1 : source == FLOATS ? 4 : 8; }

static void meet(const Member *member)
{
    Team *team = member->team;
    if (team->threads == 1) return;
    const unsigned round = atomic_load_explicit(&team->round, memory_order_acquire);
    if (atomic_fetch_add_explicit(&team->arrived, 1, memory_order_acq_rel) + 1 == team->threads) {
        atomic_store_explicit(&team->arrived, 0, memory_order_relaxed);
        pthread_mutex_lock(&team->mutex);
        atomic_fetch_add_explicit(&team->round, 1, memory_order_release);
        pthread_cond_broadcast(&team->condition);
        pthread_mutex_unlock(&team->mutex);
        return;
    }
    for (int spin = 0; spin < 2000; spin++) {
        if (atomic_load_explicit(&team->round, memory_order_acquire) != round) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
    }
    pthread_mutex_lock(&team->mutex);
    while (atomic_load_explicit(&team->round, memory_order_acquire) == round)
        pthread_cond_wait(&team->condition, &team->mutex);
    pthread_mutex_unlock(&team->mutex);
}

/* The part of `total` that a member works on: whole units of `grain`, as equal as possible. */
typedef struct {
    ptrdiff_t begin, end;
} Share;

static Share share(const Member *member, ptrdiff_t total, ptrdiff_t grain)
{
    const ptrdiff_t pieces = (total + grain - 1) / grain, threads = member->team->threads;
    const ptrdiff_t begin = pieces * member->number / threads * grain;
    const ptrdiff_t end = pieces * (member->number + 1) / threads * grain;
    return (Share){least(begin, total), least(end, total)};
}

/* Philox 4x32-10 (Salmon et al. 2011): four random words, a function of key and counter. */
static inline void philox(uint32_t word[4], uint32_t key0, uint32_t key1)
{
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * word[0], b = (uint64_t)0xCD9E8D57u * word[2];
        const uint32_t w0 = (uint32_t)(b >> 32) ^ word[1] ^ key0;
        const uint32_t w2 = (uint32_t)(a >> 32) ^ word[3] ^ key1;
        word[1] = (uint32_t)b;
        word[3] = (uint32_t)a;
        word[0] = w0;
        word[2] = w2;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

#if defined(NARROW) && defined(__FMA__) /* for tests: vectors as narrow as those of Arm */
#include <immintrin.h>
enum { VECTOR_BYTES = 16, MOST_ROWS = 6, MOST_VECTORS = 3 };
#define FMA_32(a, b, c) ((Vector)_mm_fmadd_ps((__m128)(a), (__m128)(b), (__m128)(c)))
#define FMA_64(a, b, c) ((Vector)_mm_fmadd_pd((__m128d)(a), (__m128d)(b), (__m128d)(c)))
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#elif defined(__AVX512F__)
#include <immintrin.h>
enum { VECTOR_BYTES = 64, MOST_ROWS = 8, MOST_VECTORS = 3 };
#define FMA_32(a, b, c) ((Vector)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define FMA_64(a, b, c) ((Vector)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#elif defined(__AVX2__) && defined(__FMA__)
#include <immintrin.h>
enum { VECTOR_BYTES = 32, MOST_ROWS = 6, MOST_VECTORS = 2 };
#define FMA_32(a, b, c) ((Vector)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define FMA_64(a, b, c) ((Vector)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#elif defined(__aarch64__)
#include <arm_neon.h>
enum { VECTOR_BYTES = 16, MOST_ROWS = 6, MOST_VECTORS = 3 };
#define FMA_32(a, b, c) ((Vector)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define FMA_64(a, b, c) ((Vector)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)))
#define EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#else
#error "the engine needs AVX2 with FMA, AVX-512, or NEON"
#endif

/* Blocks of a product: DEPTH times a tile's columns stay in the first cache, GROUP columns of the
   right factor in the second. */
enum { DEPTH = 256, GROUP = 128 };

/* From this width on, a first layer reads bytes converted beforehand. */
enum { WIDE = 128 };

#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)

#define SINGLE
#define REAL float
#define NAME(x) x##_32
#define FMA FMA_32
#define ROOT __builtin_sqrtf
#include "network.h"
#undef SINGLE
#undef REAL
#undef NAME
#undef FMA
#undef ROOT

#define REAL double
#define NAME(x) x##_64
#define FMA FMA_64
#define ROOT __builtin_sqrt
#include "network.h"

/* The interface. `bits` is 32 or 64, the size of all floats of a model. */

int64_t scratch_bytes(int64_t bits, const Network *network, int64_t batch)
{
    return bits == 32 ? scratch_bytes_32(network, batch) : scratch_bytes_64(network, batch);
}

void train(int64_t bits, const Network *network, const Optimizer *optimizer, const Plan *plan,
           Model *model, const Block *block, const Member *member, void *scratch)
{
    if (bits == 32)
        train_32(network, optimizer, plan, model, block, member, scratch);
    else
        train_64(network, optimizer, plan, model, block, member, scratch);
}

/* Logits (count, classes) of samples in their order. */
void logits(int64_t bits, const Network *network, const void *weights, const void *features,
            int64_t source, int64_t count, void *out, void *scratch)
{
    if (bits == 32)
        logits_32(network, weights, features, source, count, out, scratch);
    else
        logits_64(network, weights, features, source, count, out, scratch);
}

/* The sum of the losses of `count` samples, and the number of correct predictions. */
void evaluate(int64_t bits, const Network *network, const void *weights, const void *features,
              int64_t source, const int64_t *labels, int64_t count, double *loss, int64_t *correct,
              void *scratch)
{
    if (bits == 32)
        evaluate_32(network, weights, features, source, labels, count, loss, correct, scratch);
    else
        evaluate_64(network, weights, features, source, labels, count, loss, correct, scratch);
}

/* The sizes of all structures, so that a caller can compare them with its own. */
void sizes(int64_t *out)
{
    const int64_t all[] = {sizeof(Layer), sizeof(Network), sizeof(Optimizer), sizeof(Plan),
                           sizeof(Model), sizeof(Block), sizeof(Member), sizeof(Team)};
    memcpy(out, all, sizeof all);
}

void open_team(Team *team, int64_t threads)
{
    team->threads = threads;
    pthread_mutex_init(&team->mutex, 0);
    pthread_cond_init(&team->condition, 0);
    atomic_init(&team->arrived, 0);
    atomic_init(&team->round, 0);
}
