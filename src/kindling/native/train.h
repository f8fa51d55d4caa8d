/* The steps of a block, and the interface for one precision.

   A step has two phases, so that threads meet twice: forward and backward, divided by samples; and
   the update of the weights, divided by the inputs of each layer. Batch norm, clipping, max-norm and
   averages look at whole batches or layers, and threads meet once more for each. */
#pragma once
#include "network.h"

/* --- update ----------------------------------------------------------------------------------- */

typedef struct {
    REAL *weights, *first, *second;
    const Optimizer *settings;
    REAL rate, decay, momentum, beta1, beta2, eps, step_size, inverse_correction, clip;
} Update;

/* One step of the numbers from `begin` to `end`, by the formulas of torch.optim. `g` are their
   gradients. */
static void optimize(const Update *u, const REAL *restrict g, ptrdiff_t begin, ptrdiff_t end)
{
    REAL *restrict w = u->weights;
    REAL *restrict first = u->first, *restrict second = u->second;
    const REAL rate = u->rate, decay = u->decay, momentum = u->momentum, clip = u->clip;
    if (u->settings->kind == SGD) {
        for (ptrdiff_t i = begin; i < end; i++) {
            const REAL gradient = g[i - begin] * clip + decay * w[i];
            REAL step = gradient;
            if (first) {
                first[i] = momentum * first[i] + gradient;
                step = u->settings->nesterov ? gradient + momentum * first[i] : first[i];
            }
            w[i] -= rate * step;
        }
        return;
    }
    const REAL rest1 = 1 - u->beta1, rest2 = 1 - u->beta2;
    const REAL shrink = u->settings->kind == ADAMW ? 1 - rate * decay : 1;
    const REAL coupled = u->settings->kind == ADAM ? decay : 0;
    for (ptrdiff_t i = begin; i < end; i++) {
        const REAL gradient = g[i - begin] * clip + coupled * w[i];
        first[i] += (gradient - first[i]) * rest1;
        second[i] = second[i] * u->beta2 + gradient * gradient * rest2;
        const REAL root = ROOT(second[i]) * u->inverse_correction + u->eps;
        w[i] = w[i] * shrink - u->step_size * (first[i] / root);
    }
}

static double power(double base, int64_t exponent)
{
    double result = 1;
    for (; exponent; exponent /= 2, base *= base)
        if (exponent % 2) result *= base;
    return result;
}

/* Calls DO(begin, end, row) for each range of the flat vectors that this member updates: rows of
   weights, and parts of biases and norms. */
#define EACH_RANGE(DO) \
    for (ptrdiff_t l = 0, row_ = 0; l < network->depth; l++) { \
        const Layer *layer = &network->layers[l]; \
        const Share inputs = share(member, layer->inputs, 1); \
        for (ptrdiff_t i = inputs.begin; i < inputs.end; i++) \
            DO(layer->weight + i * layer->stride, layer->weight + (i + 1) * layer->stride, row_ + i); \
        row_ += layer->inputs; \
        EACH_VECTOR(DO, row_) \
        row_ += 3; \
    }

/* The same for the biases and norms of a layer, whose rows begin at `first`. */
#define EACH_VECTOR(DO, first) \
    const int64_t others_[] = {layer->bias, layer->scale, layer->shift}; \
    for (int o = 0; o < 3; o++) \
        if (others_[o] >= 0 && member->number == 0) \
            DO(others_[o], others_[o] + layer->stride, (first) + o);

/* Adds the gradients of the norm's parameters and of the bias to the numbers at `to`. */
static void accumulate_vectors(const Work *work, ptrdiff_t l, REAL *to, int overwrite)
{
    const Layer *layer = &work->network->layers[l];
    const LayerWork *own = &work->layers[l];
    const ptrdiff_t stride = layer->stride;
    for (ptrdiff_t u = 0; u < stride; u += LANES) {
        if (layer->bias >= 0) {
            REAL *place = to + layer->bias + u;
            Vector sum = AT(overwrite ? work->zeros : place);
            for (ptrdiff_t b = 0; b < work->batch; b++) sum += AT(own->delta + b * stride + u);
            AT(place) = sum;
        }
        if (layer->scale >= 0) {
            REAL *scale = to + layer->scale + u, *shift = to + layer->shift + u;
            Vector product = AT(overwrite ? work->zeros : scale);
            Vector sum = AT(overwrite ? work->zeros : shift);
            for (ptrdiff_t b = 0; b < work->batch; b++) {
                const ptrdiff_t place = b * stride + u;
                const Vector g = AT(own->norm_delta + place);
                product = FMA(g, noisy(own, AT(own->normalised + place), place), product);
                sum += g;
            }
            AT(scale) = product;
            AT(shift) = sum;
        }
    }
}

