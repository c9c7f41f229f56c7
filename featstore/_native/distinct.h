/* How many different words there are: open addressing in a table that grows with them, so that few stay in the first cache. */
#ifndef FEATSTORE_DISTINCT_H
#define FEATSTORE_DISTINCT_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define SPREAD 0x9E3779B97F4A7C15ULL
#define FIRST_BITS 10

/* A table of 2^bits words, 0 where it is empty. */
struct words {
  uint64_t* table;
  int bits;
  int64_t count;
};

/* Whether the word, which is not 0, is new. */
static inline int insert_word(struct words* known, uint64_t word) {
  uint64_t mask = ((uint64_t)1 << known->bits) - 1, at = word * SPREAD >> (64 - known->bits);
  for (; known->table[at]; at = (at + 1) & mask)
    if (known->table[at] == word) return 0;
  known->table[at] = word;
  return 1;
}

/* Twice the table; 0 where there is no memory for it. */
static int grow_words(struct words* known) {
  struct words larger = {calloc((size_t)2 << known->bits, sizeof(uint64_t)), known->bits + 1, known->count};
  if (larger.table == NULL) return 0;
  for (int64_t at = 0; at < (int64_t)1 << known->bits; at++)
    if (known->table[at]) insert_word(&larger, known->table[at]);
  free(known->table);
  *known = larger;
  return 1;
}

static inline uint64_t value_at(const uint8_t* values, int64_t i, int width) {
  uint64_t word = 0;
  if (width == 8) memcpy(&word, values + 8 * i, 8);
  else memcpy(&word, values + 4 * i, 4);
  return word;
}

/* Different values among `num_values` of 4 or 8 bytes, by their bits; -1 where there is no memory. */
static int64_t count_distinct(const uint8_t* values, int64_t num_values, int width) {
  struct words known = {calloc((size_t)1 << FIRST_BITS, sizeof(uint64_t)), FIRST_BITS, 0};
  int has_zero = 0;
  if (known.table == NULL) return -1;
  for (int64_t i = 0; i < num_values; i++) {
    uint64_t word = value_at(values, i, width);
    if (word == 0) has_zero = 1;
    else known.count += insert_word(&known, word);
    if (2 * known.count > (int64_t)1 << known.bits && !grow_words(&known)) {
      free(known.table);
      return -1;
    }
  }
  free(known.table);
  return known.count + has_zero;
}

#endif
