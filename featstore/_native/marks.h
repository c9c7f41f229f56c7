/* A slot's stored values in the bitmap and among the smallest hashes that count its different ones (featstore/table/statistics/sketches.py). */
#ifndef FEATSTORE_MARKS_H
#define FEATSTORE_MARKS_H

#include "distinct.h"

typedef struct {
  int64_t num_missing;
  int64_t num_small;
} marked;

/* SplitMix64's finaliser, upper 63 bits. */
static inline int64_t mix63(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return (int64_t)((word ^ (word >> 31)) >> 1);
}

/* Values of 8 bytes are their own hashes, 0 is missing; of 4 bytes are floats, hashed by their bits, NaN is missing. Sets the byte
   `hash & mask` of each, and writes those below the bound to `small`, which has room for all. */
static marked mark_values(const uint8_t* values, int64_t num_values, int width, uint8_t* bits, uint64_t mask, int64_t bound,
                          int64_t* small) {
  marked found = {0, 0};
  for (int64_t i = 0; i < num_values; i++) {
    uint64_t word = value_at(values, i, width);
    int missing = width == 8 ? word == 0 : (word & 0x7FFFFFFFu) > 0x7F800000u;
    if (missing) {
      found.num_missing++;
      continue;
    }
    int64_t hash = width == 8 ? (int64_t)word : mix63((uint64_t)(int64_t)(int32_t)(uint32_t)word);
    bits[(uint64_t)hash & mask] = 1;
    small[found.num_small] = hash;
    found.num_small += hash < bound;
  }
  return found;
}

#endif
