/* What lies between the products: inputs, dropout, norms and activations, forward and backward. */
#pragma once
#include "functions.h"
#include "memory.h"

/* --- inputs and dropout ----------------------------------------------------------------------- */

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

/* The masks of `units` units of a sample, from unit `first` on, a multiple of 8: 0 with the probability, which is rounded to a multiple of 1/2¹⁶ below 1, else
   the inverse of the rest. A function of seed, number of the batch, sample, layer and unit. */
static void draw_mask(REAL *mask, ptrdiff_t first, ptrdiff_t units, double probability,
                            int64_t seed, uint32_t batch, uint32_t sample, uint32_t layer)
{
    const double exact = probability * 65536 + 0.5;
    const uint32_t dropped = exact < 65535 ? (uint32_t)exact : 65535;
    const REAL kept = (REAL)(65536.0 / (65536 - dropped));
    for (ptrdiff_t u = 0; u < units; u += 8) {
        uint32_t word[4] = {(uint32_t)((first + u) / 8), sample, batch, layer};
        philox(word, (uint32_t)seed, (uint32_t)((uint64_t)seed >> 32));
        for (ptrdiff_t i = 0; i < least(8, units - u); i++) {
            const uint32_t draw = (word[i / 2] >> (16 * (i % 2))) & 0xFFFF;
            mask[u + i] = draw < dropped ? 0 : kept;
        }
    }
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
    const int drops = network->input_dropout > 0;
    if (work->converted) {
        REAL *to = work->converted + b * inputs;
        const float *floats = work->inputs[b];
        const double *doubles = work->inputs[b];
        for (ptrdiff_t i = 0; i < inputs; i++)
            to[i] = source == BYTES    ? SCALED[bytes[i]]
                    : source == FLOATS ? (REAL)floats[i]
                                       : (REAL)doubles[i];
        if (drops) {
            REAL mask[8];
            for (ptrdiff_t i = 0; i < inputs; i += 8) {
                const ptrdiff_t count = least(8, inputs - i);
                draw_mask(mask, i, count, network->input_dropout, seed, batch, (uint32_t)b, 0);
                for (ptrdiff_t j = 0; j < count; j++) to[i + j] *= mask[j];
            }
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
            AT(own->output + place) = FMA(normalised, AT(scale + u), AT(shift + u));
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
            row[u] = normalised[u] * scale[u] + shift[u];
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
