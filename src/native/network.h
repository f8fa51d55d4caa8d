/* The phases of a step. Included once for each REAL.

   A step has two phases, so that threads meet twice: forward and backward, divided by samples; and
   the update of the weights, divided by the inputs of each layer. Batch norm, clipping, max-norm and
   averages look at whole batches or layers, and threads meet once more for each. */

#define Vector NAME(Vector)
#define Integers NAME(Integers)
#define Work NAME(Work)
#define LayerWork NAME(LayerWork)
#define LANES ((int)(VECTOR_BYTES / sizeof(REAL)))
#define PAD ((int)(LINE / sizeof(REAL)))
#define AT(place) (*(Vector *)(place))
#define BROADCAST(x) ((REAL)(x) - (Vector){0})
#define SELECT(mask, a, b) ((Vector)(((Integers)(a) & (mask)) | ((Integers)(b) & ~(mask))))

typedef REAL Vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

/* --- functions of vectors --------------------------------------------------------------------- */

#define IS_FLOAT (sizeof(REAL) == 4)
#if !defined(CONSTANTS)
#define CONSTANTS
/* 1/i!: the Taylor series of exp. */
static const double FACTORIAL[] = {
    1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
    1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
/* erfc(x) exp(x²) / t in Chebyshev polynomials of 2 t - 1, with t = 1 / (1 + x / 2), x >= 0. */
static const double ERFC[] = {
    0.57703373861646968862, 0.35543692127049848731, 0.06509515882878652455,
    0.0036711423958366391659, -0.0011128447433526324969, -0.00016075829915378079758,
    3.2780315741731370605e-5, 5.4424416455050160333e-6, -1.5154665553171481622e-6,
    -1.4297608181169864917e-7, 8.234608827419493433e-8, -1.2962846852306562536e-9,
    -4.1547216310151983042e-9, 6.3470582783628111814e-10, 1.4320822712256223707e-10,
    -6.1603901052045855418e-11, 2.0612138554721696306e-12, 3.571493148847704445e-12,
    -8.5864228432517964757e-13, -6.145600213790630554e-14, 7.4187257485966170573e-14,
    -1.2895042755032325615e-14, -2.3587263857106323568e-15, 1.5729349381685911397e-15,
    -2.2782966239546465174e-16, -6.3123304507564298101e-17, 3.5916763531814922992e-17};
#endif

#if defined(SINGLE)
typedef int32_t Integers __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
#define MANTISSA 23
#define MAGIC 12582912.0f /* 1.5 · 2^23: adding it rounds to a whole number, in the last bits */
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f
#define SMALLEST (-87.0f) /* of the arguments of exp; below, the result is the same */
#define EXP_TERMS 7
#define LOG_TERMS 5
#define ERFC_TERMS 11
#else
typedef int64_t Integers __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));
#define MANTISSA 52
#define MAGIC 6755399441055744.0
#define LN2_HIGH 0x1.62e42fefa39efp-1
#define LN2_LOW 0x1.abc9e3b39803fp-56
#define SMALLEST (-708.0)
#define EXP_TERMS 13
#define LOG_TERMS 11
#define ERFC_TERMS 27
#endif

static inline Vector NAME(exponential)(Vector x)
{
    const Vector low = BROADCAST(SMALLEST);
    x = SELECT((Integers)(x < low), low, x);
    const Vector shifted = x * (REAL)1.4426950408889634 + (REAL)MAGIC;
    const Vector n = shifted - (REAL)MAGIC;
    Vector rest = FMA(n, BROADCAST(-LN2_HIGH), x);
    rest = FMA(n, BROADCAST(-LN2_LOW), rest);
    Vector sum = BROADCAST(FACTORIAL[EXP_TERMS]);
    EACH(i, EXP_TERMS) sum = FMA(sum, rest, BROADCAST(FACTORIAL[EXP_TERMS - 1 - i]));
    /* The last bits of `shifted` hold n: the exponent of 2^n. */
    const Integers exponent = (Integers)shifted << MANTISSA;
    return (Vector)((Integers)sum + exponent) + (x - x); /* NaN stays NaN */
}

