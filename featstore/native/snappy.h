/* Snappy's raw format, as github.com/google/snappy describes it in format_description.txt: a length, then literals and copies of
   what came before. Written for pages of Parquet: checked element by element, copied in steps of 8 and 16 bytes. */
#ifndef FEATSTORE_SNAPPY_H
#define FEATSTORE_SNAPPY_H

#include <stdint.h>
#include <string.h>

#define SLOP 64 /* bytes behind the output that may be written to */
#define SNAPPY_STEP (128 << 10) /* compressed bytes between looks at whether to stop; 22 times as many at most come out */

enum { LITERAL = 0, COPY_1, COPY_2, COPY_4 };

/* `count` bytes, at most 8, as a number, lowest first. */
static inline uint64_t little_endian(const uint8_t* at, int count) {
  uint64_t number = 0;
  for (int i = 0; i < count; i++) number |= (uint64_t)at[i] << 8 * i;
  return number;
}

/* Bytes from `offset` before `to`, which may reach into what is being written: then they repeat. */
static inline void copy_back(uint8_t* to, int64_t offset, int64_t length) {
  const uint8_t* from = to - offset;
  if (offset >= 16) {
    for (int64_t i = 0; i < length; i += 16) memcpy(to + i, from + i, 16);
    return;
  }
  for (uint64_t word; to - from < 8 && length > 0; length -= offset, to += offset, offset = to - from) {
    memcpy(&word, from, 8); /* of these bytes the first `offset` are right, which is how far it goes on */
    memcpy(to, &word, 8);
  }
  for (int64_t i = 0; i < length; i += 8) {
    uint64_t word;
    memcpy(&word, from + i, 8);
    memcpy(to + i, &word, 8);
  }
}

/* Bytes `at` to `end` to exactly `size` bytes; 0 for what is malformed, and once `stop` is not 0. Writes as far as SLOP bytes
   behind them. */
static int decompress_snappy(
    const uint8_t* at, const uint8_t* end, uint8_t* out, int64_t size, const volatile uint8_t* stop) {
  uint8_t *to = out, *const out_end = out + size;
  uint64_t said = 0;
  int shift = 0;
  do {
    if (at >= end || shift > 28) return 0;
    said |= (uint64_t)(*at & 0x7f) << shift;
    shift += 7;
  } while (*at++ & 0x80);
  if (said != (uint64_t)size) return 0;
  while (at < end) {
    if (*stop) return 0;
    const uint8_t* const pause = end - at > SNAPPY_STEP ? at + SNAPPY_STEP : end;
    while (at < pause) {
      const uint32_t tag = *at++, kind = tag & 3;
      if (kind == LITERAL) {
        int64_t length = (tag >> 2) + 1;
        if (length <= 16 && end - at >= 16 && length <= out_end - to) {
          memcpy(to, at, 16);
        } else {
          if (length > 60) {
            const int num_bytes = (int)length - 60;
            if (end - at < num_bytes) return 0;
            length = (int64_t)little_endian(at, num_bytes) + 1;
            at += num_bytes;
          }
          if (length > end - at || length > out_end - to) return 0;
          memcpy(to, at, (size_t)length);
        }
        at += length;
        to += length;
        continue;
      }
      const int num_bytes = kind == COPY_4 ? 4 : (int)kind;
      if (end - at < num_bytes) return 0;
      int64_t offset = (int64_t)little_endian(at, num_bytes), length = (tag >> 2) + 1;
      if (kind == COPY_1) {
        offset |= (int64_t)(tag >> 5) << 8;
        length = (tag >> 2 & 7) + 4;
      }
      at += num_bytes;
      if (!offset || offset > to - out || length > out_end - to) return 0;
      copy_back(to, offset, length);
      to += length;
    }
  }
  return to == out_end;
}

#endif
