/* Forward and backward through all layers. */
#pragma once
#include "layers.h"

static void transpose(const REAL *from, ptrdiff_t from_stride, ptrdiff_t rows,
                            ptrdiff_t columns, REAL *to, ptrdiff_t to_stride)
{
    enum { EDGE = 16 };
    for (ptrdiff_t i0 = 0; i0 < rows; i0 += EDGE)
        for (ptrdiff_t j0 = 0; j0 < columns; j0 += EDGE)
            for (ptrdiff_t j = j0; j < least(j0 + EDGE, columns); j++)
                for (ptrdiff_t i = i0; i < least(i0 + EDGE, rows); i++)
                    to[j * to_stride + i] = from[i * from_stride + j];
}

static void linear(const Work *work, ptrdiff_t l, const REAL *weights, int64_t source, Share samples)
{
    const Layer *layer = &work->network->layers[l];
    const ptrdiff_t rows = samples.end - samples.begin, columns = rounded(layer->units, LANES);
    const REAL *weight = weights + layer->weight;
    const REAL *bias = layer->bias < 0 ? work->zeros : weights + layer->bias;
    REAL *output = work->layers[l].output + samples.begin * layer->stride;
#define ARGUMENTS(a, kind) \
    rows, columns, layer->inputs, (const kind *const *)(a) + samples.begin, weight, layer->stride, \
        bias, output, layer->stride
    if (l > 0)
        multiply_real(ARGUMENTS(work->layers[l - 1].rows, REAL));
    else if (reads_real(work, source))
        multiply_real(ARGUMENTS(work->inputs, REAL));
    else if (source == BYTES)
        multiply_bytes(ARGUMENTS(work->inputs, uint8_t));
    else
        multiply_floats(ARGUMENTS(work->inputs, float));
#undef ARGUMENTS
    for (ptrdiff_t b = samples.begin; columns < layer->stride && b < samples.end; b++)
        memset(work->layers[l].output + b * layer->stride + columns, 0,
               (layer->stride - columns) * sizeof(REAL));
}

/* All layers, for the samples of this member. When not training, `seed` and `number` have no use. */
static void forward(const Work *work, REAL *weights, int64_t source, const Member *member,
                          int training, int64_t seed, uint32_t number)
{
    const Network *network = work->network;
    const Share samples = share(member, work->batch, PAD);
    for (ptrdiff_t l = 0; l < network->depth; l++) {
        const Layer *layer = &network->layers[l];
        linear(work, l, weights, source, samples);
        if (training && network->noise > 0) draw_noise(work, l, samples, seed, number);
        if (l + 1 == network->depth) return;
        if (network->norm == BATCH_NORM) {
            meet(member);
            batch_norm(work, l, weights, share(member, layer->stride, PAD), training);
            meet(member);
        } else if (network->norm == LAYER_NORM) {
            layer_norm(work, l, weights, samples);
        }
        REAL *mask = work->layers[l].mask;
        for (ptrdiff_t b = samples.begin; mask && b < samples.end; b++) {
            REAL *row = mask + b * layer->stride;
            for (ptrdiff_t u = 0; u < layer->stride; u++) row[u] = 1;
            if (training)
                draw_mask(row, 0, layer->units, layer->dropout, seed, number, stream(work, b),
                          (uint32_t)l + 1);
        }
        activate(work, l, samples);
    }
}

/* The outputs of samples, transposed in `right`; 0 after the last sample. */
static void transpose_outputs(const Work *work, Share samples)
{
    const Layer *layer = &work->network->layers[work->network->depth - 1];
    const LayerWork *own = &work->layers[work->network->depth - 1];
    const ptrdiff_t width = work->width, stride = layer->stride;
    transpose(own->output + samples.begin * stride, stride, samples.end - samples.begin, layer->units,
              work->right + samples.begin, width);
    for (ptrdiff_t c = 0; c < layer->units; c++)
        for (ptrdiff_t b = samples.end; b < rounded(samples.end, PAD); b++)
            work->right[c * width + b] = 0;
}

/* The gradients of the outputs, from `right` into the rows of `delta`. */
static void transpose_delta(const Work *work, Share samples)
{
    const Layer *layer = &work->network->layers[work->network->depth - 1];
    const LayerWork *own = &work->layers[work->network->depth - 1];
    const ptrdiff_t stride = layer->stride;
    transpose(work->right + samples.begin, work->width, layer->units, samples.end - samples.begin,
              own->delta + samples.begin * stride, stride);
    for (ptrdiff_t b = samples.begin; b < samples.end; b++)
        for (ptrdiff_t c = layer->units; c < stride; c++) own->delta[b * stride + c] = 0;
}

/* The weights of the samples from b on; 1 after the last one. */
static Vector weights_of(const Work *work, ptrdiff_t b, ptrdiff_t end)
{
    Vector found = BROADCAST(1);
    for (ptrdiff_t i = 0; i < LANES && b + i < end; i++) found[i] = work->weights[b + i];
    return found;
}