/* Of x >= 1; of NaN and infinity NaN. */
static inline Vector NAME(logarithm)(Vector x)
{
    const Integers one = (Integers)BROADCAST(1);
    /* Exponent and fraction, the latter between the roots of 1/2 and 2. */
    const Integers above = (Integers)x - (Integers)BROADCAST(0.70710678118654752);
    const Integers exponent = above >> MANTISSA;
    const Vector fraction = (Vector)((Integers)x - (exponent << MANTISSA));
    const Vector n = (Vector)(exponent + (Integers)BROADCAST(MAGIC)) - (REAL)MAGIC;
    const Vector s = (fraction - (Vector)one) / (fraction + (Vector)one), square = s * s;
    Vector sum = BROADCAST(2.0 / (2 * LOG_TERMS + 1)); /* log f = 2 (s + s³/3 + s⁵/5 + …) */
    EACH(i, LOG_TERMS) sum = FMA(sum, square, BROADCAST(2.0 / (2 * (LOG_TERMS - 1 - i) + 1)));
    sum = FMA(n, BROADCAST(LN2_LOW), sum * s);
    return FMA(n, BROADCAST(LN2_HIGH), sum) + (x - x);
}

static inline Vector NAME(absolute)(Vector x)
{
    return (Vector)((Integers)x & ~(Integers)BROADCAST(-0.0));
}

static inline Vector NAME(signed_as)(Vector x, Vector sign)
{
    return (Vector)((Integers)x | ((Integers)sign & (Integers)BROADCAST(-0.0)));
}

/* 1 - 2 / (exp(2 |x|) + 1); near 0 a series by Cody and Waite, as in the Cephes library. */
static inline Vector NAME(hyperbolic_tangent)(Vector x)
{
    const Vector size = NAME(absolute)(x), square = x * x;
    const Vector inverse = NAME(exponential)(size * (REAL)-2);
    const Vector far = (1 - inverse) / (1 + inverse);
    Vector near;
    if (IS_FLOAT) {
        near = BROADCAST(-5.70498872745e-3);
        near = FMA(near, square, BROADCAST(2.06390887954e-2));
        near = FMA(near, square, BROADCAST(-5.37397155531e-2));
        near = FMA(near, square, BROADCAST(1.33314422036e-1));
        near = FMA(near, square, BROADCAST(-3.33332819422e-1));
    } else {
        Vector above = BROADCAST(-9.64399179425052238628e-1), below = square + (REAL)1.12811678491632931402e2;
        above = FMA(above, square, BROADCAST(-9.92877231001918586564e1));
        above = FMA(above, square, BROADCAST(-1.61468768441708447952e3));
        below = FMA(below, square, BROADCAST(2.23548839060100448583e3));
        below = FMA(below, square, BROADCAST(4.84406305325125486048e3));
        near = above / below;
    }
    near = FMA(near * square, size, size);
    return NAME(signed_as)(SELECT((Integers)(size < (REAL)0.625), near, far), x);
}

/* The distribution function and the density of the standard normal distribution. */
static inline void NAME(normal)(Vector x, Vector *distribution, Vector *density)
{
    const Vector t = 1 / FMA(NAME(absolute)(x), BROADCAST(0.35355339059327376), BROADCAST(1));
    const Vector s = t * 2 - 1, twice = s * 2;
    Vector last = BROADCAST(0), sum = BROADCAST(ERFC[ERFC_TERMS - 1]);
    for (int i = ERFC_TERMS - 2; i > 0; i--) { /* Clenshaw's recurrence */
        const Vector next = FMA(twice, sum, BROADCAST(ERFC[i]) - last);
        last = sum;
        sum = next;
    }
    sum = FMA(s, sum, BROADCAST(ERFC[0]) - last);
    const Vector bell = NAME(exponential)(x * x * (REAL)-0.5);
    const Vector tail = bell * t * sum * (REAL)0.5;
    *distribution = SELECT((Integers)(x < 0), tail, 1 - tail);
    *density = bell * (REAL)0.39894228040143268;
}

/* --- products --------------------------------------------------------------------------------- */

#define SOURCE uint8_t
#define PRODUCT(x) NAME(x##_bytes)
#define VALUE(x) NAME(SCALED)[x]
static REAL NAME(SCALED)[256]; /* filled when the library is loaded */
#include "product.h"
#undef SOURCE
#undef PRODUCT
#undef VALUE

#define SOURCE float
#define PRODUCT(x) NAME(x##_floats)
#define VALUE(x) ((REAL)(x))
#include "product.h"
#undef SOURCE
#undef PRODUCT

#if defined(SINGLE)
#define multiply_real multiply_floats_32
#define accumulate_real accumulate_floats_32
#else
#define SOURCE REAL
#define PRODUCT(x) NAME(x##_doubles)
#include "product.h"
#undef SOURCE
#undef PRODUCT
#define multiply_real multiply_doubles_64
#define accumulate_real accumulate_doubles_64
#endif
#undef VALUE

__attribute__((constructor)) static void NAME(fill_scaled)(void)
{
    for (int i = 0; i < 256; i++) NAME(SCALED)[i] = (REAL)((float)i / 255.0f); /* as torchvision's ToTensor */
}

