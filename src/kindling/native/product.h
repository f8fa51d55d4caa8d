/* Matrix products. Included once for each pair of REAL, the type of all results, and SOURCE, the
   type of the left factor: REAL itself, float, or bytes, which VALUE looks up in a table.

   Each number of a result is one chain of fused multiplications and additions, in the order of
   `depth`. So neither tiles, nor blocks, nor threads, nor the width of the vectors change a bit. */

/* One tile of a product, held in registers. With `transposed`, a[t][i] are the left factors of
   c[i]; otherwise a[i][t]. */
static inline __attribute__((always_inline)) void PRODUCT(tile)(
    const int rows, const int vectors, const int transposed, const SOURCE *const *a, ptrdiff_t depth,
    ptrdiff_t offset, const REAL *b, ptrdiff_t b_stride, const REAL *start, ptrdiff_t start_stride,
    REAL *c, ptrdiff_t c_stride)
{
    Vector sum[MOST_ROWS][MOST_VECTORS];
    const SOURCE *row[MOST_ROWS];
    EACH(i, rows) {
        if (!transposed) row[i] = a[i] + offset;
        EACH(j, vectors) sum[i][j] = AT(start + i * start_stride + j * LANES);
    }
    for (ptrdiff_t t = 0; t < depth; t++) {
        Vector right[MOST_VECTORS];
        EACH(j, vectors) right[j] = AT(b + t * b_stride + j * LANES);
        const SOURCE *column = transposed ? a[t] + offset : 0;
        EACH(i, rows) {
            const Vector left = BROADCAST(VALUE(transposed ? column[i] : row[i][t]));
            EACH(j, vectors) sum[i][j] = FMA(left, right[j], sum[i][j]);
        }
    }
    EACH(i, rows) EACH(j, vectors) AT(c + i * c_stride + j * LANES) = sum[i][j];
}

#define TILE(r, v) \
    PRODUCT(tile)(r, v, transposed, a, depth, offset, b, b_stride, start, start_stride, c, c_stride)
#define TILES(r) \
    case r: \
        if (vectors == 1) TILE(r, 1); \
        else if (vectors == 2) TILE(r, 2); \
        else TILE(r, MOST_VECTORS); \
        break;

static __attribute__((noinline)) void PRODUCT(by_rows)(
    int rows, int vectors, const SOURCE *const *a, ptrdiff_t depth, ptrdiff_t offset, const REAL *b,
    ptrdiff_t b_stride, const REAL *start, ptrdiff_t start_stride, REAL *c, ptrdiff_t c_stride)
{
    const int transposed = 0;
    switch (rows) { EACH_ROWS(TILES) }
}

static __attribute__((noinline)) void PRODUCT(by_columns)(
    int rows, int vectors, const SOURCE *const *a, ptrdiff_t depth, ptrdiff_t offset, const REAL *b,
    ptrdiff_t b_stride, const REAL *start, ptrdiff_t start_stride, REAL *c, ptrdiff_t c_stride)
{
    const int transposed = 1;
    switch (rows) { EACH_ROWS(TILES) }
}

/* c (rows, columns) = start + a (rows, depth) times b (depth, columns). a[i] points to row i.
   `start` is a row that all rows begin with. `columns` is a multiple of LANES. */
static void PRODUCT(multiply)(
    ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t depth, const SOURCE *const *a, const REAL *b,
    ptrdiff_t b_stride, const REAL *start, REAL *c, ptrdiff_t c_stride)
{
    for (ptrdiff_t t = 0; t < depth; t += DEPTH) {
        const ptrdiff_t part = least(DEPTH, depth - t);
        for (ptrdiff_t v = 0; v < columns; v += MOST_VECTORS * LANES) {
            const int vectors = (int)least(MOST_VECTORS, (columns - v) / LANES);
            for (ptrdiff_t i = 0; i < rows; i += MOST_ROWS) {
                REAL *to = c + i * c_stride + v;
                PRODUCT(by_rows)(
                    (int)least(MOST_ROWS, rows - i), vectors, a + i, part, t,
                    b + t * b_stride + v, b_stride, t ? to : start + v, t ? c_stride : 0, to,
                    c_stride);
            }
        }
    }
}

/* Adds a' (rows, depth) times b (depth, columns) to c, where a[t][i] are the numbers of a'. If
   `overwrite`, c is 0 before. */
static void PRODUCT(accumulate)(
    ptrdiff_t first, ptrdiff_t end, ptrdiff_t columns, ptrdiff_t depth, const SOURCE *const *a,
    const REAL *b, ptrdiff_t b_stride, const REAL *zeros, int overwrite, REAL *c, ptrdiff_t c_stride)
{
    for (ptrdiff_t t = 0; t < depth; t += DEPTH) {
        const ptrdiff_t part = least(DEPTH, depth - t);
        const int from_zero = overwrite && !t;
        for (ptrdiff_t group = 0; group < columns; group += GROUP) {
            const ptrdiff_t group_end = least(group + GROUP, columns);
            for (ptrdiff_t i = first; i < end; i += MOST_ROWS) {
                for (ptrdiff_t v = group; v < group_end; v += MOST_VECTORS * LANES) {
                    REAL *to = c + i * c_stride + v;
                    PRODUCT(by_columns)(
                        (int)least(MOST_ROWS, end - i),
                        (int)least(MOST_VECTORS, (group_end - v) / LANES), a + t, part, i,
                        b + t * b_stride + v, b_stride, from_zero ? zeros : to,
                        from_zero ? 0 : c_stride, to, c_stride);
                }
            }
        }
    }
}

#undef TILE
#undef TILES
