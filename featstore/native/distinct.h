/* Marks of values in a map of bits, from whose number the count of different values is estimated (featstore/extraction/units/encoding.py). */
#ifndef FEATSTORE_DISTINCT_H
#define FEATSTORE_DISTINCT_H

#include "xxh64.h"

#define MARK_BITS 18
#define NUM_MARK_WORDS ((1 << MARK_BITS) / 64)

static inline uint64_t value_at(const uint8_t* values, int64_t i, int width) {
  return width == 8 ? word_at(values + 8 * i) : half_at(values + 4 * i);
}

/* How many of 2^18 bits the values, of 4 or 8 bytes, mark: each the one that the first bits of its mixed word number. */
static int64_t count_marks(const uint8_t* values, int64_t num_values, int width) {
  uint64_t map[NUM_MARK_WORDS] = {0};
  int64_t count = 0;
  for (int64_t i = 0; i < num_values; i++) {
    uint64_t at = avalanche(value_at(values, i, width) + P5) >> (64 - MARK_BITS);
    map[at >> 6] |= (uint64_t)1 << (at & 63);
  }
  for (int64_t i = 0; i < NUM_MARK_WORDS; i++)
    for (uint64_t word = map[i]; word; word &= word - 1) count++;
  return count;
}

#endif