/* --- memory ----------------------------------------------------------------------------------- */

typedef struct {
    REAL *output;               /* (batch, stride): what the next layer reads */
    REAL *kept;                 /* (batch, stride): what the derivative of the activation needs */
    REAL *mask;                 /* (batch, stride): of dropout, or 0 */
    REAL *normalised, *inverse; /* of a norm: (batch, stride); 1 / deviation of units or samples */
    REAL *norm_delta;           /* (batch, stride): the gradient of the norm's outputs */
    REAL *delta;                /* (batch, stride): the gradient of the layer's outputs */
    const REAL **rows;          /* of `output` */
    const REAL **weight_rows;   /* of the layer's weight */
} LayerWork;

typedef struct {
    const Network *network;
    ptrdiff_t batch, width; /* samples, and their number rounded up to whole lines */
    LayerWork *layers;
    const void **inputs;          /* each sample of the batch */
    int64_t *labels;              /* of each sample */
    REAL *converted;              /* (batch, inputs): the batch as the first layer reads it, or 0 */
    uint8_t *copied;              /* (batch, inputs): bytes of the batch, or 0 */
    REAL *left, *right;           /* (units, width): transposed gradients, and logits */
    REAL *zeros, *loss;           /* loss: of each sample */
    uint8_t *correct;
    double *squares; /* of a row of gradients each */
} Work;

static void *NAME(take)(char **next, size_t bytes)
{
    char *place = *next;
    *next += rounded((ptrdiff_t)bytes, LINE);
    return place;
}

/* Lays all buffers out from `base` on; returns the end. With `work` 0 it only counts. */
static char *NAME(arrange)(Work *work, const Network *network, ptrdiff_t batch, char *base)
{
    Work counted;
    const ptrdiff_t depth = network->depth;
    char *next = base;
    NAME(take)(&next, sizeof(Work));
    LayerWork *layers = NAME(take)(&next, depth * sizeof(LayerWork));
    const int counting = !work;
    if (counting) work = &counted;
    const ptrdiff_t width = rounded(batch, PAD);
    ptrdiff_t widest = 1, longest = width, rows = 0;
    for (ptrdiff_t l = 0; l < depth; l++) {
        const Layer *layer = &network->layers[l];
        const size_t bytes = batch * layer->stride * sizeof(REAL);
        const int hidden = l + 1 < depth, norm = hidden && network->norm != NO_NORM;
        LayerWork own = {0};
        own.output = NAME(take)(&next, bytes);
        own.delta = NAME(take)(&next, bytes);
        own.kept = own.output;
        if (hidden) {
            if (network->activation == GELU || (network->activation == TANH && layer->dropout > 0))
                own.kept = NAME(take)(&next, bytes);
            if (layer->dropout > 0) own.mask = NAME(take)(&next, bytes);
        }
        if (norm) {
            own.normalised = NAME(take)(&next, bytes);
            own.norm_delta = NAME(take)(&next, bytes);
            own.inverse = NAME(take)(&next, most(layer->stride, width) * sizeof(REAL));
        }
        own.rows = NAME(take)(&next, batch * sizeof(REAL *));
        own.weight_rows = NAME(take)(&next, layer->inputs * sizeof(REAL *));
        if (!counting) layers[l] = own;
        widest = most(widest, layer->units);
        longest = most(longest, layer->stride);
        rows += layer->inputs + 3;
    }
    work->network = network;
    work->batch = batch;
    work->width = width;
    work->layers = layers;
    work->inputs = NAME(take)(&next, batch * sizeof(void *));
    work->labels = NAME(take)(&next, batch * sizeof(int64_t));
    const size_t numbers = batch * network->layers[0].inputs;
    const int converts = network->input_dropout > 0 || network->layers[0].units >= WIDE;
    work->converted = converts ? NAME(take)(&next, numbers * sizeof(REAL)) : 0;
    work->copied = converts ? 0 : NAME(take)(&next, numbers);
    work->left = NAME(take)(&next, widest * width * sizeof(REAL));
    work->right = NAME(take)(&next, widest * width * sizeof(REAL));
    work->zeros = NAME(take)(&next, longest * sizeof(REAL));
    work->loss = NAME(take)(&next, width * sizeof(REAL));
    work->correct = NAME(take)(&next, width);
    work->squares = NAME(take)(&next, rows * sizeof(double));
    if (!counting) memset(work->zeros, 0, longest * sizeof(REAL));
    return next;
}

static int64_t NAME(scratch_bytes)(const Network *network, int64_t batch)
{
    return NAME(arrange)(0, network, batch, 0) - (char *)0;
}

