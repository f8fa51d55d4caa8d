/* The engine for models of doubles. */
#include "train.h"
