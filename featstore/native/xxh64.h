/* XXH64 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md) of texts, of decimals, and of chained words.

   Plain C over plain memory: no Python, nothing allocated. Addresses may be unaligned. */
#ifndef FEATSTORE_XXH64_H
#define FEATSTORE_XXH64_H

#include <stdint.h>
#include <string.h>

#include "once.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the kernels read words as little-endian"
#endif

#define P1 0x9E3779B185EBCA87ULL
#define P2 0xC2B2AE3D27D4EB4FULL
#define P3 0x165667B19E3779F9ULL
#define P4 0x85EBCA77C2B2AE63ULL
#define P5 0x27D4EB2F165667C5ULL

static inline uint64_t rotate(uint64_t word, int bits) { return word << bits | word >> (64 - bits); }

static inline uint64_t word_at(const uint8_t* at) {
  uint64_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

static inline uint32_t half_at(const uint8_t* at) {
  uint32_t half;
  memcpy(&half, at, sizeof half);
  return half;
}

static inline uint64_t mix_round(uint64_t lane, uint64_t word) { return rotate(lane + word * P2, 31) * P1; }

static inline uint64_t mix_word(uint64_t hash, uint64_t word) {
  return rotate(hash ^ mix_round(0, word), 27) * P1 + P4;
}

static inline uint64_t avalanche(uint64_t hash) {
  hash = (hash ^ hash >> 33) * P2;
  hash = (hash ^ hash >> 29) * P3;
  return hash ^ hash >> 32;
}

/* The stripes of 32 bytes before `end`, four lanes merged into one hash. */
static uint64_t hash_stripes(const uint8_t* at, const uint8_t* end, uint64_t seed) {
  uint64_t lanes[4] = {seed + P1 + P2, seed + P2, seed, seed - P1};
  for (; at < end; at += 32)
    for (int i = 0; i < 4; i++) lanes[i] = mix_round(lanes[i], word_at(at + 8 * i));
  uint64_t hash = rotate(lanes[0], 1) + rotate(lanes[1], 7) + rotate(lanes[2], 12) + rotate(lanes[3], 18);
  for (int i = 0; i < 4; i++) hash = (hash ^ mix_round(0, lanes[i])) * P1 + P4;
  return hash;
}

static inline uint64_t hash_bytes(const uint8_t* at, uint64_t size, uint64_t seed) {
  const uint8_t *end = at + size, *stripes_end = at + (size & ~(uint64_t)31);
  uint64_t hash = (size >= 32 ? hash_stripes(at, stripes_end, seed) : seed + P5) + size;
  for (at = stripes_end; end - at >= 8; at += 8) hash = mix_word(hash, word_at(at));
  if (end - at >= 4) {
    hash = rotate(hash ^ half_at(at) * P1, 23) * P2 + P3;
    at += 4;
  }
  for (; at < end; at++) hash = rotate(hash ^ *at * P5, 11) * P1;
  return avalanche(hash);
}

/* AVX-512 multiplies 64 bits by 64 in one instruction; without it each product takes three and some additions. The functions with it
   are loops without branches, of which a compiler makes vector instructions. */
#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#define MULTIPLYING_WIDE __attribute__((target("avx512f,avx512dq,avx512vl")))

static int multiplies_wide(void) {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#else
#define MULTIPLYING_WIDE
static int multiplies_wide(void) { return 0; }
#endif

/* Hashes of the texts `data[offsets[i] ... offsets[i + 1]]`; 0 where an offset falls, or is outside of the data. Each offset
   is read once, checked and used: another thread may change it. */
static int portable_hash_texts(
    const uint8_t* data, int64_t num_bytes, const int32_t* offsets, int64_t num_texts, uint64_t seed, uint64_t* hashes) {
  int32_t begin = int32_at(offsets, 0);
  if (begin < 0) return 0;
  for (int64_t i = 0; i < num_texts; i++) {
    const int32_t end = int32_at(offsets, i + 1);
    if (end < begin || end > num_bytes) return 0;
    hashes[i] = hash_bytes(data + begin, (uint64_t)(end - begin), seed);
    begin = end;
  }
  return 1;
}

#define TEXT_BLOCK 256
#define SHORT_TEXT 16 /* bytes; the hashes of shorter texts are computed together */

/* Of texts shorter than `SHORT_TEXT`, each in two words. No CPU foresees how long the next one is, so that for each all steps are
   computed, and those kept that it has: one of eight bytes, one of four, three of one. */
static inline __attribute__((always_inline)) void hash_short(
    const uint64_t* first, const uint64_t* second, const uint64_t* sizes, int64_t count, uint64_t seed, uint64_t* hashes) {
  for (int64_t i = 0; i < count; i++) {
    const uint64_t size = sizes[i], has_word = 0 - (size >> 3 & 1), has_half = 0 - (size >> 2 & 1);
    uint64_t hash = seed + P5 + size, rest = first[i] ^ ((first[i] ^ second[i]) & has_word);
    hash ^= (hash ^ mix_word(hash, first[i])) & has_word;
    hash ^= (hash ^ (rotate(hash ^ (uint32_t)rest * P1, 23) * P2 + P3)) & has_half;
    rest >>= has_half & 32;
    for (uint64_t k = 0; k < 3; k++, rest >>= 8)
      hash ^= (hash ^ rotate(hash ^ (rest & 255) * P5, 11) * P1) & (0 - (uint64_t)(k < (size & 3)));
    hashes[i] = avalanche(hash);
  }
}

/* The data must have the bytes of a short text. Where most texts are longer, none are computed together. */
static MULTIPLYING_WIDE int wide_hash_texts(
    const uint8_t* data, int64_t num_bytes, const int32_t* offsets, int64_t num_texts, uint64_t seed, uint64_t* hashes) {
  uint64_t first[TEXT_BLOCK], second[TEXT_BLOCK], sizes[TEXT_BLOCK];
  int32_t begin = int32_at(offsets, 0);
  if (begin < 0) return 0;
  for (int64_t done = 0; done < num_texts; done += TEXT_BLOCK) {
    const int64_t count = num_texts - done < TEXT_BLOCK ? num_texts - done : TEXT_BLOCK;
    int64_t at = begin, num_short = 0;
    for (int64_t i = 0; i < count; i++) {
      const int32_t end = int32_at(offsets, done + i + 1);
      if (end < begin || end > num_bytes) return 0;
      const int is_short = (end - begin < SHORT_TEXT) & (begin <= num_bytes - SHORT_TEXT);
      const uint8_t* const text = data + (is_short ? begin : 0);
      first[i] = word_at(text);
      second[i] = word_at(text + 8);
      sizes[i] = (uint64_t)(end - begin);
      num_short += is_short;
      begin = end;
    }
    const int64_t num_together = 2 * num_short >= count ? num_short : 0;
    if (num_together) hash_short(first, second, sizes, count, seed, hashes + done);
    for (int64_t i = 0; num_together < count && i < count; at += (int64_t)sizes[i++])
      if (!num_together || sizes[i] >= SHORT_TEXT || at > num_bytes - SHORT_TEXT)
        hashes[done + i] = hash_bytes(data + at, sizes[i], seed);
  }
  return 1;
}

static int hash_texts(
    const uint8_t* data, int64_t num_bytes, const int32_t* offsets, int64_t num_texts, uint64_t seed, uint64_t* hashes) {
  const int is_wide = num_bytes >= SHORT_TEXT && multiplies_wide();
  return (is_wide ? wide_hash_texts : portable_hash_texts)(data, num_bytes, offsets, num_texts, seed, hashes);
}

/* The same, where each hash is first the seed of its text. */
static int chain_texts(const uint8_t* data, int64_t num_bytes, const int32_t* offsets, int64_t num_texts, uint64_t* hashes) {
  int32_t begin = int32_at(offsets, 0);
  if (begin < 0) return 0;
  for (int64_t i = 0; i < num_texts; i++) {
    const int32_t end = int32_at(offsets, i + 1);
    if (end < begin || end > num_bytes) return 0;
    hashes[i] = hash_bytes(data + begin, (uint64_t)(end - begin), hashes[i]);
    begin = end;
  }
  return 1;
}

/* Hashes of the shortest decimal texts of integers; of 0 to `num_known` - 1 they are known. */
static void hash_decimals(const int64_t* values, int64_t num_values, uint64_t seed, const uint64_t* known, uint64_t num_known,
                          uint64_t* hashes) {
  uint8_t text[20];
  uint8_t* const end = text + sizeof text;
  for (int64_t i = 0; i < num_values; i++) {
    uint8_t* at = end;
    const int64_t value = int64_at(values, i);
    if ((uint64_t)value < num_known) {
      hashes[i] = word_at((const uint8_t*)known + 8 * value);
      continue;
    }
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do *--at = (uint8_t)('0' + rest % 10);
    while (rest /= 10);
    if (value < 0) *--at = '-';
    hashes[i] = hash_bytes(at, (uint64_t)(end - at), seed);
  }
}

/* Signs: each row's members, 8 bytes each, chained as seeds; 63 bits, 0 becomes 1. One member of a block of rows after the other:
   loops without branches, of which a compiler makes vector instructions. Words are not checked, so they may change meanwhile. */
#define SIGN_BLOCK_ROWS 512

static inline __attribute__((always_inline)) void sign_blocks(
    const uint64_t* const* members, int64_t num_members, int64_t num_rows, uint64_t seed, uint64_t* signs) {
  for (int64_t first = 0; first < num_rows; first += SIGN_BLOCK_ROWS) {
    uint64_t chained[SIGN_BLOCK_ROWS];
    const int64_t count = num_rows - first < SIGN_BLOCK_ROWS ? num_rows - first : SIGN_BLOCK_ROWS;
    for (int64_t i = 0; i < count; i++) chained[i] = seed;
    for (int64_t m = 0; m < num_members; m++) {
      const uint8_t* words = (const uint8_t*)members[m] + first * 8;
      for (int64_t i = 0; i < count; i++) chained[i] = avalanche(mix_word(chained[i] + P5 + 8, word_at(words + i * 8)));
    }
    for (int64_t i = 0; i < count; i++) {
      const uint64_t sign = chained[i] & INT64_MAX;
      signs[first + i] = sign ? sign : 1;
    }
  }
}

static void portable_sign_rows(
    const uint64_t* const* members, int64_t num_members, int64_t num_rows, uint64_t seed, uint64_t* signs) {
  sign_blocks(members, num_members, num_rows, seed, signs);
}

static MULTIPLYING_WIDE void wide_sign_rows(
    const uint64_t* const* members, int64_t num_members, int64_t num_rows, uint64_t seed, uint64_t* signs) {
  sign_blocks(members, num_members, num_rows, seed, signs);
}

static void sign_rows(const uint64_t* const* members, int64_t num_members, int64_t num_rows, uint64_t seed, uint64_t* signs) {
  (multiplies_wide() ? wide_sign_rows : portable_sign_rows)(members, num_members, num_rows, seed, signs);
}

#endif