/* Prepares `scratch` for batches of up to `batch` samples of a model. */
static Work *NAME(prepare)(const Network *network, const REAL *weights, ptrdiff_t batch, void *scratch)
{
    Work *work = scratch;
    NAME(arrange)(work, network, batch, scratch);
    for (ptrdiff_t l = 0; l < network->depth; l++) {
        const Layer *layer = &network->layers[l];
        LayerWork *own = &work->layers[l];
        for (ptrdiff_t b = 0; b < batch; b++) own->rows[b] = own->output + b * layer->stride;
        for (ptrdiff_t i = 0; i < layer->inputs; i++)
            own->weight_rows[i] = weights + layer->weight + i * layer->stride;
    }
    return work;
}

/* --- inputs and dropout ------------------------------------------------------------------------ */

/* The masks of `units` units of a sample, from unit `first` on, a multiple of 8: 0 with the probability, which is rounded to a multiple of 1/2¹⁶ below 1, else
   the inverse of the rest. A function of seed, number of the batch, sample, layer and unit. */
static void NAME(draw_mask)(REAL *mask, ptrdiff_t first, ptrdiff_t units, double probability,
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

/* Makes sample b of the batch ready for the first layer. A wide layer reads each input often, and
   gets floats. A narrow one gets a copy of the bytes, because the samples themselves lie on more
   pages of memory than the processor remembers: a tenth of a step. */
static void NAME(prepare_input)(Work *work, ptrdiff_t b, int64_t source, int64_t seed, uint32_t batch)
{
    const Network *network = work->network;
    const ptrdiff_t inputs = network->layers[0].inputs;
    const uint8_t *bytes = work->inputs[b];
    const int drops = network->input_dropout > 0;
    if (work->converted && (drops || source == BYTES)) {
        REAL *to = work->converted + b * inputs;
        const float *floats = work->inputs[b];
        const double *doubles = work->inputs[b];
        for (ptrdiff_t i = 0; i < inputs; i++)
            to[i] = source == BYTES    ? NAME(SCALED)[bytes[i]]
                    : source == FLOATS ? (REAL)floats[i]
                                       : (REAL)doubles[i];
        if (drops) {
            REAL mask[8];
            for (ptrdiff_t i = 0; i < inputs; i += 8) {
                const ptrdiff_t count = least(8, inputs - i);
                NAME(draw_mask)(mask, i, count, network->input_dropout, seed, batch, (uint32_t)b, 0);
                for (ptrdiff_t j = 0; j < count; j++) to[i + j] *= mask[j];
            }
        }
        work->inputs[b] = to;
    } else if (work->copied && source == BYTES) {
        work->inputs[b] = memcpy(work->copied + b * inputs, bytes, inputs);
    }
}

/* Whether the first layer reads numbers of type REAL. */
static int NAME(reads_real)(const Work *work, int64_t source)
{
    const int drops = work->network->input_dropout > 0;
    return source == DOUBLES || (work->converted && (drops || source == BYTES));
}

static void NAME(transpose)(const REAL *from, ptrdiff_t from_stride, ptrdiff_t rows,
                            ptrdiff_t columns, REAL *to, ptrdiff_t to_stride)
{
    enum { EDGE = 16 };
    for (ptrdiff_t i0 = 0; i0 < rows; i0 += EDGE)
        for (ptrdiff_t j0 = 0; j0 < columns; j0 += EDGE)
            for (ptrdiff_t j = j0; j < least(j0 + EDGE, columns); j++)
                for (ptrdiff_t i = i0; i < least(i0 + EDGE, rows); i++)
                    to[j * to_stride + i] = from[i * from_stride + j];
}

/* --- norms ------------------------------------------------------------------------------------ */

/* Batch norm of the units from `begin` to `end`, whole lines, over all samples: normalises `before`
   in place. When training, by the batch's own mean and variance, which move the running ones. */
static void NAME(batch_norm)(const Work *work, ptrdiff_t l, REAL *weights, Share units, int training)
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
static void NAME(batch_norm_backward)(const Work *work, ptrdiff_t l, const REAL *weights, Share units)
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
static REAL NAME(sum)(const REAL *parts)
{
    REAL sum = parts[0];
    for (int i = 1; i < PAD; i++) sum += parts[i];
    return sum;
}

static void NAME(layer_norm)(const Work *work, ptrdiff_t l, const REAL *weights, Share samples)
{
    const Layer *layer = &work->network->layers[l];
    const LayerWork *own = &work->layers[l];
    const ptrdiff_t stride = layer->stride, units = layer->units;
    const REAL *scale = weights + layer->scale, *shift = weights + layer->shift;
    for (ptrdiff_t b = samples.begin; b < samples.end; b++) {
        REAL *row = own->output + b * stride, *normalised = own->normalised + b * stride;
        REAL parts[PAD] = {0};
        for (ptrdiff_t u = 0; u < stride; u++) parts[u % PAD] += row[u]; /* padding is 0 */
        const REAL mean = NAME(sum)(parts) / (REAL)units;
        memset(parts, 0, sizeof parts);
        for (ptrdiff_t u = 0; u < stride; u++) {
            normalised[u] = u < units ? row[u] - mean : 0;
            parts[u % PAD] += normalised[u] * normalised[u];
        }
        const REAL variance = NAME(sum)(parts) / (REAL)units;
        const REAL inverse = 1 / ROOT(variance + (REAL)work->network->norm_eps);
        own->inverse[b] = inverse;
        for (ptrdiff_t u = 0; u < stride; u++) {
            normalised[u] *= inverse;
            row[u] = normalised[u] * scale[u] + shift[u];
        }
    }
}

static void NAME(layer_norm_backward)(const Work *work, ptrdiff_t l, const REAL *weights, Share samples)
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
        const REAL g = NAME(sum)(g_parts) / (REAL)units, gy = NAME(sum)(gy_parts) / (REAL)units;
        for (ptrdiff_t u = 0; u < units; u++) delta[u] = (delta[u] - g - y[u] * gy) * own->inverse[b];
    }
}

