/* A one-shot variant for three ranks and f32 that uses one slot. */
#ifndef RANKFOLD_TESTS_ONE_SLOT_H
#define RANKFOLD_TESTS_ONE_SLOT_H

#include "abi.h"

extern const rf_variant one_slot;

#endif
