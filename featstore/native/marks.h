/* A slot's stored values in the bitmap and among the smallest hashes that count its different ones (featstore/statistics/sketches.py),
   and in the table that counts each of them (id_counts.py). */
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

typedef struct {
  int64_t num_known;
  int64_t num_read;
  int64_t num_new;
} counted;

/* Counts ids in a table of `mask` + 1 places, a power of two, each of an id and its count: an id lies at its low bits or after, 0
   marks a free place. Ids of 0 are missing. `weights` are their counts, NULL for 1 each. Writes where new ids were to `firsts`. Stops before an
   id that would fill more than half of the table. `num_read` is -1 if the table was full, which a caller must prevent. */
static counted count_ids(const uint8_t* values, const uint8_t* weights, int64_t num_values, int64_t* table,
                            uint64_t mask, int64_t num_known, int64_t* firsts) {
  counted found = {num_known, 0, 0};
  for (; found.num_read < num_values; found.num_read++) {
    int64_t id = (int64_t)word_at(values + 8 * found.num_read);
    uint64_t at = (uint64_t)id & mask;
    /* Nearly every id is known and lies in its own place. */
    if (table[2 * at] == id && id && !weights) {
      table[2 * at + 1]++;
      continue;
    }
    if (!id) continue;
    uint64_t last = (at - 1) & mask;
    while (table[2 * at] != id && table[2 * at] && at != last) at = (at + 1) & mask;
    if (table[2 * at] != id) {
      if (table[2 * at]) {
        found.num_read = -1;
        return found;
      }
      if (2 * found.num_known > (int64_t)mask) return found;
      table[2 * at] = id;
      found.num_known++;
      firsts[found.num_new++] = found.num_read;
    }
    table[2 * at + 1] += weights ? (int64_t)word_at(weights + 8 * found.num_read) : 1;
  }
  return found;
}

#endif
