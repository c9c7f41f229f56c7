/* Rows of decoded columns: marks for nulls, and rows in another order, cut into batches.

   Plain C over plain memory, which other threads may change meanwhile: what leads to an address (offsets, rows, cuts) is
   read once, checked, and used as it was read. Widths are in bytes. A validity bitmap is Arrow's: bit i of byte i / 8, lowest first, set where a
   value is. A function that meets an offset, a row or a cut beyond what it was given stops and says so (0, or -1), having
   written only inside its output. */
#ifndef FEATSTORE_ROWS_H
#define FEATSTORE_ROWS_H

#include <stdint.h>
#include <string.h>

#include "once.h"
#include "wide.h"

#if !defined(__GNUC__)
#define __builtin_prefetch(address) ((void)(address))
#endif

#define BLOCK 64 /* bytes */
#define LIST_HEAD 96 /* bytes that are copied of each list, whose length is not looked at: most are no longer */
#define LIST_STEP 32 /* bytes */
#define LARGE_LIST 1024 /* bytes; of more, a call of memcpy costs less than steps */
#define AHEAD 24 /* rows that are fetched into the cache before they are copied */
#define ORDERED_STEP (1 << 16) /* rows between looks at whether to stop */

static inline int is_set(const uint8_t* bits, int64_t i) { return bits[i >> 3] >> (i & 7) & 1; }

static inline int64_t offset_at(const void* offsets, int width, int64_t i) {
  return width == 4 ? int32_at(offsets, i) : int64_at(offsets, i);
}

/* The distance between offsets of which nothing is known yet. */
static inline int64_t distance(int64_t first, int64_t last) { return (int64_t)((uint64_t)last - (uint64_t)first); }

/* Copies a list; up to `room` bytes may be read, and written, beyond its end: one block is quicker than to look at each value. */
static inline void copy_list(char* to, const char* from, int64_t bytes, int64_t room) {
  if (bytes > BLOCK || room < BLOCK)
    memcpy(to, from, (size_t)bytes);
  else
    memcpy(to, from, BLOCK);
}

/* Copies a list, which is quicker in large steps than to look at how long it is: up to LIST_HEAD bytes beyond its end are read, and
   written. */
