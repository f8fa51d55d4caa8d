/* What the parts of the engine share: the structures of its interface, and how threads divide work. */
#pragma once
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { RELU, TANH, GELU };
enum { NO_NORM, BATCH_NORM, LAYER_NORM };
enum { SGD, ADAM, ADAMW };
enum { CROSS_ENTROPY, SQUARED_ERROR, HUBER, BINARY_CROSS_ENTROPY, QUANTILE };
enum { BYTES, FLOATS, DOUBLES };
enum { LINE = 64 }; /* bytes of a line of the cache */

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
    double input_dropout, noise; /* noise: a standard deviation */
    double max_norm; /* 0: none */
    double norm_eps, norm_momentum;
    int64_t size; /* of a flat vector: parameters, then running statistics */
    int64_t loss;
    double delta; /* of HUBER: where the square ends; of QUANTILE: the lowest of three, the others are
                     1/2 and 1 - delta */
} Network;

typedef struct {
    int64_t kind, nesterov;
    double weight_decay, momentum, beta1, beta2, eps;
} Optimizer;

/* How batches become steps. Batch k of a block follows `first` batches of its epoch. */
typedef struct {
    int64_t batches_per_epoch, accumulate;
    double clip, smoothing, ema_decay; /* 0: none */
    const double *class_weights;       /* of the losses; 0: all are 1 */
} Plan;

/* How the processes of a run on this machine sum their gradients: in memory that they share. Each has
   every `ranks`-th sample of a batch, from number `rank` on. */
typedef struct {
    int64_t ranks, rank;
    void *slots;               /* (2, ranks, size): gradients of even and of odd rounds */
    atomic_llong *written;     /* the round of each process, every eighth number */
    const atomic_int *ended;   /* whether another process has ended */
    int64_t round, failed;
} Exchange;

/* Flat vectors of one model, aligned to 64 bytes. `first` and `second` are the moments of the
   optimizer. All but `weights` may be 0 if nothing needs them. */
typedef struct {
    void *weights, *gradient, *first, *second, *average;
    Exchange *exchange; /* 0: this process trains alone */
    int64_t seed;  /* of dropout and noise */
    int64_t steps; /* that the optimizer has taken */
} Model;

/* Sample i of batch k is features[rows[k * batch + i]]; without `rows`, features[k * batch + i].
   Labels are indexed in the same way: int64 classes (N) of CROSS_ENTROPY, else float32 targets
   (N, outputs); of QUANTILE each target has three outputs. rates[k] is the learning rate of the step after batch k. Writes losses[k], the mean
   of a batch, weighted as Plan says, and scores[k]: the number of correct classes or labels; of
   SQUARED_ERROR, HUBER and QUANTILE the sum of the squared errors, of the last those of the medians. With weights, both are weighted means, and
   the second is multiplied by the number of samples. */
typedef struct {
    const void *features;
    int64_t source; /* BYTES or FLOATS; DOUBLES only for models of 64 bits */
    const int64_t *rows;
    const void *labels;
    const float *weights; /* of the samples' losses and scores; 0: all are 1 */
    int64_t batch, epoch, first;
    int64_t begin, end; /* the batches of the block that a call trains */
    const double *rates;
    double *losses, *scores;
} Block;

/* Samples to evaluate: features (count, inputs), and labels as of a block, or 0 where no loss is
   needed. */
typedef struct {
    const void *features;
    int64_t source;
    const void *labels;
    const float *weights;
    int64_t count;
} Samples;

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

static inline ptrdiff_t bytes_of(int64_t source) { return source == BYTES ? 1 : source == FLOATS ? 4 : 8; }

/* The part of `total` that a member works on: whole units of `grain`, as equal as possible. */
typedef struct {
    ptrdiff_t begin, end;
} Share;

static inline Share share(const Member *member, ptrdiff_t total, ptrdiff_t grain)
{
    const ptrdiff_t pieces = (total + grain - 1) / grain, threads = member->team->threads;
    const ptrdiff_t begin = pieces * member->number / threads * grain;
    const ptrdiff_t end = pieces * (member->number + 1) / threads * grain;
    return (Share){least(begin, total), least(end, total)};
}

void meet(const Member *member);
void meet_ranks(Exchange *exchange);