/* Losses, scores, and gradients of the logits: the latter by rows in `delta` of the last layer, and
   transposed in `right`. Each target is multiplied by the weight of its class, without
   `weights` by 1. So the gradient is (total · softmax - target) · factor, with a sample's sum of
   targets as total. */
static void cross_entropy(const Work *work, double smoothing, const double *weights, REAL factor,
                          Share samples)
{
#define WEIGHT(class) (weights ? (REAL)weights[class] : 1)
    const Layer *layer = &work->network->layers[work->network->depth - 1];
    const LayerWork *own = &work->layers[work->network->depth - 1];
    const ptrdiff_t classes = layer->units, width = work->width, stride = layer->stride;
    REAL *z = work->right;
    const ptrdiff_t end = rounded(samples.end, PAD);
    transpose_outputs(work, samples);
    const REAL spread = (REAL)(smoothing / (double)classes), kept = (REAL)(1 - smoothing);
    const REAL off = spread * factor, on = kept * factor;
    REAL spread_total = 0; /* what smoothing adds to the targets of each sample */
    for (ptrdiff_t c = 0; weights && c < classes; c++) spread_total += spread * WEIGHT(c);
    for (ptrdiff_t b = samples.begin; b < end; b += LANES) {
        Vector highest = AT(z + b), sum = BROADCAST(0), below_total = BROADCAST(0);
        Vector total = BROADCAST(1); /* exactly 1 without weights */
        for (ptrdiff_t i = 0; weights && i < LANES && b + i < samples.end; i++)
            total[i] = kept * WEIGHT(work->labels[b + i]) + spread_total;
        for (ptrdiff_t c = 1; c < classes; c++) {
            const Vector x = AT(z + c * width + b);
            highest = SELECT((Integers)(x > highest), x, highest);
        }
        for (ptrdiff_t c = 0; c < classes; c++) {
            const Vector below = AT(z + c * width + b) - highest;
            const Vector e = exponential(below);
            AT(z + c * width + b) = e;
            sum += e;
            below_total += below * WEIGHT(c);
        }
        Vector below_targets = BROADCAST(off);
        if (work->weights) {
            const Vector own_weights = weights_of(work, b, samples.end);
            total *= own_weights;
            below_total *= own_weights;
            below_targets *= own_weights;
        }
        Vector loss = logarithm(sum) * total;
        if (smoothing > 0) loss -= below_total * spread;
        AT(work->loss + b) = loss;
        const Vector scale = factor / sum * total;
        for (ptrdiff_t c = 0; c < classes; c++)
            AT(z + c * width + b) = AT(z + c * width + b) * scale - below_targets * WEIGHT(c);
        EACH(i, LANES) {
            if (b + i >= samples.end) break;
            const REAL *row = own->output + (b + i) * stride;
            const ptrdiff_t label = work->labels[b + i];
            const REAL own_weight = work->weights ? work->weights[b + i] : 1;
            work->loss[b + i] -= kept * WEIGHT(label) * (row[label] - highest[i]) * own_weight;
            z[label * width + b + i] -= on * WEIGHT(label) * own_weight;
            ptrdiff_t first = 0; /* the first of the highest logits */
            while (first < label && row[first] < row[label]) first++;
            work->scores[b + i] = (first == label && row[label] == highest[i]) * own_weight;
        }
    }
    transpose_delta(work, samples);
#undef WEIGHT
}

static inline ptrdiff_t outputs_of_target(const Network *network)
{
    return network->loss == QUANTILE ? 3 : 1;
}

/* The same of numbers: means over the outputs of squared errors, of Huber's loss, of binary cross
   entropies, or of the pinball loss. All but the last have one residual, activation(outputs) -
   targets, which Huber's bounds. */