/* Adds the gradients of the weights of these inputs to the rows at `to`. */
static void accumulate_weights(const Work *work, ptrdiff_t l, int64_t source, Share inputs,
                               int overwrite, REAL *to)
{
    const Layer *layer = &work->network->layers[l];
    const ptrdiff_t columns = rounded(layer->units, LANES);
#define ARGUMENTS(a, kind) \
    inputs.begin, inputs.end, columns, work->batch, (const kind *const *)(a), work->layers[l].delta, \
        layer->stride, work->zeros, overwrite, to - inputs.begin * layer->stride, layer->stride
    if (l > 0)
        accumulate_real(ARGUMENTS(work->layers[l - 1].rows, REAL));
    else if (reads_real(work, source))
        accumulate_real(ARGUMENTS(work->inputs, REAL));
    else if (source == BYTES)
        accumulate_bytes(ARGUMENTS(work->inputs, uint8_t));
    else
        accumulate_floats(ARGUMENTS(work->inputs, float));
#undef ARGUMENTS
}

/* One step of the optimizer for the weights of these inputs. Their gradients take the room of the first
   of these rows in `gradient`, and so never leave the cache. */
static void descend(const Work *work, ptrdiff_t l, int64_t source, Share inputs, REAL *gradient,
                    const Update *update)
{
    enum { SOME = 3 * MOST_ROWS };
    const ptrdiff_t stride = work->network->layers[l].stride, weight = work->network->layers[l].weight;
    REAL *room = gradient + weight + inputs.begin * stride;
    for (ptrdiff_t i = inputs.begin; i < inputs.end; i += SOME) {
        const Share some = {i, least(i + SOME, inputs.end)};
        accumulate_weights(work, l, source, some, 1, room);
        optimize(update, room, weight + i * stride, weight + some.end * stride);
    }
}

/* Bounds the 2-norm of the weights into each hidden unit. */
static void constrain(const Network *network, REAL *weights, const Member *member)
{
    const REAL bound = (REAL)network->max_norm;
    for (ptrdiff_t l = 0; l + 1 < network->depth; l++) {
        const Layer *layer = &network->layers[l];
        const Share units = share(member, layer->stride, PAD);
        for (ptrdiff_t u = units.begin; u < units.end; u += LANES) {
            REAL *column = weights + layer->weight + u;
            Vector norm = BROADCAST(0);
            for (ptrdiff_t i = 0; i < layer->inputs; i++) {
                const Vector w = AT(column + i * layer->stride);
                norm = FMA(w, w, norm);
            }
            EACH(j, LANES) norm[j] = ROOT(norm[j]);
            const Vector factor = bound / SELECT((Integers)(norm < bound), BROADCAST(bound), norm);
            for (ptrdiff_t i = 0; i < layer->inputs; i++) AT(column + i * layer->stride) *= factor;
        }
    }
}

/* What a step of the optimizer needs, for a batch that completes step number `taken`, from 1. */
static Update update_of(const Optimizer *settings, const Model *model, double rate, int64_t taken)
{
    Update u = {.weights = model->weights, .first = model->first, .second = model->second,
                .settings = settings, .clip = 1};
    u.rate = (REAL)rate;
    u.decay = (REAL)settings->weight_decay;
    u.momentum = (REAL)settings->momentum;
    u.beta1 = (REAL)settings->beta1;
    u.beta2 = (REAL)settings->beta2;
    u.eps = (REAL)settings->eps;
    if (settings->kind != SGD) {
        u.step_size = (REAL)(rate / (1 - power(settings->beta1, taken)));
        u.inverse_correction = (REAL)(1 / __builtin_sqrt(1 - power(settings->beta2, taken)));
    }
    return u;
}

/* The factor by which gradients are multiplied, so that their joint 2-norm is at most `bound`. */
static REAL clipped(const Work *work, const REAL *gradient, double bound, const Member *member)
{
    const Network *network = work->network;
    ptrdiff_t rows = 0;
    for (ptrdiff_t l = 0; l < network->depth; l++) rows += network->layers[l].inputs + 3;
    if (member->number == 0) memset(work->squares, 0, rows * sizeof(double));
    meet(member);
#define SQUARES(begin, end, row) \
    { \
        double parts[PAD] = {0}, sum = 0; \
        for (ptrdiff_t i_ = (begin); i_ < (end); i_++) \
            parts[(i_ - (begin)) % PAD] += (double)gradient[i_] * gradient[i_]; \
        for (int i_ = 0; i_ < PAD; i_++) sum += parts[i_]; \
        work->squares[row] = sum; \
    }
    EACH_RANGE(SQUARES)
    meet(member);
    double norm = 0;
    for (ptrdiff_t row = 0; row < rows; row++) norm += work->squares[row];
    const double factor = bound / (__builtin_sqrt(norm) + 1e-6);
    return factor < 1 ? (REAL)factor : 1; /* of NaN 1: the loss has shown it already */
}

