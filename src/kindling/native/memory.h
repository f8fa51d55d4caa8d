/* The working memory of a call: one piece, which the caller gives, laid out here. */
#pragma once
#include "products.h"

/* From this width on, a first layer reads numbers that were converted beforehand. */
enum { WIDE = 128 };

typedef struct {
    REAL *output;               /* (batch, stride): what the next layer reads */
    REAL *kept;                 /* (batch, stride): what the derivative of the activation needs */
    REAL *mask;                 /* (batch, stride): of dropout, or 0 */
    REAL *normalised, *inverse; /* of a norm: (batch, stride); 1 / deviation of units or samples */
    REAL *noise;                /* (batch, stride): of a normed layer, or 0 */
    REAL *norm_delta;           /* (batch, stride): the gradient of the norm's outputs */
    REAL *delta;                /* (batch, stride): the gradient of the layer's outputs */
    const REAL **rows;          /* of `output` */
    const REAL **weight_rows;   /* of the layer's weight */
} LayerWork;

typedef struct {
    const Network *network;
    ptrdiff_t batch, width; /* samples, and their number rounded up to whole lines */
    ptrdiff_t ranks, rank;  /* sample b has the random numbers of sample b * ranks + rank */
    LayerWork *layers;
    const void **inputs;          /* each sample of the batch */
    int64_t *labels;              /* the class of each sample */
    const float **targets;        /* or its numbers */
    REAL *weights;                /* of each sample; 0: all are 1 */
    REAL *room;                   /* for weights */
    REAL *converted;              /* (batch, inputs): the batch as the first layer reads it, or 0 */
    uint8_t *copied;              /* (batch, inputs): bytes of the batch, or 0 */
    REAL *left, *right;           /* (units, width): transposed gradients, and logits */
    REAL *zeros, *loss;           /* loss: of each sample */
    double *scores;  /* of each sample */
    double *squares; /* of a row of gradients each */
} Work;

static void *take(char **next, size_t bytes)
{
    char *place = *next;
    *next += rounded((ptrdiff_t)bytes, LINE);
    return place;
}

/* Lays all buffers out from `base` on; returns the end. With `work` 0 it only counts. */
static char *arrange(Work *work, const Network *network, ptrdiff_t batch, char *base)
{
    Work counted;
    const ptrdiff_t depth = network->depth;
    char *next = base;
    take(&next, sizeof(Work));
    LayerWork *layers = take(&next, depth * sizeof(LayerWork));
    const int counting = !work;
    if (counting) work = &counted;
    const ptrdiff_t width = rounded(batch, PAD);
    ptrdiff_t widest = 1, longest = width, rows = 0;
    for (ptrdiff_t l = 0; l < depth; l++) {
        const Layer *layer = &network->layers[l];
        const size_t bytes = batch * layer->stride * sizeof(REAL);
        const int hidden = l + 1 < depth, norm = hidden && network->norm != NO_NORM;
        LayerWork own = {0};
        own.output = take(&next, bytes);
        own.delta = take(&next, bytes);
        own.kept = own.output;
        if (hidden) {
            if (network->activation == GELU || (network->activation == TANH && layer->dropout > 0))
                own.kept = take(&next, bytes);
            if (layer->dropout > 0) own.mask = take(&next, bytes);
        }
        if (norm) {
            own.normalised = take(&next, bytes);
            own.norm_delta = take(&next, bytes);
            if (network->noise > 0) own.noise = take(&next, bytes);
            own.inverse = take(&next, most(layer->stride, width) * sizeof(REAL));
        }
        own.rows = take(&next, batch * sizeof(REAL *));
        own.weight_rows = take(&next, layer->inputs * sizeof(REAL *));
        if (!counting) layers[l] = own;
        widest = most(widest, layer->units);
        longest = most(longest, layer->stride);
        rows += layer->inputs + 3;
    }
    work->network = network;
    work->batch = batch;
    work->width = width;
    work->ranks = 1;
    work->rank = 0;
    work->layers = layers;
    work->inputs = take(&next, batch * sizeof(void *));
    work->labels = take(&next, batch * sizeof(int64_t));
    work->targets = take(&next, batch * sizeof(float *));
    work->room = take(&next, width * sizeof(REAL));
    work->weights = 0;
    const size_t numbers = batch * network->layers[0].inputs;
    const int random = network->input_dropout > 0 || network->noise > 0;
    const int converts = random || network->layers[0].units >= WIDE;
    work->converted = converts ? take(&next, numbers * sizeof(REAL)) : 0;
    work->copied = converts ? 0 : take(&next, numbers);
    work->left = take(&next, widest * width * sizeof(REAL));
    work->right = take(&next, widest * width * sizeof(REAL));
    work->zeros = take(&next, longest * sizeof(REAL));
    work->loss = take(&next, width * sizeof(REAL));
    work->scores = take(&next, width * sizeof(double));
    work->squares = take(&next, rows * sizeof(double));
    if (!counting) memset(work->zeros, 0, longest * sizeof(REAL));
    return next;
}

int64_t EXPORTED(scratch_bytes)(const Network *network, int64_t batch)
{
    return arrange(0, network, batch, 0) - (char *)0;
}

/* Prepares `scratch` for batches of up to `batch` samples of a model. */
static Work *prepare(const Network *network, const REAL *weights, ptrdiff_t batch, void *scratch)
{
    Work *work = scratch;
    arrange(work, network, batch, scratch);
    for (ptrdiff_t l = 0; l < network->depth; l++) {
        const Layer *layer = &network->layers[l];
        LayerWork *own = &work->layers[l];
        for (ptrdiff_t b = 0; b < batch; b++) own->rows[b] = own->output + b * layer->stride;
        for (ptrdiff_t i = 0; i < layer->inputs; i++)
            own->weight_rows[i] = weights + layer->weight + i * layer->stride;
    }
    return work;
}