/* --- activations ------------------------------------------------------------------------------ */

/* Activation and dropout of some samples of a hidden layer, in place. */
static void NAME(activate)(const Work *work, ptrdiff_t l, Share samples)
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
            y = NAME(hyperbolic_tangent)(x);
        } else {
            Vector distribution, density;
            NAME(normal)(x, &distribution, &density);
            y = x * distribution;
        }
        if (own->kept != own->output) AT(own->kept + i) = kind == GELU ? x : y;
        if (own->mask) y *= AT(own->mask + i);
        AT(own->output + i) = y;
    }
}

/* From the gradient of the outputs of a hidden layer to that of the activation's inputs, in place. */
static void NAME(activate_backward)(const Work *work, ptrdiff_t l, REAL *gradient, Share samples)
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
            NAME(normal)(kept, &distribution, &density);
            g *= FMA(kept, density, distribution);
        }
        AT(gradient + i) = g;
    }
}

/* --- forward and backward --------------------------------------------------------------------- */

static void NAME(linear)(const Work *work, ptrdiff_t l, const REAL *weights, int64_t source, Share samples)
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
    else if (NAME(reads_real)(work, source))
        multiply_real(ARGUMENTS(work->inputs, REAL));
    else if (source == BYTES)
        NAME(multiply_bytes)(ARGUMENTS(work->inputs, uint8_t));
    else
        NAME(multiply_floats)(ARGUMENTS(work->inputs, float));
#undef ARGUMENTS
    for (ptrdiff_t b = samples.begin; columns < layer->stride && b < samples.end; b++)
        memset(work->layers[l].output + b * layer->stride + columns, 0,
               (layer->stride - columns) * sizeof(REAL));
}

/* All layers, for the samples of this member. When not training, `seed` and `number` have no use. */
static void NAME(forward)(const Work *work, REAL *weights, int64_t source, const Member *member,
                          int training, int64_t seed, uint32_t number)
{
    const Network *network = work->network;
    const Share samples = share(member, work->batch, PAD);
    for (ptrdiff_t l = 0; l < network->depth; l++) {
        const Layer *layer = &network->layers[l];
        NAME(linear)(work, l, weights, source, samples);
        if (l + 1 == network->depth) return;
        if (network->norm == BATCH_NORM) {
            meet(member);
            NAME(batch_norm)(work, l, weights, share(member, layer->stride, PAD), training);
            meet(member);
        } else if (network->norm == LAYER_NORM) {
            NAME(layer_norm)(work, l, weights, samples);
        }
        REAL *mask = work->layers[l].mask;
        for (ptrdiff_t b = samples.begin; mask && b < samples.end; b++) {
            REAL *row = mask + b * layer->stride;
            for (ptrdiff_t u = 0; u < layer->stride; u++) row[u] = 1;
            if (training)
                NAME(draw_mask)(row, 0, layer->units, layer->dropout, seed, number, (uint32_t)b,
                                (uint32_t)l + 1);
        }
        NAME(activate)(work, l, samples);
    }
}

/* Losses, correct predictions, and gradients of the logits, (softmax - target) · factor: the latter
   by rows in `delta` of the last layer, and transposed in `right`. */
