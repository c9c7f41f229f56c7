/* Parquet's DELTA_BINARY_PACKED: the first number, then differences in blocks, each of which has its least difference and miniblocks
   of what the others exceed it by, packed in as many bits as the largest of them needs, lowest first. Sums wrap. */
#ifndef FEATSTORE_DELTAS_H
#define FEATSTORE_DELTAS_H

#include <stdint.h>
#include <string.h>

#include "thrift.h"
#include "wide.h"

#define ONE_WORD 57 /* bits that lie in eight bytes wherever they begin */

typedef struct {
  Bytes bytes;   /* after what was read of them */
  int number_bits;
  int64_t size, num_miniblocks; /* numbers of a miniblock, and miniblocks of a block */
  int64_t left;                 /* numbers that are still to come */
  int is_first;                 /* the next one is */
  uint64_t number, least;       /* the last one, which before the first is that; and the least difference of the block */
  const uint8_t* widths;        /* of the miniblocks of the block that are still to come */
  int64_t num_widths;
  int width;
  const uint8_t* packed;        /* where the miniblock begins */
  int64_t bit, in_miniblock;    /* how far it was read, and how many of its numbers are still to come */
} Deltas;

/* A number that is as wide as the column's at most, as Arrow reads it. */
static int read_zigzag(Bytes* bytes, int number_bits, uint64_t* number) {
  uint64_t zigzag;
  if (!read_varint(bytes, &zigzag) || (number_bits == 32 && zigzag > UINT32_MAX)) return 0;
  *number = (uint64_t)zigzag_of(zigzag);
  return 1;
}

static int begin_deltas(Deltas* deltas, Bytes bytes, int number_bits) {
  uint64_t size, num_miniblocks, count;
  memset(deltas, 0, sizeof *deltas);
  if (!read_varint(&bytes, &size) || !read_varint(&bytes, &num_miniblocks) || !read_varint(&bytes, &count)) return 0;
  if (!read_zigzag(&bytes, number_bits, &deltas->number)) return 0;
  if (!size || size > INT32_MAX || size % 128 || !num_miniblocks || size % num_miniblocks || size / num_miniblocks % 32) return 0;
  if (count > INT32_MAX) return 0;
  deltas->bytes = bytes;
  deltas->number_bits = number_bits;
  deltas->size = (int64_t)(size / num_miniblocks);
  deltas->num_miniblocks = (int64_t)num_miniblocks;
  deltas->left = (int64_t)count;
  deltas->is_first = 1;
  return 1;
}

/* The next miniblock, of which the last may end after its last number. What is said of those after it may be anything. */
static int next_miniblock(Deltas* deltas) {
  if (!deltas->num_widths) {
    if (!read_zigzag(&deltas->bytes, deltas->number_bits, &deltas->least)) return 0;
    deltas->widths = deltas->bytes.at;
    deltas->num_widths = deltas->num_miniblocks;
    if (!skip_bytes(&deltas->bytes, (uint64_t)deltas->num_miniblocks)) return 0;
  }
  deltas->width = *deltas->widths++;
  deltas->num_widths--;
  deltas->packed = deltas->bytes.at;
  deltas->bit = 0;
  deltas->in_miniblock = deltas->left < deltas->size ? deltas->left : deltas->size;
  return deltas->width <= deltas->number_bits && skip_bytes(&deltas->bytes, ((uint64_t)deltas->in_miniblock * (uint64_t)deltas->width + 7) / 8);
}

/* The packed number of any width that begins at the bit, all of which lies before the end. */
static inline uint64_t wide_packed_at(const uint8_t* packed, const uint8_t* end, int64_t bit, int width) {
  const uint8_t* at = packed + (bit >> 3);
  const int shift = bit & 7;
  uint64_t word = 0;
  memcpy(&word, at, end - at < 8 ? (size_t)(end - at) : 8);
  word >>= shift;
  if (shift + width > 64) word |= (uint64_t)at[8] << (64 - shift);
  return width < 64 ? word & (((uint64_t)1 << width) - 1) : word;
}

INLINED void put_number(char* to, int64_t i, uint64_t number, const int number_bytes) {
  if (number_bytes == 8) memcpy(to + i * 8, &number, 8);
  else memcpy(to + i * 4, &(uint32_t){(uint32_t)number}, 4);
}

/* The next numbers of the miniblock. */
INLINED void add_deltas(Deltas* deltas, char* to, int64_t count, const int number_bytes) {
  const uint8_t *const packed = deltas->packed, *const end = deltas->bytes.end;
  const int width = deltas->width;
  const uint64_t least = deltas->least, mask = ((uint64_t)1 << (width & 63)) - 1;
  const int64_t last_word = width <= ONE_WORD ? (end - packed - 8) * 8 : -1; /* the last bit from whose byte on there are eight */
  uint64_t number = deltas->number;
  int64_t bit = deltas->bit, i = 0;
  for (; i < count && bit <= last_word; i++, bit += width) {
    uint64_t word;
    memcpy(&word, packed + (bit >> 3), 8);
    number += least + (word >> (bit & 7) & mask);
    put_number(to, i, number, number_bytes);
  }
  for (; i < count; i++, bit += width) {
    number += least + (width ? wide_packed_at(packed, end, bit, width) : 0);
    put_number(to, i, number, number_bytes);
  }
  deltas->number = number;
  deltas->bit = bit;
}

/* The next numbers, 4 or 8 bytes each. */
INLINED int read_deltas(Deltas* deltas, char* to, int64_t count, const int number_bytes) {
  if (count > deltas->left) return 0;
  for (int64_t now; count; count -= now, to += now * number_bytes, deltas->left -= now) {
    now = 1;
    if (deltas->is_first) {
      put_number(to, 0, deltas->number, number_bytes);
      deltas->is_first = 0;
      continue;
    }
    if (!deltas->in_miniblock && !next_miniblock(deltas)) return 0;
    now = deltas->in_miniblock < count ? deltas->in_miniblock : count;
    add_deltas(deltas, to, now, number_bytes);
    deltas->in_miniblock -= now;
  }
  return 1;
}

#endif