static inline void copy_in_steps(char* to, const char* from, int64_t bytes) {
  memcpy(to, from, LIST_HEAD);
  for (int64_t at = LIST_HEAD; at < bytes; at += LIST_STEP) memcpy(to + at, from + at, LIST_STEP);
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

/* A divisor of numbers below 2^63, which are multiplied instead of divided: with 2^(shift - 1) < divisor <= 2^shift and
   multiplier = floor(2^(63 + shift) / divisor) + 1, the product of multiplier and divisor exceeds 2^(63 + shift) by at most
   2^shift, so that floor(number * multiplier / 2^(63 + shift)) is the quotient (Granlund and Montgomery, 1994, theorem 4.2). */
typedef struct {
  uint64_t divisor, multiplier;
  int shift;
} Divisor;

/* `divisor` is between 1 and 2^63 - 1. */
static Divisor divisor_of(uint64_t divisor) {
  Divisor by = {divisor, 0, 0};
  while (((uint64_t)1 << by.shift) < divisor) by.shift++;
#ifdef __SIZEOF_INT128__
  by.multiplier = (uint64_t)(((unsigned __int128)1 << (63 + by.shift)) / divisor) + 1;
#endif
  return by;
}

/* `number` is below 2^63. */
static inline uint64_t remainder_of(uint64_t number, const Divisor* by) {
#ifdef __SIZEOF_INT128__
  uint64_t quotient = (uint64_t)((unsigned __int128)(number << 1) * by->multiplier >> 64) >> by->shift;
  return number - quotient * by->divisor;
#else
  return number % by->divisor;
#endif
}

/* The bucket of each id: 0 of 0, otherwise 1 more than the remainder, which is never negative. */
static void bucket_ids(const char* ids, int64_t count, uint64_t num_remainders, int64_t* buckets) {
  Divisor by = divisor_of(num_remainders);
  for (int64_t i = 0; i < count; i++) {
    int64_t id = int64_at(ids, i);
    uint64_t ones = id < 0 ? UINT64_MAX : 0;
    /* Of a negative id, -1 - id is what is left to the next multiple, less one. */
    uint64_t remainder = remainder_of((uint64_t)id ^ ones, &by);
    remainder = ones ? num_remainders - 1 - remainder : remainder;
    buckets[i] = id ? (int64_t)(remainder + 1) : 0;
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
  int64_t end = offset_at(lists->offsets, lists->offset_width, 0);
  new_offsets[0] = 0;
  for (int64_t row = 0; row < lists->num_rows; row++) {
    int64_t begin = end;
    end = offset_at(lists->offsets, lists->offset_width, row + 1);
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

/* Copies ranges of values, one after the other. 0 where one is not within the values, or where they do not fill the room. */
static int copy_ranges(const char* values, int64_t num_values, int64_t width, const int64_t* starts, const int64_t* lengths,
                       int64_t num_ranges, char* to, int64_t room) {
  int64_t begin = 0, end = 0, taken = 0; /* ranges that touch are one copy: from `begin` to `end` */
  for (int64_t i = 0; i < num_ranges; i++) {
    const int64_t start = int64_at(starts, i), count = int64_at(lengths, i);
    if (start < 0 || count < 0 || count > room - taken || start > num_values - count) return 0;
    if (start != end) {
      memcpy(to + (taken - (end - begin)) * width, values + begin * width, (size_t)((end - begin) * width));
      begin = end = start;
    }
    end += count;
    taken += count;
  }
  memcpy(to + (taken - (end - begin)) * width, values + begin * width, (size_t)((end - begin) * width));
  return taken == room;
}

/* Some rows of one decoded column, which nobody else writes to, in any order: row i is the row `order[i]` of it. */
typedef struct {
  const uint32_t* order; /* `count` of them, each read once, since other threads may change them */
  int64_t count;
  int64_t num_rows; /* of the column */
  int64_t width;
  const int32_t* offsets; /* num_rows + 1; NULL where a row is one value */
  const char* values;
  int64_t num_values;
} Ordered;

/* The rows from `first` to `end` of those in order, each one value; 0 where there is no such row. */
static inline int ordered_values(const Ordered* of, int64_t first, int64_t end, const int64_t width, char* to) {
  const uint32_t* const order = of->order;
  const char* const values = of->values;
  const uint64_t num_values = (uint64_t)of->num_values;
  const int64_t end_ahead = end - AHEAD;
  for (int64_t i = first; i < end; i++) {
    const uint32_t row = (uint32_t)int32_at(order, i);
    if (row >= num_values) return 0;
    if (i < end_ahead) /* what is fetched may be anywhere */
      __builtin_prefetch((const char*)((uintptr_t)values + (uintptr_t)(uint32_t)int32_at(order, i + AHEAD) * (uintptr_t)width));
    memcpy(to + i * width, values + (int64_t)row * width, (size_t)width);
  }
  return 1;
}

/* The lists of the rows from `first` to `end`, after the `at` values that were written. There is room for as many as the column has.
   How many are written then, or -1 where there is no such row, or no room. */
static int64_t ordered_lists(const Ordered* of, int64_t first, int64_t end, int64_t at, int32_t* new_offsets, char* to) {
  const uint32_t* const order = of->order;
  const int32_t* const offsets = of->offsets;
  const int64_t width = of->width, num_bytes = of->num_values * width;
  const uint32_t num_rows = (uint32_t)of->num_rows;
  for (int64_t i = first; i < end; i++) {
    const uint32_t row = (uint32_t)int32_at(order, i);
    if (row >= num_rows) return -1;
    if (i + AHEAD < end) {
      const uint32_t ahead = (uint32_t)int32_at(order, i + AHEAD);
      const uintptr_t address = (uintptr_t)of->values + (uintptr_t)(int32_at(offsets, ahead < num_rows ? ahead : 0) * width);
      __builtin_prefetch((const char*)address); /* what is fetched may be anywhere */
      __builtin_prefetch((const char*)(address + BLOCK));
    }
    const int64_t from = int32_at(offsets, row) * width, bytes = int32_at(offsets, (int64_t)row + 1) * width - from;
    const int64_t written = at * width;
    if (from < 0 || bytes < 0 || from > num_bytes - bytes || bytes > num_bytes - written) return -1;
    if ((from + bytes + LIST_HEAD > num_bytes) | (written + bytes + LIST_HEAD > num_bytes))
      memcpy(to + written, of->values + from, (size_t)bytes);
    else
      copy_in_steps(to + written, of->values + from, bytes);
    at += bytes / width;
    new_offsets[i + 1] = (int32_t)at;
  }
  return at;
}

/* Writes the rows in their order, until `stop` is not 0. How many values they have; -1 where a row is not there, or their lists have more
   values than the column; all rows of a column have as many. */
static int64_t write_ordered(const Ordered* of, int32_t* new_offsets, char* to, const volatile uint8_t* stop) {
  int64_t at = 0;
  if (of->offsets) new_offsets[0] = 0;
  else if (of->num_values != of->num_rows) return -1;
  for (int64_t first = 0, end; first < of->count; first = end) {
    end = of->count - first > ORDERED_STEP ? first + ORDERED_STEP : of->count;
    if (*stop) return -1;
    if (of->offsets) at = ordered_lists(of, first, end, at, new_offsets, to);
    else at = (of->width == 8 ? ordered_values(of, first, end, 8, to) : ordered_values(of, first, end, 4, to)) ? end : -1;
    if (at < 0) return -1;
  }
  return of->offsets && of->count == of->num_rows && at != of->num_values ? -1 : at;
}

/* Offsets of the rows between neighbouring cuts, each part from 0: `capacity` of them, one more than rows in each part. */
static int rebase_offsets(
    const void* offsets, int width, int64_t num_rows, const int64_t* cuts, int64_t num_parts, int64_t* rebased,
    int64_t capacity) {
  int64_t begin = int64_at(cuts, 0);
  if (begin < 0 || begin > num_rows) return 0;
  for (int64_t part = 0; part < num_parts; part++) {
    const int64_t end = int64_at(cuts, part + 1);
    if (end < begin || end > num_rows || end - begin + 1 > capacity) return 0;
    const int64_t first = offset_at(offsets, width, begin);
    for (int64_t row = begin; row <= end; row++) *rebased++ = distance(first, offset_at(offsets, width, row));
    capacity -= end - begin + 1;
    begin = end;
  }
  return !capacity;
}

/* What is copied as it is, or offsets of a width, which become numbers of 8 bytes from 0. */
typedef struct {
  const char* at;
  int64_t num_bytes;
  int offset_width; /* 0 where it is copied as it is */
  int64_t start;    /* where it begins in the output, in bytes; of offsets a multiple of 8 */
} PackedPart;

/* Copies parts to where they begin in `out`; 0 where one does not fit. */
static int pack_parts(const PackedPart* parts, int64_t count, char* out, int64_t out_bytes) {
  for (const PackedPart* part = parts; part < parts + count; part++) {
    const int width = part->offset_width;
    const int64_t num_rows = width ? part->num_bytes / width - 1 : 0, num_bytes = width ? (num_rows + 1) * 8 : part->num_bytes;
    if (part->start < 0 || part->start > out_bytes || num_bytes > out_bytes - part->start) return 0;
    if (!width) {
      if (num_bytes) memcpy(out + part->start, part->at, (size_t)num_bytes);
      continue;
    }
    const int64_t cuts[] = {0, num_rows};
    if (num_rows < 0 || part->start % 8) return 0;
    if (!rebase_offsets(part->at, width, num_rows, cuts, 1, (int64_t*)(out + part->start), num_rows + 1)) return 0;
  }
  return 1;
}

/* The bytes that a row has among what is called offsets. Of 4 and 8 they are that, one more than there are rows. Otherwise lists are
   ranges that may overlap: int64 of where a row's list begins and where it ends; and of ages, whose values are times (int64), the
   row's own time and the unit: each becomes a float, (time of the row - value) / unit. */
enum { RANGE_WIDTH = 16, AGE_WIDTH = 32, AGE_BYTES = 4, TIME_BYTES = 8 };

/* Rows that lie in pieces, as columns of several row groups and of several files do. */
typedef struct {
  const char* values;
  int64_t num_values;
  const void* offsets; /* NULL where a row is one value */
  int64_t num_rows;
  int offset_width;
} Piece;

static inline int are_ranges(int offset_width) { return offset_width >= RANGE_WIDTH; }

static inline int64_t begin_of_list(const void* offsets, int width, int64_t row) {
  return are_ranges(width) ? int64_at(offsets, row * (width / 8)) : offset_at(offsets, width, row);
}

static inline int64_t end_of_list(const void* offsets, int width, int64_t row) {
  return are_ranges(width) ? int64_at(offsets, row * (width / 8) + 1) : offset_at(offsets, width, row + 1);
}

/* How many entries as wide as an offset a piece of lists has. */
static inline int64_t num_offsets(int64_t num_rows, int width) { return num_rows + !are_ranges(width); }

/* The bytes of a value in a piece of lists, which have `width` bytes in the output. */
static inline int64_t stored_width(const Piece* piece, int64_t width) {
  return piece->offset_width == AGE_WIDTH ? TIME_BYTES : width;
}

/* The ages of the times `from`, of which there are `count`. */
static void portable_ages_to(char* to, const char* from, int64_t count, int64_t time, int64_t unit) {
  const double by = (double)unit;
  for (int64_t i = 0; i < count; i++) {
    const float age = (float)((double)distance(int64_at(from, i), time) / by);
    memcpy(to + i * AGE_BYTES, &age, AGE_BYTES);
  }
}

#if HAS_WIDE
#define FUSED __attribute__((target("avx2,fma")))

static int can_be_fused(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

/* The same, without divisions, which take most of the time. The sum of 1.5 * 2^52 and a whole number below 2^51 has that in its lower bits.
   The product with the correctly rounded inverse is a quotient within two units of the last place; after one step that adds
   the remainder's quotient it is within one, and after another it is the correctly rounded one (Markstein, 1990). A block that
   has larger differences is divided: its times are read again, and lead to no address. */
static FUSED void fused_ages_to(char* to, const char* from, int64_t count, int64_t time, int64_t unit) {
  enum { BLOCK_OF_AGES = 256 };
  const double by = (double)unit, inverse = 1 / by, whole = 0x1.8p52;
  uint64_t whole_bits;
  memcpy(&whole_bits, &whole, 8);
  for (int64_t first = 0; first < count; first += BLOCK_OF_AGES, from += BLOCK_OF_AGES * TIME_BYTES, to += BLOCK_OF_AGES * AGE_BYTES) {
    const int64_t num = count - first < BLOCK_OF_AGES ? count - first : BLOCK_OF_AGES;
    uint64_t beyond = 0;
    float ages[BLOCK_OF_AGES];
    for (int64_t i = 0; i < num; i++) {
      uint64_t bits;
      double number;
      memcpy(&bits, from + i * TIME_BYTES, TIME_BYTES);
      bits = (uint64_t)time - bits;
      beyond |= bits + ((uint64_t)1 << 51);
      bits += whole_bits;
      memcpy(&number, &bits, 8);
      number -= whole;
      double age = number * inverse;
      age = __builtin_fma(__builtin_fma(-age, by, number), inverse, age);
      age = __builtin_fma(__builtin_fma(-age, by, number), inverse, age);
      ages[i] = (float)age;
    }
    if (beyond >> 52) portable_ages_to(to, from, num, time, unit);
    else memcpy(to, ages, (size_t)num * AGE_BYTES);
  }
}
#else
static int can_be_fused(void) { return 0; }
#define fused_ages_to portable_ages_to
#endif

typedef struct {
  const Piece* pieces;
  int64_t num_pieces;
  const uint32_t* rows; /* the rows wanted: the piece in the upper bits, the row in it in the lower `row_bits` */
  int row_bits;
  int64_t num_rows;
  const int64_t* cuts; /* num_parts + 1 rows: where parts begin and end */
  int64_t num_parts;
  int ascends; /* the rows of each piece do, one after the other mostly: nothing has to be fetched ahead of its turn */
} Gather;

/* Where a part ends that begins at row `first` of those that are wanted, or -1. */
static inline int64_t end_of_part(const Gather* gather, int64_t part, int64_t first) {
  const int64_t end = int64_at(gather->cuts, part + 1);
  return end < first || end > gather->num_rows ? -1 : end;
}

/* The piece of a wanted row, and which of its rows it is; NULL if there is no such row. The arguments are not those of a
   `Gather`, since a write to the output might change what that leads to: they would be read anew for each row. */
static inline const Piece* piece_of(
    const uint32_t* rows, int64_t i, int row_bits, const Piece* pieces, uint32_t num_pieces, int64_t* row) {
  const uint32_t wanted = (uint32_t)int32_at(rows, i), number = wanted >> row_bits;
  const Piece* const piece = pieces + number;
  *row = (int64_t)(wanted ^ number << row_bits);
  return number < num_pieces && *row < piece->num_rows ? piece : NULL;
}

/* A row that is looked up later. It is checked then: before that it may be anywhere, and may be fetched, but not read. */
typedef struct {
  const Piece* piece;
  uintptr_t row;
} Ahead;

static inline Ahead ahead_of(uint32_t wanted, int row_bits, const Piece* pieces, uint32_t num_pieces) {
  const uint32_t number = wanted >> row_bits;
  return (Ahead){.piece = pieces + (number < num_pieces ? number : 0), .row = wanted ^ number << row_bits};
}

static void fetch(const void* memory, int64_t num_bytes) {
  const volatile char* bytes = memory;
  for (int64_t at = 0; at < num_bytes; at += BLOCK) (void)bytes[at];
}

/* Whether to read everything from the first byte to the last before the rows are looked up: in that order memory comes several
   times as fast as in any other, and then is near. With a sixteenth of the rows as the limit, mixed epochs took 0.7 of the
   CPU time that they took with half (see decision 53). Fewer rows were not tried. */
static int is_dense(const Gather* gather) {
  int64_t num_rows = 0;
  for (int64_t i = 0; i < gather->num_pieces; i++) num_rows += gather->pieces[i].num_rows;
  return gather->num_rows >= num_rows / 16;
}

/* Whether nothing has to be fetched later: it was dense, and everything is fetched, or it comes in the order in which it lies. */
static int fetch_values(const Gather* gather, int64_t width) {
  if (gather->ascends) return 1;
  if (!is_dense(gather)) return 0;
  for (int64_t i = 0; i < gather->num_pieces; i++) fetch(gather->pieces[i].values, gather->pieces[i].num_values * width);
  return 1;
}

/* The rows of a part; with a width that the compiler knows, a value is one move. */
static inline int values_to(
    const Gather* gather, int is_fetched, int64_t first, int64_t end, const int64_t width, char* to) {
  const Piece* const pieces = gather->pieces;
  const uint32_t* const rows = gather->rows;
  const uint32_t num_pieces = (uint32_t)gather->num_pieces;
  const int row_bits = gather->row_bits;
  const int64_t end_ahead = is_fetched ? first : end - AHEAD;
  for (int64_t i = first; i < end; i++, to += width) {
    int64_t row;
    const Piece* const piece = piece_of(rows, i, row_bits, pieces, num_pieces, &row);
    if (!piece) return 0;
    if (i < end_ahead) {
      const Ahead ahead = ahead_of((uint32_t)int32_at(rows, i + AHEAD), row_bits, pieces, num_pieces);
      __builtin_prefetch((const char*)((uintptr_t)ahead.piece->values + ahead.row * (uintptr_t)width));
    }
    memcpy(to, piece->values + row * width, (size_t)width);
  }
  return 1;
}

/* The rows of each part to where it starts in `out`, in bytes. */
static int gather_values(const Gather* gather, int64_t width, const int64_t* starts, char* out, int64_t out_bytes) {
  int64_t first = 0;
  if (int64_at(gather->cuts, 0)) return 0;
  const int is_fetched = fetch_values(gather, width);
  for (int64_t part = 0; part < gather->num_parts; part++) {
    const int64_t end = end_of_part(gather, part, first), start = int64_at(starts, part);
    if (end < 0 || start < 0 || start > out_bytes || end - first > (out_bytes - start) / width) return 0;
    const int is_done = width == 8   ? values_to(gather, is_fetched, first, end, 8, out + start)
                        : width == 4 ? values_to(gather, is_fetched, first, end, 4, out + start)
                                     : values_to(gather, is_fetched, first, end, width, out + start);
    if (!is_done) return 0;
    first = end;
  }
  return first == gather->num_rows;
}

/* With `offset_width` 0 each piece has its own. */
static inline int offsets_of_lists(const Gather* gather, int is_fetched, const int offset_width, int64_t* firsts, int64_t* to) {
  const Piece* const pieces = gather->pieces;
  const uint32_t* const rows = gather->rows;
  const uint32_t num_pieces = (uint32_t)gather->num_pieces;
  const int row_bits = gather->row_bits;
  const int64_t num_parts = gather->num_parts;
  int64_t begin = 0, fits = !int64_at(gather->cuts, 0);
  for (int64_t part = 0; part < num_parts; part++) {
    const int64_t end = end_of_part(gather, part, begin);
    const int64_t end_ahead = is_fetched ? begin : end - AHEAD;
    uint64_t at = 0;
    if (end < 0) return 0;
    *to++ = 0;
    for (int64_t i = begin; i < end; i++) {
      int64_t row;
      const Piece* const piece = piece_of(rows, i, row_bits, pieces, num_pieces, &row);
      if (!piece) return 0;
      if (i < end_ahead) {
        const Ahead ahead = ahead_of((uint32_t)int32_at(rows, i + AHEAD), row_bits, pieces, num_pieces);
        const int width = offset_width ? offset_width : ahead.piece->offset_width;
        __builtin_prefetch((const char*)((uintptr_t)ahead.piece->offsets + ahead.row * (uintptr_t)width));
      }
      const int width = offset_width ? offset_width : piece->offset_width;
      const int64_t first = begin_of_list(piece->offsets, width, row);
      const int64_t last = end_of_list(piece->offsets, width, row);
      fits &= (first >= 0) & (last >= first) & (last <= piece->num_values);
      firsts[i] = first;
      *to++ = (int64_t)(at += (uint64_t)distance(first, last));
    }
    begin = end;
  }
  return fits && begin == gather->num_rows;
}

/* The bytes of all pieces' offsets; 0 where they differ. */
static int offset_width_of(const Gather* gather) {
  const int width = gather->num_pieces ? gather->pieces[0].offset_width : 4;
  for (int64_t i = 1; i < gather->num_pieces; i++)
    if (gather->pieces[i].offset_width != width) return 0;
  return width;
}

/* Where each of the rows' lists begins in its piece, and the offsets that the lists have in their parts, each part from 0:
   num_rows + num_parts of them. */
static int gather_offsets(const Gather* gather, int64_t* firsts, int64_t* offsets) {
  const int is_fetched = gather->ascends || is_dense(gather), width = offset_width_of(gather);
  for (int64_t i = 0; is_fetched && !gather->ascends && i < gather->num_pieces; i++)
    fetch(gather->pieces[i].offsets,
          num_offsets(gather->pieces[i].num_rows, gather->pieces[i].offset_width) * gather->pieces[i].offset_width);
  return width == 4   ? offsets_of_lists(gather, is_fetched, 4, firsts, offsets)
         : width == 8 ? offsets_of_lists(gather, is_fetched, 8, firsts, offsets)
                      : offsets_of_lists(gather, is_fetched, 0, firsts, offsets);
}

static inline int lists_to(
    const Gather* gather, const int64_t* firsts, const int64_t* offsets, int64_t width, const int64_t* starts, char* out,
    int64_t out_bytes) {
  const Piece* const pieces = gather->pieces;
  const uint32_t* const rows = gather->rows;
  const uint32_t num_pieces = (uint32_t)gather->num_pieces;
  const int row_bits = gather->row_bits;
  const int64_t num_rows = gather->num_rows, num_parts = gather->num_parts;
  const int is_fused = can_be_fused();
  int64_t first_row = 0;
  if (int64_at(gather->cuts, 0)) return 0;
  for (int64_t part = 0; part < num_parts; part++) {
    const int64_t start = int64_at(starts, part), last_row = end_of_part(gather, part, first_row);
    if (start < 0 || start > out_bytes || last_row < 0) return 0;
    const int64_t room = int64_at(offsets, last_row + part); /* the values of the part */
    int64_t last = int64_at(offsets, first_row + part);
    if (last || room < 0 || room > (out_bytes - start) / width) return 0;
    const int64_t end = start + room * width;
    for (int64_t i = first_row; i < last_row; i++) {
      const uint32_t wanted = (uint32_t)int32_at(rows, i), number = wanted >> row_bits;
      if (number >= num_pieces) return 0;
      const Piece* const piece = pieces + number;
      if (i + AHEAD < num_rows) {
        const uint32_t ahead = (uint32_t)int32_at(rows, i + AHEAD) >> row_bits; /* what is fetched may be anywhere */
        const uint64_t later = (uint64_t)int64_at(firsts, i + AHEAD) * (uint64_t)width;
        const uintptr_t address = (uintptr_t)pieces[ahead < num_pieces ? ahead : 0].values + (uintptr_t)later;
        __builtin_prefetch((const char*)address);
        __builtin_prefetch((const char*)(address + BLOCK));
      }
      const int64_t first = int64_at(firsts, i), begin = last;
      last = int64_at(offsets, i + part + 1);
      const int64_t count = distance(begin, last);
      if (count < 0 || last > room || first < 0 || first > piece->num_values - count) return 0;
      char* const to = out + start + begin * width;
      if (piece->offset_width == AGE_WIDTH) {
        const int64_t row = (int64_t)(wanted ^ number << row_bits);
        if (row >= piece->num_rows) return 0;
        const int64_t time = int64_at(piece->offsets, row * 4 + 2), unit = int64_at(piece->offsets, row * 4 + 3);
        (is_fused ? fused_ages_to : portable_ages_to)(to, piece->values + first * TIME_BYTES, count, time, unit);
        continue;
      }
      const char* const from = piece->values + first * width;
      if (count * width > LARGE_LIST)
        memcpy(to, from, (size_t)(count * width));
      else if (((first + count) * width + LIST_HEAD > piece->num_values * width) | (start + last * width + LIST_HEAD > end))
        memcpy(to, from, (size_t)(count * width));
      else
        copy_in_steps(to, from, count * width);
    }
    if (start + last * width != end) return 0;
    first_row = last_row;
  }
  return first_row == num_rows;
}

/* The rows' lists, one after the other, to where each part starts in `out`, in bytes. `firsts` and `offsets` are those that
   `gather_offsets` wrote. */
static int gather_lists(
    const Gather* gather, const int64_t* firsts, const int64_t* offsets, int64_t width, const int64_t* starts, char* out,
    int64_t out_bytes) {
  fetch_values(gather, width);
  return width == 8 ? lists_to(gather, firsts, offsets, 8, starts, out, out_bytes)
                    : lists_to(gather, firsts, offsets, width, starts, out, out_bytes);
}

/* The offsets of each part to where it starts in `out`, in bytes. */
static int copy_offsets(const Gather* gather, const int64_t* offsets, const int64_t* starts, char* out, int64_t out_bytes) {
  int64_t first = 0;
  for (int64_t part = 0; part < gather->num_parts; part++) {
    const int64_t end = end_of_part(gather, part, first), start = int64_at(starts, part);
    if (end < 0 || start < 0 || start > out_bytes || end - first + 1 > (out_bytes - start) / 8) return 0;
    memcpy(out + start, offsets + first + part, (size_t)(end - first + 1) * 8);
    first = end;
  }
  return first == gather->num_rows;
}

/* Memory to which the parts of a column go. */
typedef struct {
  const int64_t* starts; /* where each part begins, in bytes */
  char* out;
  int64_t out_bytes;
} PartsOut;

/* A column that is gathered: values, or lists as of `gather_lists`. */
typedef struct {
  Gather gather;
  int64_t width;
  const int64_t *firsts, *offsets; /* NULL where a row is one value */
  PartsOut values, offsets_out;
  int is_gathered;
} GatheredColumn;

static int gather_column(const GatheredColumn* of) {
  const PartsOut *to = &of->values, *offsets = &of->offsets_out;
  if (!of->firsts) return gather_values(&of->gather, of->width, to->starts, to->out, to->out_bytes);
  return gather_lists(&of->gather, of->firsts, of->offsets, of->width, to->starts, to->out, to->out_bytes) &&
         copy_offsets(&of->gather, of->offsets, offsets->starts, offsets->out, offsets->out_bytes);
}

/* Columns of which each thread takes the next that nobody has taken. */
typedef struct {
  GatheredColumn* columns;
  int64_t num_columns, next;
} GatherWork;

static void* gather_next(void* of) {
  GatherWork* work = of;
  int64_t next;
  while ((next = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->num_columns) {
    GatheredColumn* const column = &work->columns[next];
    column->is_gathered = gather_column(column);
  }
  return NULL;
}

#endif
