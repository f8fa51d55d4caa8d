/* The engine for models of floats. */
#define SINGLE
#include "train.h"
