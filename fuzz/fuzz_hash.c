/* Hashes: whatever the offsets are, texts are hashed within their bytes, or refused; numbers of any length, and marks of them. */
#include "changing.h" /* before what includes once.h */
#include "distinct.h"
#include "marks.h"
#include "parts.h"
#include "xxh64.h"

enum { DATA, OFFSETS, NUM_PARTS };

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Part parts[NUM_PARTS];
  if (size < 2) return 0;
  const int width = data[0] & 1 ? 8 : 4;
  const uint64_t seed = data[1];
  period = data[0] >> 1 & 15;
  num_read = data[1];
  take_parts(data + 2, size - 2, parts, NUM_PARTS);
  const Part texts = parts[DATA], offsets = parts[OFFSETS];
  const int64_t num_texts = offsets.size / 4 - 1, num_words = texts.size / 8, num_values = texts.size / width;
  if (num_texts >= 0) {
    uint64_t* hashes = malloc((size_t)num_texts * 8);
    hash_texts(texts.at, texts.size, (const int32_t*)offsets.at, num_texts, seed, hashes);
    free(hashes);
  }
  uint64_t* hashes = malloc((size_t)num_words * 8);
  const uint64_t* const members[] = {(const uint64_t*)texts.at, (const uint64_t*)texts.at};
  hash_decimals((const int64_t*)texts.at, num_words, seed, (const uint64_t*)texts.at, (uint64_t)num_words, hashes);
  sign_rows(members, 2, num_words, seed, hashes);
  for (int64_t i = 0; i < num_words; i++)
    if (!hashes[i] || hashes[i] > INT64_MAX) abort();
  free(hashes);
  uint8_t bits[16];
  int64_t* small = malloc((size_t)(num_values + 1) * 8);
  const marked found = mark_values(texts.at, num_values, width, bits, sizeof bits - 1, (int64_t)seed << 55, small);
  if (found.num_missing + found.num_small > num_values || count_marks(texts.at, num_values, width) > num_values) abort();
  free(small);
  int64_t table[2 * 16] = {0};
  int64_t* firsts = malloc((size_t)(num_words + 1) * 8);
  const counted ids = count_ids(texts.at, NULL, num_words, table, 15, 0, firsts);
  if (ids.num_read < 0 || ids.num_read > num_words || ids.num_known > 8 || ids.num_new != ids.num_known) abort();
  free(firsts);
  free_parts(parts, NUM_PARTS);
  return 0;
}