static int64_t row_of(const Block *block, int64_t k, int64_t b)
{
    return block->rows ? block->rows[k * block->batch + b] : k * block->batch + b;
}

/* What the sum of the losses of batch k is divided by: the weights of its samples. */
static double batch_weight(const Plan *plan, const Block *block, int64_t k)
{
    if (!plan->class_weights && !block->weights) return (double)block->batch;
    double sum = 0;
    for (int64_t b = 0; b < block->batch; b++) {
        const int64_t row = row_of(block, k, b);
        const double own = block->weights ? block->weights[row] : 1;
        sum += own * (plan->class_weights ? plan->class_weights[((const int64_t *)block->labels)[row]] : 1);
    }
    return sum ? sum : 1;
}

/* Makes the gradient the sum of those of all processes, each sum in the order of the ranks. Returns 0 if
   one has ended before. */
static int exchanged(const Network *network, REAL *gradient, Exchange *exchange, const Member *member)
{
    REAL *slots = (REAL *)exchange->slots + (exchange->round & 1) * exchange->ranks * network->size;
    REAL *own = slots + exchange->rank * network->size;
#define COPY(begin, end, row) memcpy(own + (begin), gradient + (begin), ((end) - (begin)) * sizeof(REAL));
    EACH_RANGE(COPY)
    meet(member);
    if (member->number == 0) meet_ranks(exchange);
    meet(member);
    if (exchange->failed) return 0;
#define SUM(begin, end, row) \
    for (ptrdiff_t i_ = (begin); i_ < (end); i_++) { \
        REAL sum_ = slots[i_]; \
        for (int64_t r_ = 1; r_ < exchange->ranks; r_++) sum_ += slots[r_ * network->size + i_]; \
        gradient[i_] = sum_; \
    }
    EACH_RANGE(SUM)
    return 1;
}

/* --- the interface ---------------------------------------------------------------------------- */

/* Trains a model on the batches of a block from `begin` to `end`. Every member of a team calls it.
   Returns 0 if another process of the run has ended, else 1. */
