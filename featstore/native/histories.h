/* The ranges that rows have in the lists of their holders (docs/design/histories.md), checked before any is used. */
#ifndef FEATSTORE_HISTORIES_H
#define FEATSTORE_HISTORIES_H

#include <stdint.h>

#include "once.h"

/* What is wrong with a row: it names no holder of its row group, or one of another key; its range ends beyond the holder's list, or
   begins before it, or there is one without a key; or its newest event is not before it. */
enum { NO_HOLDER = 1, ANOTHER_KEY, BEYOND_LIST, NO_RANGE, NOT_BEFORE_ROW };

typedef struct {
  int64_t num_rows, num_events;
  const void *end, *length, *back; /* int32 */
  const void* keys;                /* int64, 0 without a key */
  const void* offsets;             /* of the lists, of `offset_width` bytes, num_rows + 1 */
  int offset_width;
  const void *as_of, *at; /* the times of rows and events, int64; NULL where nobody needs them */
  int64_t most_us;        /* no row with events is as far from 1970 */
  int64_t max_len;
} RowRanges;

static inline int64_t list_offset(const RowRanges* of, int64_t i) {
  return of->offset_width == 4 ? int32_at(of->offsets, i) : int64_at(of->offsets, i);
}

/* What is wrong with a row, or 0: then where its newest `max_len` events begin and end. */
static inline int range_of_row(const RowRanges* of, int64_t row, int64_t first_of_group, int64_t* begin, int64_t* end) {
  const int64_t back = int32_at(of->back, row), length = int32_at(of->length, row), key = int64_at(of->keys, row);
  if (back < 0 || back > row - first_of_group) return NO_HOLDER;
  if (key != int64_at(of->keys, row - back)) return ANOTHER_KEY;
  const int64_t first = list_offset(of, row - back), last = list_offset(of, row - back + 1), to = int32_at(of->end, row);
  if (to < 0 || first < 0 || last < first || last > of->num_events || to > last - first) return BEYOND_LIST;
  if (length < 0 || length > to || (length && !key)) return NO_RANGE;
  *end = first + to;
  *begin = *end - (length < of->max_len ? length : of->max_len);
  if (!of->as_of || !length) return 0;
  const int64_t as_of = int64_at(of->as_of, row);
  const int is_time = as_of < of->most_us && as_of > -of->most_us;
  return is_time && int64_at(of->at, *end - 1) < as_of ? 0 : NOT_BEFORE_ROW;
}

/* Writes the range of each row, begin and end; what is wrong with the first that has none, and which it is, else 0. `sizes` are the rows
   of each row group, which have to be all. */
static int ranges_of_rows(const RowRanges* of, const int64_t* sizes, int64_t num_groups, int64_t* ranges, int64_t* wrong_row) {
  int64_t row = 0;
  for (int64_t group = 0; group < num_groups; group++) {
    const int64_t first = row, size = int64_at(sizes, group);
    for (; row < of->num_rows && row - first < size; row++) {
      int64_t begin, end;
      const int wrong = range_of_row(of, row, first, &begin, &end);
      *wrong_row = row;
      if (wrong) return wrong;
      ranges[2 * row] = begin;
      ranges[2 * row + 1] = end;
    }
  }
  return row == of->num_rows ? 0 : -1;
}

#endif