static void NAME(cross_entropy)(const Work *work, double smoothing, REAL factor, Share samples)
{
    const Layer *layer = &work->network->layers[work->network->depth - 1];
    const LayerWork *own = &work->layers[work->network->depth - 1];
    const ptrdiff_t classes = layer->units, width = work->width, stride = layer->stride;
    REAL *z = work->right;
    const ptrdiff_t end = rounded(samples.end, PAD);
    NAME(transpose)(own->output + samples.begin * stride, stride, samples.end - samples.begin, classes,
                    z + samples.begin, width);
    for (ptrdiff_t c = 0; c < classes; c++)
        for (ptrdiff_t b = samples.end; b < end; b++) z[c * width + b] = 0;
    const REAL off = (REAL)(smoothing / (double)classes) * factor, on = (REAL)(1 - smoothing) * factor;
    for (ptrdiff_t b = samples.begin; b < end; b += LANES) {
        Vector highest = AT(z + b), sum = BROADCAST(0), total = BROADCAST(0);
        for (ptrdiff_t c = 1; c < classes; c++) {
            const Vector x = AT(z + c * width + b);
            highest = SELECT((Integers)(x > highest), x, highest);
        }
        for (ptrdiff_t c = 0; c < classes; c++) {
            const Vector below = AT(z + c * width + b) - highest;
            const Vector e = NAME(exponential)(below);
            AT(z + c * width + b) = e;
            sum += e;
            total += below;
        }
        Vector loss = NAME(logarithm)(sum);
        if (smoothing > 0) loss -= total * (REAL)(smoothing / (double)classes);
        AT(work->loss + b) = loss;
        const Vector scale = factor / sum;
        for (ptrdiff_t c = 0; c < classes; c++)
            AT(z + c * width + b) = AT(z + c * width + b) * scale - off;
        EACH(i, LANES) {
            if (b + i >= samples.end) break;
            const REAL *row = own->output + (b + i) * stride;
            const ptrdiff_t label = work->labels[b + i];
            work->loss[b + i] -= (REAL)(1 - smoothing) * (row[label] - highest[i]);
            z[label * width + b + i] -= on;
            ptrdiff_t first = 0; /* the first of the highest logits */
            while (first < label && row[first] < row[label]) first++;
            work->correct[b + i] = first == label && row[label] == highest[i];
        }
    }
    NAME(transpose)(z + samples.begin, width, classes, samples.end - samples.begin,
                    own->delta + samples.begin * stride, stride);
    for (ptrdiff_t b = samples.begin; b < samples.end; b++)
        for (ptrdiff_t c = classes; c < stride; c++) own->delta[b * stride + c] = 0;
}

/* The gradients of all layers' outputs, from those of the logits. */
static void NAME(backward)(const Work *work, const REAL *weights, const Member *member)
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
            NAME(transpose)(after->delta + samples.begin * layer->stride, layer->stride, count,
                            layer->units, work->right + samples.begin, width);
        }
        multiply_real(before->units, rounded(count, LANES), layer->units,
                      (const REAL *const *)work->layers[l].weight_rows, work->right + samples.begin,
                      width, work->zeros, work->left + samples.begin, width);
        REAL *gradient = network->norm == NO_NORM ? own->delta : own->norm_delta;
        REAL *place = gradient + samples.begin * before->stride;
        NAME(transpose)(work->left + samples.begin, width, before->units, count, place, before->stride);
        for (ptrdiff_t b = 0; b < count; b++)
            for (ptrdiff_t u = before->units; u < before->stride; u++) place[b * before->stride + u] = 0;
        NAME(activate_backward)(work, l - 1, gradient, samples);
        if (network->norm == BATCH_NORM) {
            meet(member);
            NAME(batch_norm_backward)(work, l - 1, weights, share(member, before->stride, PAD));
            meet(member);
        } else if (network->norm == LAYER_NORM) {
            for (ptrdiff_t b = samples.begin; b < samples.end; b++)
                for (ptrdiff_t u = before->units; u < before->stride; u++)
                    own->delta[b * before->stride + u] = 0;
            NAME(layer_norm_backward)(work, l - 1, weights, samples);
        }
    }
}

/* --- update ----------------------------------------------------------------------------------- */

typedef struct {
    REAL *weights, *gradient, *first, *second;
    const Optimizer *settings;
    REAL rate, decay, momentum, beta1, beta2, eps, step_size, root_correction, clip;
} NAME(Update);
#define Update NAME(Update)

