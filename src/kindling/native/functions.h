/* exp, log, tanh, cos and sin, and the normal distribution, of vectors. Computed here, because the results of a
   library depend on its version. */
#pragma once
#include "vectors.h"

/* 1/i!: the Taylor series of exp, cos and sin. */
static const double FACTORIAL[] = {
    1.0, 1.0, 1.0 / 2, 1.0 / 6, 1.0 / 24, 1.0 / 120, 1.0 / 720, 1.0 / 5040, 1.0 / 40320,
    1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800,
    1.0 / 87178291200, 1.0 / 1307674368000, 1.0 / 20922789888000, 1.0 / 355687428096000};
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

#if defined(SINGLE)
#define MANTISSA 23
#define MAGIC 12582912.0f /* 1.5 · 2^23: adding it rounds to a whole number, in the last bits */
#define LN2_HIGH 0x1.62e4p-1f
#define LN2_LOW 0x1.7f7d1cp-20f
#define SMALLEST (-87.0f) /* of the arguments of exp; below, the result is the same */
#define EXP_TERMS 7
#define LOG_TERMS 5
#define ERFC_TERMS 11
#define CIRCLE_TERMS 4
#else
#define MANTISSA 52
#define MAGIC 6755399441055744.0
#define LN2_HIGH 0x1.62e42fefa39efp-1
#define LN2_LOW 0x1.abc9e3b39803fp-56
#define SMALLEST (-708.0)
#define EXP_TERMS 13
#define LOG_TERMS 11
#define ERFC_TERMS 27
#define CIRCLE_TERMS 8
#endif

static inline Vector exponential(Vector x)
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

/* Of normal x > 0; of NaN and infinity NaN. */
static inline Vector logarithm(Vector x)
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

/* cos and sin of (quarter + part) · π/2, with -1/2 <= part <= 1/2 and a quarter from 0 to 3. */
static inline void circle(Vector part, Integers quarter, Vector *cosine, Vector *sine)
{
    const Vector angle = part * (REAL)1.5707963267948966, square = angle * -angle;
    Vector c = BROADCAST(FACTORIAL[2 * CIRCLE_TERMS]), s = BROADCAST(FACTORIAL[2 * CIRCLE_TERMS + 1]);
    EACH(i, CIRCLE_TERMS) {
        c = FMA(c, square, BROADCAST(FACTORIAL[2 * (CIRCLE_TERMS - 1 - i)]));
        s = FMA(s, square, BROADCAST(FACTORIAL[2 * (CIRCLE_TERMS - 1 - i) + 1]));
    }
    s *= angle;
    /* In odd quarters the two change places. cos is negative in quarters 1 and 2, sin in 2 and 3. */
    const Integers odd = -(quarter & 1), half = quarter & 2;
    const Integers negative = half << (8 * sizeof(REAL) - 2);
    const Integers other = ((quarter + 1) & 2) << (8 * sizeof(REAL) - 2);
    *cosine = (Vector)((Integers)SELECT(odd, s, c) ^ other);
    *sine = (Vector)((Integers)SELECT(odd, c, s) ^ negative);
}

static inline Vector absolute(Vector x)
{
    return (Vector)((Integers)x & ~(Integers)BROADCAST(-0.0));
}

static inline Vector signed_as(Vector x, Vector sign)
{
    return (Vector)((Integers)x | ((Integers)sign & (Integers)BROADCAST(-0.0)));
}

/* 1 - 2 / (exp(2 |x|) + 1); near 0 a series by Cody and Waite, as in the Cephes library. */
static inline Vector hyperbolic_tangent(Vector x)
{
    const Vector size = absolute(x), square = x * x;
    const Vector inverse = exponential(size * (REAL)-2);
    const Vector far = (1 - inverse) / (1 + inverse);
    Vector near;
    if (sizeof(REAL) == sizeof(float)) {
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
    return signed_as(SELECT((Integers)(size < (REAL)0.625), near, far), x);
}

/* The distribution function and the density of the standard normal distribution. */
static inline void normal(Vector x, Vector *distribution, Vector *density)
{
    const Vector t = 1 / FMA(absolute(x), BROADCAST(0.35355339059327376), BROADCAST(1));
    const Vector s = t * 2 - 1, twice = s * 2;
    Vector last = BROADCAST(0), sum = BROADCAST(ERFC[ERFC_TERMS - 1]);
    for (int i = ERFC_TERMS - 2; i > 0; i--) { /* Clenshaw's recurrence */
        const Vector next = FMA(twice, sum, BROADCAST(ERFC[i]) - last);
        last = sum;
        sum = next;
    }
    sum = FMA(s, sum, BROADCAST(ERFC[0]) - last);
    const Vector bell = exponential(x * x * (REAL)-0.5);
    const Vector tail = bell * t * sum * (REAL)0.5;
    *distribution = SELECT((Integers)(x < 0), tail, 1 - tail);
    *density = bell * (REAL)0.39894228040143268;
}
