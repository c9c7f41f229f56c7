/* Rows of decoded columns: marks for nulls, and rows in another order, cut into batches.

   Plain C over plain memory. Widths are in bytes. A validity bitmap is Arrow's: bit i of byte i / 8, lowest first, set where a
   value is. A function that meets an offset, a row or a cut beyond what it was given stops and says so (0, or -1), having
   written only inside its output. */
#ifndef FEATSTORE_ROWS_H
#define FEATSTORE_ROWS_H

#include <stdint.h>
#include <string.h>

#if !defined(__GNUC__)
#define __builtin_prefetch(address) ((void)(address))
#endif

#define BLOCK 64 /* bytes */
#define LIST_STEP 32 /* bytes */
#define AHEAD 24 /* rows that are fetched into the cache before they are copied */

static inline int is_set(const uint8_t* bits, int64_t i) { return bits[i >> 3] >> (i & 7) & 1; }

static inline int64_t offset_at(const void* offsets, int width, int64_t i) {
  return width == 4 ? ((const int32_t*)offsets)[i] : ((const int64_t*)offsets)[i];
}

/* Copies a list; up to `room` bytes may be read, and written, beyond its end: one block is quicker than to look at each value. */
static inline void copy_list(char* to, const char* from, int64_t bytes, int64_t room) {
  if (bytes > BLOCK || room < BLOCK)
    memcpy(to, from, (size_t)bytes);
  else
    memcpy(to, from, BLOCK);
}

/* Writes `mark` over the values whose bit, from `first_bit` on, is not set. */
static void fill_nulls(char* values, int64_t count, int width, const uint8_t* bits, int64_t first_bit, const char* mark) {
  for (int64_t i = 0; i < count;) {
    int64_t bit = first_bit + i;
    if (!(bit & 7) && bits[bit >> 3] == 0xff) {
      i += 8;
      continue;
    }
    if (!is_set(bits, bit)) memcpy(values + i * width, mark, (size_t)width);
    i++;
  }
}

typedef struct {
  const void* offsets; /* num_rows + 1 */
  int offset_width;
  int64_t num_rows;
  const uint8_t* bits; /* of the lists, or NULL where none is null */
  int64_t first_bit;
  const char* values;
  int64_t num_values;
  const uint8_t* value_bits; /* of the values, or NULL */
  int64_t first_value_bit;
} Lists;

/* The lists without null elements, a null list as one mark. How many values were written, -1 where something does not fit. */
static int64_t lists_without_nulls(
    const Lists* lists, int width, const char* mark, int64_t* new_offsets, char* new_values, int64_t capacity) {
  int64_t written = 0;
  new_offsets[0] = 0;
  for (int64_t row = 0; row < lists->num_rows; row++) {
    int64_t begin = offset_at(lists->offsets, lists->offset_width, row);
    int64_t end = offset_at(lists->offsets, lists->offset_width, row + 1);
    if (begin < 0 || end < begin || end > lists->num_values) return -1;
    if (lists->bits && !is_set(lists->bits, lists->first_bit + row)) {
      if (written + 1 > capacity) return -1;
      memcpy(new_values + written++ * width, mark, (size_t)width);
    } else if (!lists->value_bits) {
      if (written + end - begin > capacity) return -1;
      int64_t readable = (lists->num_values - begin) * width, writable = (capacity - written) * width;
      const char* from = lists->values + begin * width;
      copy_list(new_values + written * width, from, (end - begin) * width, readable < writable ? readable : writable);
      written += end - begin;
    } else {
      for (int64_t i = begin; i < end; i++) {
        if (!is_set(lists->value_bits, lists->first_value_bit + i)) continue;
        if (written + 1 > capacity) return -1;
        memcpy(new_values + written++ * width, lists->values + i * width, (size_t)width);
      }
    }
    new_offsets[row + 1] = written;
  }
  return written;
}

/* Offsets of the rows between neighbouring cuts, each part from 0: num_rows + num_parts of them. */
static int rebase_offsets(
    const void* offsets, int width, int64_t num_rows, const int64_t* cuts, int64_t num_parts, int64_t* rebased) {
  for (int64_t part = 0; part < num_parts; part++)
    if (cuts[part] < 0 || cuts[part + 1] < cuts[part] || cuts[part + 1] > num_rows) return 0;
  for (int64_t part = 0; part < num_parts; part++) {
    int64_t first = offset_at(offsets, width, cuts[part]);
    for (int64_t row = cuts[part]; row <= cuts[part + 1]; row++) *rebased++ = offset_at(offsets, width, row) - first;
  }
  return 1;
}

typedef struct {
  const char* values;
  int64_t num_values;
  const void* offsets; /* NULL where a row is one value */
  int64_t num_found; /* rows that there are */
  const int32_t* rows; /* the rows wanted */
  int64_t num_rows;
  const int64_t* cuts; /* num_parts + 1 rows: where parts begin and end */
  int64_t num_parts;
} Gather;

static int rows_fit(const Gather* gather) {
  uint32_t most = 0; /* a row below zero is above all others */
  for (int64_t i = 0; i < gather->num_rows; i++) most = (uint32_t)gather->rows[i] > most ? (uint32_t)gather->rows[i] : most;
  if (gather->num_rows && most >= gather->num_found) return 0;
  if (gather->cuts[0] != 0 || gather->cuts[gather->num_parts] != gather->num_rows) return 0;
  for (int64_t part = 0; part < gather->num_parts; part++)
    if (gather->cuts[part + 1] < gather->cuts[part]) return 0;
  return 1;
}