static void errors(const Work *work, REAL factor, Share samples)
{
    const Network *network = work->network;
    const Layer *layer = &network->layers[network->depth - 1];
    const ptrdiff_t outputs = layer->units, width = work->width, end = rounded(samples.end, PAD);
    const int64_t kind = network->loss;
    const ptrdiff_t each = outputs_of_target(network);
    const REAL share = 1 / (REAL)outputs, delta = (REAL)network->delta;
    const REAL scale = (kind == SQUARED_ERROR ? 2 : 1) * share * factor;
    const Vector zero = BROADCAST(0), one = BROADCAST(1), bound = BROADCAST(delta);
    transpose_outputs(work, samples);
    for (ptrdiff_t b = samples.begin; b < end; b += LANES) {
        const ptrdiff_t count = least(LANES, samples.end - b);
        Vector total = zero, score = zero, own_weights = one;
        if (work->weights) own_weights = weights_of(work, b, samples.end);
        for (ptrdiff_t c = 0; c < outputs; c++) {
            const Vector z = AT(work->right + c * width + b);
            Vector y = zero, residual, loss;
            for (ptrdiff_t i = 0; i < count; i++) y[i] = (REAL)work->targets[b + i][c / each];
            if (kind == BINARY_CROSS_ENTROPY) {
                /* max(z, 0) - z y + log(1 + exp(-|z|)), and exp(-|z|) / (1 + exp(-|z|)) or the rest. */
                const Vector e = exponential(-absolute(z)), above = one / (one + e);
                residual = SELECT((Integers)(z < zero), e * above, above) - y;
                loss = SELECT((Integers)(z > zero), z, zero) - z * y + logarithm(one + e);
                for (ptrdiff_t i = 0; i < count; i++) score[i] += (z[i] > 0) == (y[i] > (REAL)0.5);
            } else if (kind == QUANTILE) {
                const Vector error = z - y;
                const REAL quantile = c % 3 == 0 ? delta : c % 3 == 1 ? (REAL)0.5 : 1 - delta;
                residual = SELECT((Integers)(error > zero), BROADCAST(1 - quantile),
                                  BROADCAST(-quantile));
                loss = residual * error;
                if (c % 3 == 1) score += error * error;
            } else {
                residual = z - y;
                loss = residual * residual;
                score += loss;
                if (kind == HUBER) {
                    const Vector size = absolute(residual);
                    const Integers far = (Integers)(size > bound);
                    loss = SELECT(far, (size - bound * (REAL)0.5) * bound, loss * (REAL)0.5);
                    residual = SELECT(far, signed_as(bound, residual), residual);
                }
            }
            residual *= scale * own_weights;
            for (ptrdiff_t i = most(count, 0); i < LANES; i++) residual[i] = 0;
            AT(work->right + c * width + b) = residual;
            total += loss;
        }
        AT(work->loss + b) = total * share * own_weights;
        score *= own_weights;
        for (ptrdiff_t i = 0; i < count; i++) work->scores[b + i] = score[i];
    }
    transpose_delta(work, samples);
}

/* The losses and the scores of samples, and the gradients of the outputs. */
static void judge(const Work *work, double smoothing, const double *weights, REAL factor, Share samples)
{
    if (work->network->loss == CROSS_ENTROPY)
        cross_entropy(work, smoothing, weights, factor, samples);
    else
        errors(work, factor, samples);
}

/* Sample b of the batch has the labels and the weight of number `row`. */
static inline void take_labels(Work *work, ptrdiff_t b, const void *labels, const float *weights,
                               int64_t row)
{
    const Network *network = work->network;
    if (weights) work->weights[b] = weights[row];
    if (network->loss == CROSS_ENTROPY)
        work->labels[b] = ((const int64_t *)labels)[row];
    else {
        const ptrdiff_t outputs = network->layers[network->depth - 1].units;
        work->targets[b] = (const float *)labels + row * (outputs / outputs_of_target(network));
    }
}

/* The gradients of all layers' outputs, from those of the logits. */
static void backward(const Work *work, const REAL *weights, const Member *member)
{
    const Network *network = work->network;
    const Share samples = share(member, work->batch, PAD);
    const ptrdiff_t width = work->width, count = samples.end - samples.begin;
    for (ptrdiff_t l = network->depth - 1; l > 0; l--) {
        const Layer *layer = &network->layers[l], *before = &network->layers[l - 1];
        const LayerWork *own = &work->layers[l - 1];
        if (l + 1 < network->depth) {
            const LayerWork *after = &work->layers[l];
            for (ptrdiff_t u = 0; u < layer->units; u++)
                for (ptrdiff_t b = samples.end; b < rounded(samples.end, PAD); b++)
                    work->right[u * width + b] = 0;
            transpose(after->delta + samples.begin * layer->stride, layer->stride, count,
                            layer->units, work->right + samples.begin, width);
        }
        multiply_real(before->units, rounded(count, LANES), layer->units,
                      (const REAL *const *)work->layers[l].weight_rows, work->right + samples.begin,
                      width, work->zeros, work->left + samples.begin, width);
        REAL *gradient = network->norm == NO_NORM ? own->delta : own->norm_delta;
        REAL *place = gradient + samples.begin * before->stride;
        transpose(work->left + samples.begin, width, before->units, count, place, before->stride);
        for (ptrdiff_t b = 0; b < count; b++)
            for (ptrdiff_t u = before->units; u < before->stride; u++) place[b * before->stride + u] = 0;
        activate_backward(work, l - 1, gradient, samples);
        if (network->norm == BATCH_NORM) {
            meet(member);
            batch_norm_backward(work, l - 1, weights, share(member, before->stride, PAD));
            meet(member);
        } else if (network->norm == LAYER_NORM) {
            for (ptrdiff_t b = samples.begin; b < samples.end; b++)
                for (ptrdiff_t u = before->units; u < before->stride; u++)
                    own->delta[b * before->stride + u] = 0;
            layer_norm_backward(work, l - 1, weights, samples);
        }
    }
}