/* One step of the numbers from `begin` to `end`, by the formulas of torch.optim. */
static void NAME(optimize)(const Update *u, ptrdiff_t begin, ptrdiff_t end)
{
    REAL *restrict w = u->weights, *restrict g = u->gradient;
    REAL *restrict first = u->first, *restrict second = u->second;
    const REAL rate = u->rate, decay = u->decay, momentum = u->momentum, clip = u->clip;
    if (u->settings->kind == SGD) {
        for (ptrdiff_t i = begin; i < end; i++) {
            const REAL gradient = g[i] * clip + decay * w[i];
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
        const REAL gradient = g[i] * clip + coupled * w[i];
        first[i] += (gradient - first[i]) * rest1;
        second[i] = second[i] * u->beta2 + gradient * gradient * rest2;
        const REAL root = ROOT(second[i]) / u->root_correction + u->eps;
        w[i] = w[i] * shrink - u->step_size * (first[i] / root);
    }
}

static double NAME(power)(double base, int64_t exponent)
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
        const int64_t others_[] = {layer->bias, layer->scale, layer->shift}; \
        for (int o = 0; o < 3; o++, row_++) \
            if (others_[o] >= 0 && member->number == 0) DO(others_[o], others_[o] + layer->stride, row_); \
    }

/* Adds the gradients of the norm's parameters and of the bias to the numbers at `to`. */
static void NAME(accumulate_vectors)(const Work *work, ptrdiff_t l, REAL *to, int overwrite)
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
                const Vector g = AT(own->norm_delta + b * stride + u);
                product = FMA(g, AT(own->normalised + b * stride + u), product);
                sum += g;
            }
            AT(scale) = product;
            AT(shift) = sum;
        }
    }
}

static void NAME(accumulate_weights)(const Work *work, ptrdiff_t l, int64_t source, Share inputs,
                                     int overwrite, REAL *to)
{
    const Layer *layer = &work->network->layers[l];
    const ptrdiff_t columns = rounded(layer->units, LANES);
#define ARGUMENTS(a, kind) \
    inputs.begin, inputs.end, columns, work->batch, (const kind *const *)(a), work->layers[l].delta, \
        layer->stride, work->zeros, overwrite, to + layer->weight, layer->stride
    if (l > 0)
        accumulate_real(ARGUMENTS(work->layers[l - 1].rows, REAL));
    else if (NAME(reads_real)(work, source))
        accumulate_real(ARGUMENTS(work->inputs, REAL));
    else if (source == BYTES)
        NAME(accumulate_bytes)(ARGUMENTS(work->inputs, uint8_t));
    else
        NAME(accumulate_floats)(ARGUMENTS(work->inputs, float));
#undef ARGUMENTS
}

/* Bounds the 2-norm of the weights into each hidden unit. */
static void NAME(constrain)(const Network *network, REAL *weights, const Member *member)
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
static Update NAME(update_of)(const Optimizer *settings, const Model *model, double rate, int64_t taken)
{
    Update u = {.weights = model->weights, .gradient = model->gradient, .first = model->first,
                .second = model->second, .settings = settings, .clip = 1};
    u.rate = (REAL)rate;
    u.decay = (REAL)settings->weight_decay;
    u.momentum = (REAL)settings->momentum;
    u.beta1 = (REAL)settings->beta1;
    u.beta2 = (REAL)settings->beta2;
    u.eps = (REAL)settings->eps;
    if (settings->kind != SGD) {
        u.step_size = (REAL)(rate / (1 - NAME(power)(settings->beta1, taken)));
        u.root_correction = (REAL)__builtin_sqrt(1 - NAME(power)(settings->beta2, taken));
    }
    return u;
}

/* The factor by which gradients are multiplied, so that their joint 2-norm is at most `bound`. */
static REAL NAME(clipped)(const Work *work, const REAL *gradient, double bound, const Member *member)
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

