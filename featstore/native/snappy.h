/* Snappy's raw format, as github.com/google/snappy describes it in format_description.txt: a length, then literals and copies of
   what came before. Written for pages of Parquet: checked element by element, copied in steps of 16 bytes. */
#ifndef FEATSTORE_SNAPPY_H
#define FEATSTORE_SNAPPY_H

#include <stdint.h>
#include <string.h>

#include "thrift.h"
#include "wide.h"

#define FAR 96 /* bytes to the ends of input and output: then an element may read and write beyond itself */
#define SNAPPY_STEP (128 << 10) /* compressed bytes between looks at whether to stop; 22 times as many at most come out */

enum { LITERAL = 0, COPY_1, COPY_2, COPY_4 };

/* `count` bytes, at most 4, as a number, lowest first. */
static inline uint32_t little_endian(const uint8_t* at, int count) {
  uint32_t number = 0;
  memcpy(&number, at, (size_t)count);
  return number;
}

static inline uint64_t load_word(const uint8_t* at) {
  uint64_t word;
  memcpy(&word, at, sizeof word);
  return word;
}

/* Where the numbers of a copy lie in its bytes, by its kind. */
static const struct { uint32_t length, least, low, high; } copies[] = {
    [COPY_1] = {7, 4, 0xff, 0x700}, [COPY_2] = {63, 1, 0xffff, 0}};

/* Bytes from `offset` before `to`, which may reach into what is being written: then they repeat. Writes up to 16 bytes beyond. */
static inline void copy_back(uint8_t* to, int64_t offset, int64_t length) {
  const uint8_t* const from = to - offset;
  if (offset >= 16) {
    memcpy(to, from, 16);
    for (int64_t i = 16; i < length; i += 16) memcpy(to + i, from + i, 16);
  } else if (offset >= 8) {
    for (int64_t i = 0; i < length; i += 8) memcpy(to + i, from + i, 8);
  } else { /* what is repeated is not read again: it would have to be written before */
    uint64_t word = load_word(from) & UINT64_MAX >> (64 - 8 * offset);
    for (int64_t known = offset; known < 8; known *= 2) word |= word << 8 * known;
    for (int64_t i = 0, step = 8 - 8 % (int)offset; i < length; i += step) memcpy(to + i, &word, 8);
  }
}

/* The length of a literal after its tag, which may go on `at`; more than there can be where it ends. */
static inline int64_t literal_length(uint32_t tag, const uint8_t** at, const uint8_t* end) {
  const int64_t length = tag >> 2;
  const int num_bytes = (int)length - 59;
  if (num_bytes <= 0) return length + 1;
  if (end - *at < num_bytes) return INT64_MAX;
  *at += num_bytes;
  return (int64_t)little_endian(*at - num_bytes, num_bytes) + 1;
}

/* Passes over the length of what a page gives, which must be `size`, and the literal with which it begins, which may be empty. */
static int first_literal(Bytes* page, int64_t size, Bytes* literal) {
  uint64_t said;
  const uint8_t* const begin = page->at;
  if (!read_varint(page, &said) || page->at - begin > 5 || said != (uint64_t)size) return 0;
  literal->at = literal->end = page->at;
  if (page->at == page->end) return 1;
  const uint32_t tag = *page->at;
  if ((tag & 3) != LITERAL) return 1;
  page->at++;
  const int64_t length = literal_length(tag, &page->at, page->end);
  if (length > page->end - page->at || length > size) return 0;
  literal->at = page->at;
  literal->end = page->at += length;
  return 1;
}

INLINED int decompress_elements(Bytes page, int64_t skipped, uint8_t* out, int64_t size, const volatile uint8_t* stop) {
  Bytes literal;
  if (!first_literal(&page, skipped + size, &literal) || literal.end - literal.at < skipped) return 0;
  const uint8_t *at = page.at, *const end = page.end;
  const int64_t num_first = literal.end - literal.at - skipped;
  if (num_first) memcpy(out, literal.at + skipped, (size_t)num_first);
  uint8_t *to = out + num_first, *const out_end = out + size;
  const uint8_t* const to_far = size > FAR ? out_end - FAR : out;
  while (at < end) {
    if (*stop) return 0;
    const uint8_t* const pause = end - at > SNAPPY_STEP ? at + SNAPPY_STEP : end;
    const uint8_t* const far = pause - at > FAR ? pause - FAR : at;
    while (at < pause) {
      /* Pages of numbers are short literals and copies by turns. What the CPU would wait for is not waited for: both are read from
         one word, the next word is read before it is known which copy this is, and that is no branch, which nobody could foresee. */
      for (uint64_t word, next = at < far ? load_word(at) : 0; at < far && to < to_far;) {
        word = next;
        if ((word & 3) == LITERAL) {
          const uint64_t length = (word >> 2 & 63) + 1;
          if (length > 16) break;
          memcpy(to, at + 1, 16);
          to += length;
          at += length + 1;
          word = length <= 3 ? word >> 8 * (length + 1) : load_word(at);
        }
        next = load_word(at + 2);
        const uint64_t kind = word & 3;
        if (kind != COPY_1 && kind != COPY_2) break;
        const uint64_t length = (word >> 2 & copies[kind].length) + copies[kind].least;
        const uint64_t offset = (word >> 8 & copies[kind].low) | (word << 3 & copies[kind].high);
        if (offset - 1 >= (uint64_t)(to - out)) return 0;
        copy_back(to, (int64_t)offset, (int64_t)length);
        next >>= 8 * (kind - 1);
        at += kind + 1;
        to += length;
      }
      const uint32_t tag = *at++, kind = tag & 3;
      int64_t length = (tag >> 2) + 1;
      if (kind == LITERAL) {
        length = literal_length(tag, &at, end);
        if (length > end - at || length > out_end - to) return 0;
        memcpy(to, at, (size_t)length);
        at += length;
      } else {
        const int num_bytes = kind == COPY_4 ? 4 : (int)kind;
        if (end - at < num_bytes) return 0;
        int64_t offset = little_endian(at, num_bytes);
        if (kind == COPY_1) {
          offset |= (int64_t)(tag >> 5) << 8;
          length = (tag >> 2 & 7) + 4;
        }
        at += num_bytes;
        if (!offset || offset > to - out || length > out_end - to) return 0;
        for (int64_t i = 0; i < length; i++) to[i] = to[i - offset];
      }
      to += length;
    }
  }
  return to == out_end;
}

static int portable_decompress(Bytes page, int64_t skipped, uint8_t* out, int64_t size, const volatile uint8_t* stop) {
  return decompress_elements(page, skipped, out, size, stop);
}

#if HAS_WIDE
static WIDE int wide_decompress(Bytes page, int64_t skipped, uint8_t* out, int64_t size, const volatile uint8_t* stop) {
  return decompress_elements(page, skipped, out, size, stop);
}
#else
#define wide_decompress portable_decompress
#endif

/* A page to exactly `size` bytes, behind those of its first literal that are skipped; 0 for what is malformed, where a copy is of a
   skipped byte, and once `stop` is not 0. Twice, as pages are decoded: what is wide shifts in one instruction. */
static int decompress_snappy(
    Bytes page, int64_t skipped, uint8_t* out, int64_t size, const volatile uint8_t* stop, int is_wide) {
  return (is_wide ? wide_decompress : portable_decompress)(page, skipped, out, size, stop);
}

#endif