int64_t EXPORTED(train)(const Network *network, const Optimizer *optimizer, const Plan *plan,
                        Model *model, const Block *block, const Member *member, void *scratch)
{
    Work *work = scratch;
    REAL *weights = model->weights, *gradient = model->gradient;
    Exchange *exchange = model->exchange;
    const ptrdiff_t batch = block->batch, inputs = network->layers[0].inputs;
    const ptrdiff_t width = inputs * bytes_of(block->source);
    const int64_t steps_per_epoch = (plan->batches_per_epoch + plan->accumulate - 1) / plan->accumulate;
    const Share samples = share(member, batch, PAD);
    const uint64_t mode = flush_subnormals();
    /* Whether each row of weights may take its step as soon as its gradients are known. */
    const int at_once = gradient && plan->accumulate == 1 && plan->clip == 0 && !exchange;
    int64_t taken = model->steps;
    meet(member); /* nobody uses the scratch any more */
    if (member->number == 0) {
        prepare(network, weights, batch, scratch);
        if (block->weights) work->weights = work->room;
        if (exchange) {
            work->ranks = exchange->ranks;
            work->rank = exchange->rank;
        }
    }
    meet(member);
    for (int64_t k = block->begin; k < block->end; k++) {
        const int64_t number = block->first + k; /* in the epoch */
        const int begins = number % plan->accumulate == 0;
        const int completes =
            (number + 1) % plan->accumulate == 0 || number + 1 == plan->batches_per_epoch;
        const uint32_t drawn = (uint32_t)(block->epoch * plan->batches_per_epoch + number);
        for (ptrdiff_t b = samples.begin; b < samples.end; b++) {
            const int64_t row = row_of(block, k, b);
            work->inputs[b] = (const char *)block->features + row * width;
            take_labels(work, b, block->labels, block->weights, row);
            prepare_input(work, b, block->source, model->seed, drawn);
        }
        forward(work, weights, block->source, member, 1, model->seed, drawn);
        const double divisor = batch_weight(plan, block, k);
        const double share_of_step =
            1.0 / (divisor * (double)plan->accumulate * (double)work->ranks);
        const REAL factor = (REAL)(gradient ? share_of_step : -block->rates[k] * share_of_step);
        judge(work, plan->smoothing, plan->class_weights, factor, samples);
        backward(work, weights, member);
        meet(member);
        /* Without a gradient vector, the gradients times the negative rate go into the weights. */
        REAL *to = gradient ? gradient : weights;
        const int overwrite = gradient && begins;
#define OPTIMIZE(begin, end, row) optimize(&update, gradient + (begin), begin, end);
        Update update = {0};
        if (gradient) update = update_of(optimizer, model, block->rates[k], taken + 1);
        for (ptrdiff_t l = 0; l < network->depth; l++) {
            const Layer *layer = &network->layers[l];
            const Share own = share(member, layer->inputs, 1);
            if (member->number == 0) accumulate_vectors(work, l, to, overwrite);
            if (at_once) {
                descend(work, l, block->source, own, gradient, &update);
                EACH_VECTOR(OPTIMIZE, 0)
            } else {
                REAL *first = to + layer->weight + own.begin * layer->stride;
                accumulate_weights(work, l, block->source, own, overwrite, first);
            }
        }
        if (member->number == 0) {
            double loss = 0, score = 0, sum = 0;
            for (ptrdiff_t b = 0; b < batch; b++) {
                loss += work->loss[b];
                score += work->scores[b];
                if (work->weights) sum += work->weights[b];
            }
            block->losses[k] = loss / divisor;
            block->scores[k] = sum ? score * (double)batch / sum : score;
        }
        if (completes) {
            taken++;
            if (exchange && !exchanged(network, gradient, exchange, member)) {
                restore_subnormals(mode);
                return 0;
            }
            if (plan->clip > 0) update.clip = clipped(work, gradient, plan->clip, member);
            if (gradient && !at_once) EACH_RANGE(OPTIMIZE)
            if (network->max_norm > 0) {
                meet(member);
                constrain(network, weights, member);
            }
            if (plan->ema_decay > 0) {
                const double step = (double)(block->epoch * steps_per_epoch + number / plan->accumulate);
                const double grown = (1 + step) / (10 + step);
                const REAL rest = (REAL)(1 - (plan->ema_decay < grown ? plan->ema_decay : grown));
                const Share own = share(member, network->size, PAD);
                REAL *average = model->average;
                meet(member);
                for (ptrdiff_t i = own.begin; i < own.end; i++)
                    average[i] += (weights[i] - average[i]) * rest;
            }
        }
        meet(member);
    }
    if (member->number == 0) model->steps = taken;
    restore_subnormals(mode);
    return 1;
}

static const Member ALONE = {&(Team){.threads = 1}, 0};

static Work *evaluated(const Network *network, const REAL *weights, const Samples *samples, void *scratch)
{
    Work *work = prepare(network, weights, samples->count, scratch);
    const ptrdiff_t width = network->layers[0].inputs * bytes_of(samples->source);
    work->converted = 0;
    for (ptrdiff_t l = 0; l < network->depth; l++) work->layers[l].noise = 0;
    for (int64_t i = 0; i < samples->count; i++)
        work->inputs[i] = (const char *)samples->features + i * width;
    /* When not training, nothing writes to the weights. */
    forward(work, (REAL *)weights, samples->source, &ALONE, 0, 0, 0);
    return work;
}

static void copy_logits(const Work *work, const Network *network, int64_t count, REAL *out)
{
    const Layer *last = &network->layers[network->depth - 1];
    const REAL *found = work->layers[network->depth - 1].output;
    for (int64_t i = 0; i < count; i++)
        memcpy(out + i * last->units, found + i * last->stride, last->units * sizeof(REAL));
}

/* Logits (count, outputs). */
void EXPORTED(logits)(const Network *network, const void *weights, const Samples *samples, void *out,
                      void *scratch)
{
    copy_logits(evaluated(network, weights, samples, scratch), network, samples->count, out);
}

/* The sums of the losses and of the scores; the logits (count, outputs) unless `out` is 0. */
void EXPORTED(evaluate)(const Network *network, const void *weights, const Samples *samples,
                        double *loss, double *score, void *out, void *scratch)
{
    Work *work = evaluated(network, weights, samples, scratch);
    if (out) copy_logits(work, network, samples->count, out);
    if (samples->weights) work->weights = work->room;
    for (int64_t i = 0; i < samples->count; i++)
        take_labels(work, i, samples->labels, samples->weights, i);
    judge(work, 0, 0, 1, (Share){0, samples->count});
    *loss = 0;
    *score = 0;
    for (int64_t i = 0; i < samples->count; i++) {
        *loss += work->loss[i];
        *score += work->scores[i];
    }
}