static void NAME(train)(const Network *network, const Optimizer *optimizer, const Plan *plan,
                        Model *model, const Block *block, const Member *member, void *scratch)
{
    Work *work = scratch;
    REAL *weights = model->weights, *gradient = model->gradient;
    const ptrdiff_t batch = block->batch, inputs = network->layers[0].inputs;
    const ptrdiff_t width = inputs * bytes_of(block->source);
    const int64_t steps_per_epoch = (plan->batches_per_epoch + plan->accumulate - 1) / plan->accumulate;
    const Share samples = share(member, batch, PAD);
    int64_t taken = model->steps;
    meet(member); /* nobody uses the scratch any more */
    if (member->number == 0) NAME(prepare)(network, weights, batch, scratch);
    meet(member);
    for (int64_t k = block->begin; k < block->end; k++) {
        const int64_t number = block->first + k; /* in the epoch */
        const int begins = number % plan->accumulate == 0;
        const int completes =
            (number + 1) % plan->accumulate == 0 || number + 1 == plan->batches_per_epoch;
        const uint32_t drawn = (uint32_t)(block->epoch * plan->batches_per_epoch + number);
        for (ptrdiff_t b = samples.begin; b < samples.end; b++) {
            const int64_t row = block->rows ? block->rows[k * batch + b] : k * batch + b;
            work->inputs[b] = (const char *)block->features + row * width;
            work->labels[b] = block->labels[row];
            NAME(prepare_input)(work, b, block->source, model->seed, drawn);
        }
        NAME(forward)(work, weights, block->source, member, 1, model->seed, drawn);
        const double share_of_step = 1.0 / ((double)batch * (double)plan->accumulate);
        const REAL factor = (REAL)(gradient ? share_of_step : -block->rates[k] * share_of_step);
        NAME(cross_entropy)(work, plan->smoothing, factor, samples);
        NAME(backward)(work, weights, member);
        meet(member);
        /* Without a gradient vector, the gradients times the negative rate go into the weights. */
        REAL *to = gradient ? gradient : weights;
        const int overwrite = gradient && begins;
        for (ptrdiff_t l = 0; l < network->depth; l++) {
            const Share own = share(member, network->layers[l].inputs, 1);
            NAME(accumulate_weights)(work, l, block->source, own, overwrite, to);
            if (member->number == 0) NAME(accumulate_vectors)(work, l, to, overwrite);
        }
        if (member->number == 0) {
            double loss = 0;
            int64_t correct = 0;
            for (ptrdiff_t b = 0; b < batch; b++) {
                loss += work->loss[b];
                correct += work->correct[b];
            }
            block->losses[k] = loss / (double)batch;
            block->correct[k] = correct;
        }
        if (completes) {
            taken++;
            if (gradient) {
                Update update = NAME(update_of)(optimizer, model, block->rates[k], taken);
                if (plan->clip > 0) update.clip = NAME(clipped)(work, gradient, plan->clip, member);
#define OPTIMIZE(begin, end, row) NAME(optimize)(&update, begin, end);
                EACH_RANGE(OPTIMIZE)
            }
            if (network->max_norm > 0) {
                meet(member);
                NAME(constrain)(network, weights, member);
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
}

static const Member NAME(ALONE) = {&(Team){.threads = 1}, 0};

static Work *NAME(evaluated)(const Network *network, const REAL *weights, const void *features,
                             int64_t source, int64_t count, void *scratch)
{
    Work *work = NAME(prepare)(network, weights, count, scratch);
    const ptrdiff_t inputs = network->layers[0].inputs;
    const ptrdiff_t width = inputs * bytes_of(source);
    work->converted = 0;
    for (int64_t i = 0; i < count; i++) work->inputs[i] = (const char *)features + i * width;
    /* When not training, nothing writes to the weights. */
    NAME(forward)(work, (REAL *)weights, source, &NAME(ALONE), 0, 0, 0);
    return work;
}

static void NAME(logits)(const Network *network, const void *weights, const void *features,
                         int64_t source, int64_t count, void *out, void *scratch)
{
    const Work *work = NAME(evaluated)(network, weights, features, source, count, scratch);
    const Layer *last = &network->layers[network->depth - 1];
    const REAL *found = work->layers[network->depth - 1].output;
    for (int64_t i = 0; i < count; i++)
        memcpy((REAL *)out + i * last->units, found + i * last->stride, last->units * sizeof(REAL));
}

static void NAME(evaluate)(const Network *network, const void *weights, const void *features,
                           int64_t source, const int64_t *labels, int64_t count, double *loss,
                           int64_t *correct, void *scratch)
{
    const Work *work = NAME(evaluated)(network, weights, features, source, count, scratch);
    memcpy(work->labels, labels, count * sizeof(int64_t));
    NAME(cross_entropy)(work, 0, 1, (Share){0, count});
    *loss = 0;
    *correct = 0;
    for (int64_t i = 0; i < count; i++) {
        *loss += work->loss[i];
        *correct += work->correct[i];
    }
}

#undef EACH_RANGE
#undef OPTIMIZE
#undef SQUARES
#undef Update
#undef Vector
#undef Integers
#undef Work
#undef LayerWork
#undef LANES
#undef PAD
#undef AT
#undef BROADCAST
#undef SELECT
#undef IS_FLOAT
#undef MANTISSA
#undef MAGIC
#undef LN2_HIGH
#undef LN2_LOW
#undef SMALLEST
#undef EXP_TERMS
#undef LOG_TERMS
#undef ERFC_TERMS
#undef multiply_real
#undef accumulate_real