/* Reads all values from the first to the last: in that order memory comes several times as fast as in any other, and then is
   near. */
static void fetch_values(const Gather* gather, int64_t width) {
  const volatile char* values = gather->values;
  for (int64_t at = 0; at < gather->num_values * width; at += BLOCK) (void)values[at];
}

/* The rows of each part to where it starts in `out`, in bytes. */
static int gather_values(const Gather* gather, int64_t width, const int64_t* starts, char* out, int64_t out_bytes) {
  if (!rows_fit(gather)) return 0;
  fetch_values(gather, width);
  for (int64_t part = 0; part < gather->num_parts; part++) {
    int64_t first = gather->cuts[part], count = gather->cuts[part + 1] - first;
    if (starts[part] < 0 || count * width > out_bytes - starts[part]) return 0;
    const int32_t* rows = gather->rows + first;
    char* to = out + starts[part];
    if (width == 8) {
      for (int64_t i = 0; i < count; i++) ((int64_t*)to)[i] = ((const int64_t*)gather->values)[rows[i]];
    } else if (width == 4) {
      for (int64_t i = 0; i < count; i++) ((int32_t*)to)[i] = ((const int32_t*)gather->values)[rows[i]];
    } else {
      for (int64_t i = 0; i < count; i++) memcpy(to + i * width, gather->values + rows[i] * width, (size_t)width);
    }
  }
  return 1;
}

static inline int offsets_of_lists(const Gather* gather, int offset_width, int64_t* to) {
  const void* const offsets = gather->offsets;
  const int32_t* const rows = gather->rows;
  const int64_t num_values = gather->num_values, num_parts = gather->num_parts;
  int fits = 1;
  for (int64_t part = 0; part < num_parts; part++) {
    const int64_t last_row = gather->cuts[part + 1];
    int64_t at = 0;
    *to++ = 0;
    for (int64_t i = gather->cuts[part]; i < last_row; i++) {
      const int64_t first = offset_at(offsets, offset_width, rows[i]);
      const int64_t last = offset_at(offsets, offset_width, (int64_t)rows[i] + 1);
      fits &= (first >= 0) & (last >= first) & (last <= num_values);
      *to++ = at += last - first;
    }
  }
  return fits;
}

/* The offsets that the rows' lists have in their parts, each part from 0: num_rows + num_parts of them. */
static int gather_offsets(const Gather* gather, int offset_width, int64_t* offsets) {
  if (!rows_fit(gather)) return 0;
  return offset_width == 4 ? offsets_of_lists(gather, 4, offsets) : offsets_of_lists(gather, 8, offsets);
}

/* Copies a list in steps, which is quicker than to look at how long it is: up to a step beyond its end is read, and written. */
static inline void copy_in_steps(char* to, const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += LIST_STEP) memcpy(to + at, from + at, LIST_STEP);
}

static inline int lists_to(
    const Gather* gather, int offset_width, int64_t width, const int64_t* starts, const int64_t* ends, char* out,
    int64_t out_bytes) {
  /* Of their own, as a write to `out` might change what a pointer leads to: twice as fast. */
  const char* const values = gather->values;
  const void* const offsets = gather->offsets;
  const int32_t* const rows = gather->rows;
  const int64_t num_rows = gather->num_rows, num_values = gather->num_values, num_parts = gather->num_parts;
  for (int64_t part = 0; part < num_parts; part++) {
    int64_t at = starts[part];
    const int64_t end = ends[part], last_row = gather->cuts[part + 1];
    if (at < 0 || end < at || end > out_bytes) return 0;
    for (int64_t i = gather->cuts[part]; i < last_row; i++) {
      if (i + AHEAD < num_rows) {
        const char* later = values + offset_at(offsets, offset_width, rows[i + AHEAD]) * width;
        __builtin_prefetch(later);
        __builtin_prefetch(later + BLOCK);
      }
      const int64_t first = offset_at(offsets, offset_width, rows[i]);
      const int64_t last = offset_at(offsets, offset_width, (int64_t)rows[i] + 1), bytes = (last - first) * width;
      if ((first < 0) | (last < first) | (last > num_values) | (bytes > end - at)) return 0;
      if ((last * width + LIST_STEP > num_values * width) | (at + bytes + LIST_STEP > end))
        memcpy(out + at, values + first * width, (size_t)bytes);
      else
        copy_in_steps(out + at, values + first * width, bytes);
      at += bytes;
    }
    if (at != end) return 0;
  }
  return 1;
}

/* The rows' lists, one after the other, to where each part starts in `out`, in bytes; each part fills what it has to its end. */
static int gather_lists(
    const Gather* gather, int offset_width, int64_t width, const int64_t* starts, const int64_t* ends, char* out,
    int64_t out_bytes) {
  if (!rows_fit(gather)) return 0;
  if (offset_width == 4 && width == 8) return lists_to(gather, 4, 8, starts, ends, out, out_bytes);
  return lists_to(gather, offset_width, width, starts, ends, out, out_bytes);
}

#endif
