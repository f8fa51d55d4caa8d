/* Trains and evaluates multilayer perceptrons on a CPU: a call trains one model on a whole block of
   batches, without memory of its own and without other libraries.

   A result depends on the model, its data and its settings alone: every sum has one order, products
   and sums are fused where the source says so and nowhere else, and exp, log, sin, cos, tanh and erf
   are computed here. Threads, blocks, neighbours, vector widths and compilers change no bit.

   Weights lie input-major, weight[input * stride + unit], so that a product reads whole vectors of
   units. Columns from `units` to `stride` are zero and stay zero. */
#include <sched.h>
#include <time.h>

#include "engine.h"

static void pause_briefly(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

void meet(const Member *member)
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
        pause_briefly();
    }
    pthread_mutex_lock(&team->mutex);
    while (atomic_load_explicit(&team->round, memory_order_acquire) == round)
        pthread_cond_wait(&team->condition, &team->mutex);
    pthread_mutex_unlock(&team->mutex);
}

/* Tells the other processes that this one has written its gradient, and waits for theirs. Fails if one
   of them ends before. */
void meet_ranks(Exchange *exchange)
{
    enum { EVERY = 8, SPINS = 2000, YIELDS = 2100 };
    const long long round = exchange->round + 1;
    atomic_store_explicit(exchange->written + exchange->rank * EVERY, round, memory_order_release);
    for (int64_t rank = 0; rank < exchange->ranks; rank++) {
        const atomic_llong *theirs = exchange->written + rank * EVERY;
        for (int waited = 0; atomic_load_explicit(theirs, memory_order_acquire) < round;) {
            if (waited < SPINS) {
                pause_briefly();
            } else if (atomic_load(exchange->ended) && atomic_load(theirs) < round) {
                exchange->failed = 1;
                return;
            } else if (waited < YIELDS) {
                sched_yield();
            } else {
                nanosleep(&(struct timespec){.tv_nsec = 50000}, 0);
            }
            waited += waited < YIELDS;
        }
    }
    exchange->round = round;
}

/* The sizes of all structures, so that a caller can compare them with its own. */
void sizes(int64_t *out)
{
    const int64_t all[] = {sizeof(Layer), sizeof(Network), sizeof(Optimizer), sizeof(Plan),
                           sizeof(Exchange), sizeof(Model), sizeof(Block), sizeof(Samples), sizeof(Member), sizeof(Team)};
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
