/* The products for each kind of features, and for numbers of type REAL. */
#pragma once
#include "vectors.h"

/* Blocks of a product: DEPTH times a tile's columns stay in the first cache, GROUP columns of the
   right factor in the second. */
enum { DEPTH = 256, GROUP = 128 };

#define SOURCE uint8_t
#define PRODUCT(x) x##_bytes
#define VALUE(x) SCALED[x]
static REAL SCALED[256]; /* filled when the library is loaded */
#include "product.h"
#undef SOURCE
#undef PRODUCT
#undef VALUE

#define SOURCE float
#define PRODUCT(x) x##_floats
#define VALUE(x) ((REAL)(x))
#include "product.h"
#undef SOURCE
#undef PRODUCT

#if defined(SINGLE)
#define multiply_real multiply_floats
#define accumulate_real accumulate_floats
#else
#define SOURCE REAL
#define PRODUCT(x) x##_doubles
#include "product.h"
#undef SOURCE
#undef PRODUCT
#define multiply_real multiply_doubles
#define accumulate_real accumulate_doubles
#endif
#undef VALUE

__attribute__((constructor)) static void fill_scaled(void)
{
    for (int i = 0; i < 256; i++) SCALED[i] = (REAL)((float)i / 255.0f); /* as torchvision's ToTensor */
}
