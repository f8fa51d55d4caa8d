/* What lies between the products: inputs, norms and activations, forward and backward. */
#pragma once
#include "random.h"

/* --- inputs ----------------------------------------------------------------------------------- */

/* The number of sample b of the batch among the random numbers of all processes. */
static inline uint32_t stream(const Work *work, ptrdiff_t b)
{
    return (uint32_t)(b * work->ranks + work->rank);
}

/* Makes sample b of the batch ready for the first layer: copies it, because the samples themselves
   lie on more pages of memory than the processor remembers. A wide layer reads each input often, and
   gets numbers; a narrow one gets the bytes. To convert bytes by vectors, or to fetch the samples of
   the next batch ahead, gained less than 2 %. */
static void prepare_input(Work *work, ptrdiff_t b, int64_t source, int64_t seed, uint32_t batch)
{
    const Network *network = work->network;
    const ptrdiff_t inputs = network->layers[0].inputs;
    const uint8_t *bytes = work->inputs[b];
    if (work->converted) {
        REAL *to = work->converted + b * inputs;
        const float *floats = work->inputs[b];
        const double *doubles = work->inputs[b];
        for (ptrdiff_t i = 0; i < inputs; i++)
            to[i] = source == BYTES    ? SCALED[bytes[i]]
                    : source == FLOATS ? (REAL)floats[i]
                                       : (REAL)doubles[i];
        if (network->noise > 0) add_noise(to, inputs, network->noise, seed, batch, stream(work, b), 0);
        for (ptrdiff_t i = 0; network->input_dropout > 0 && i < inputs; i += MASK_CHUNK) {
            const ptrdiff_t count = least(MASK_CHUNK, inputs - i);
            REAL mask[MASK_CHUNK];
            draw_mask(mask, i, count, network->input_dropout, seed, batch, stream(work, b), 0);
            for (ptrdiff_t j = 0; j < count; j++) to[i + j] *= mask[j];
        }
        work->inputs[b] = to;
    } else if (work->copied && source == BYTES) {
        work->inputs[b] = memcpy(work->copied + b * inputs, bytes, inputs);
    }
}

/* Whether the first layer reads numbers of type REAL. */
static int reads_real(const Work *work, int64_t source)
{
    return source == DOUBLES || work->converted;
}

/* --- noise ------------------------------------------------------------------------------------ */

/* Adds noise to the outputs of a layer. If a norm follows, writes the noise for `noisy` instead. */
static void draw_noise(const Work *work, ptrdiff_t l, Share samples, int64_t seed, uint32_t batch)
{
    const Layer *layer = &work->network->layers[l];
    const LayerWork *own = &work->layers[l];
    for (ptrdiff_t b = samples.begin; b < samples.end; b++) {
        REAL *row = (own->noise ? own->noise : own->output) + b * layer->stride;
        if (own->noise) memset(row, 0, layer->stride * sizeof(REAL));
        add_noise(row, layer->units, work->network->noise, seed, batch, stream(work, b), (uint32_t)l + 1);
    }
}

/* Normalised numbers, when training with the noise of their layer. */
static inline Vector noisy(const LayerWork *own, Vector normalised, ptrdiff_t place)
{
    if (own->noise) normalised += AT(own->noise + place);
    return normalised;
}

/* --- norms ------------------------------------------------------------------------------------ */

/* Batch norm of the units from `begin` to `end`, whole lines, over all samples: normalises `before`
   in place. When training, by the batch's own mean and variance, which move the running ones. */
static void batch_norm(const Work *work, ptrdiff_t l, REAL *weights, Share units, int training)
{
    const Network *network = work->network;
    const Layer *layer = &network->layers[l];
    const LayerWork *own = &work->layers[l];
    const ptrdiff_t stride = layer->stride, batch = work->batch;
    REAL *scale = weights + layer->scale, *shift = weights + layer->shift;
    REAL *running_mean = weights + layer->mean, *running_variance = weights + layer->variance;
    for (ptrdiff_t u = units.begin; u < units.end; u += LANES) {
        Vector mean = AT(running_mean + u), variance = AT(running_variance + u);
        if (training) {
            mean = BROADCAST(0);
            for (ptrdiff_t b = 0; b < batch; b++) mean += AT(own->output + b * stride + u);
            mean /= (REAL)batch;
            variance = BROADCAST(0);
            for (ptrdiff_t b = 0; b < batch; b++) {
                const Vector centred = AT(own->output + b * stride + u) - mean;
                variance = FMA(centred, centred, variance);
            }
            const REAL part = (REAL)network->norm_momentum;
            const Vector unbiased = variance / (REAL)(batch - 1);
            variance /= (REAL)batch;
            AT(running_mean + u) += (mean - AT(running_mean + u)) * part;
            AT(running_variance + u) += (unbiased - AT(running_variance + u)) * part;
        }
        Vector deviation = variance + (REAL)network->norm_eps;
        EACH(i, LANES) deviation[i] = ROOT(deviation[i]);
        const Vector inverse = 1 / deviation;
        AT(own->inverse + u) = inverse;
        for (ptrdiff_t b = 0; b < batch; b++) {
            const ptrdiff_t place = b * stride + u;
            const Vector normalised = (AT(own->output + place) - mean) * inverse;
            AT(own->normalised + place) = normalised;
            AT(own->output + place) = FMA(noisy(own, normalised, place), AT(scale + u), AT(shift + u));
        }
    }
}

/* The gradient of the inputs of a batch norm: (g - mean(g) - y · mean(g · y)) / deviation, where y
   is normalised and g the gradient of the outputs times the scale. */
static void batch_norm_backward(const Work *work, ptrdiff_t l, const REAL *weights, Share units)
{
    const Layer *layer = &work->network->layers[l];
    const LayerWork *own = &work->layers[l];
    const ptrdiff_t stride = layer->stride, batch = work->batch;
    for (ptrdiff_t u = units.begin; u < units.end; u += LANES) {
        Vector mean = BROADCAST(0), product = BROADCAST(0);
        for (ptrdiff_t b = 0; b < batch; b++) {
            const Vector g = AT(own->norm_delta + b * stride + u);
            mean += g;
            product = FMA(g, AT(own->normalised + b * stride + u), product);
        }
        mean /= (REAL)batch;
        product /= (REAL)batch;
        const Vector factor = AT(weights + layer->scale + u) * AT(own->inverse + u);
        for (ptrdiff_t b = 0; b < batch; b++) {
            const ptrdiff_t place = b * stride + u;
            const Vector centred = AT(own->norm_delta + place) - mean;
            AT(own->delta + place) = (centred - AT(own->normalised + place) * product) * factor;
        }
    }
}

/* The sum of PAD partial sums, in one order for all widths of vectors. */
static REAL sum(const REAL *parts)
{
    REAL sum = parts[0];
    for (int i = 1; i < PAD; i++) sum += parts[i];
    return sum;
}

static void layer_norm(const Work *work, ptrdiff_t l, const REAL *weights, Share samples)
{
    const Layer *layer = &work->network->layers[l];
    const LayerWork *own = &work->layers[l];
    const ptrdiff_t stride = layer->stride, units = layer->units;
    const REAL *scale = weights + layer->scale, *shift = weights + layer->shift;
    for (ptrdiff_t b = samples.begin; b < samples.end; b++) {
        REAL *row = own->output + b * stride, *normalised = own->normalised + b * stride;
        const REAL *noise = own->noise ? own->noise + b * stride : 0;
        REAL parts[PAD] = {0};
        for (ptrdiff_t u = 0; u < stride; u++) parts[u % PAD] += row[u]; /* padding is 0 */
        const REAL mean = sum(parts) / (REAL)units;
        memset(parts, 0, sizeof parts);
        for (ptrdiff_t u = 0; u < stride; u++) {
            normalised[u] = u < units ? row[u] - mean : 0;
            parts[u % PAD] += normalised[u] * normalised[u];
        }
        const REAL variance = sum(parts) / (REAL)units;
        const REAL inverse = 1 / ROOT(variance + (REAL)work->network->norm_eps);
        own->inverse[b] = inverse;
        for (ptrdiff_t u = 0; u < stride; u++) {
            normalised[u] *= inverse;
            row[u] = (noise ? normalised[u] + noise[u] : normalised[u]) * scale[u] + shift[u];
        }
    }
}

static void layer_norm_backward(const Work *work, ptrdiff_t l, const REAL *weights, Share samples)
{
    const Layer *layer = &work->network->layers[l];
    const LayerWork *own = &work->layers[l];
    const ptrdiff_t stride = layer->stride, units = layer->units;
    const REAL *scale = weights + layer->scale;
    for (ptrdiff_t b = samples.begin; b < samples.end; b++) {
        const REAL *gradient = own->norm_delta + b * stride, *y = own->normalised + b * stride;
        REAL *delta = own->delta + b * stride, g_parts[PAD] = {0}, gy_parts[PAD] = {0};
        for (ptrdiff_t u = 0; u < stride; u++) {
            delta[u] = gradient[u] * scale[u];
            g_parts[u % PAD] += delta[u];
            gy_parts[u % PAD] += delta[u] * y[u];
        }
        const REAL g = sum(g_parts) / (REAL)units, gy = sum(gy_parts) / (REAL)units;
        for (ptrdiff_t u = 0; u < units; u++) delta[u] = (delta[u] - g - y[u] * gy) * own->inverse[b];
    }
}

/* --- activations ------------------------------------------------------------------------------ */

/* Activation and dropout of some samples of a hidden layer, in place. */
static void activate(const Work *work, ptrdiff_t l, Share samples)
{
    const LayerWork *own = &work->layers[l];
    const ptrdiff_t stride = work->network->layers[l].stride;
    const int64_t kind = work->network->activation;
    for (ptrdiff_t i = samples.begin * stride; i < samples.end * stride; i += LANES) {
        const Vector x = AT(own->output + i);
        Vector y;
        if (kind == RELU) {
            y = SELECT((Integers)(x < 0), BROADCAST(0), x); /* NaN stays NaN */
        } else if (kind == TANH) {
            y = hyperbolic_tangent(x);
        } else {
            Vector distribution, density;
            normal(x, &distribution, &density);
            y = x * distribution;
        }
        if (own->kept != own->output) AT(own->kept + i) = kind == GELU ? x : y;
        if (own->mask) y *= AT(own->mask + i);
        AT(own->output + i) = y;
    }
}

/* From the gradient of the outputs of a hidden layer to that of the activation's inputs, in place. */
static void activate_backward(const Work *work, ptrdiff_t l, REAL *gradient, Share samples)
{
    const LayerWork *own = &work->layers[l];
    const ptrdiff_t stride = work->network->layers[l].stride;
    const int64_t kind = work->network->activation;
    for (ptrdiff_t i = samples.begin * stride; i < samples.end * stride; i += LANES) {
        const Vector kept = AT(own->kept + i);
        Vector g = AT(gradient + i);
        if (own->mask) g *= AT(own->mask + i);
        if (kind == RELU) {
            g = SELECT((Integers)(kept <= 0), BROADCAST(0), g);
        } else if (kind == TANH) {
            g *= FMA(-kept, kept, BROADCAST(1));
        } else {
            Vector distribution, density;
            normal(kept, &distribution, &density);
            g *= FMA(kept, density, distribution);
        }
        AT(gradient + i) = g;
    }
}
