/* Columns of a window as numbers: how each is decoded, where it lies, and what came of it. They are planned from the numbers of a
   footer, and then decoded, without anything that has to be made for each of them. */
#ifndef FEATSTORE_COLUMNS_H
#define FEATSTORE_COLUMNS_H

#include <stdint.h>
#include <string.h>

#include "chunks.h"
#include "once.h"

/* Numbers of a column. The leaf column in the file; bytes of a value, 0 of texts; its maximum levels, the level below which a row is
   null, the mark as the lowest bytes of a number, and whether values are whole numbers; the buffer and the byte of its offsets, and of its values; and how many values it
   has, or a code below 0. */
enum {
  COLUMN_LEAF,
  COLUMN_WIDTH,
  COLUMN_REPETITION,
  COLUMN_DEFINITION,
  COLUMN_NULL_BELOW,
  COLUMN_MARK,
  COLUMN_IS_WHOLE,
  COLUMN_OFFSETS_IN,
  COLUMN_OFFSETS_AT,
  COLUMN_VALUES_IN,
  COLUMN_VALUES_AT,
  COLUMN_FOUND,
  NUMBERS_OF_COLUMN
};
/* Numbers of a chunk in a footer, as in `footers.Chunks`. */
enum { FOOTER_CODEC, FOOTER_ENCODINGS, FOOTER_NUM_VALUES, FOOTER_STORED, FOOTER_RAW, FOOTER_FIRST, FOOTER_END, NUMBERS_OF_FOOTER };

#define NOT_DECODED (-1)
/* A bit for each encoding by its number: PLAIN, PLAIN_DICTIONARY, RLE_DICTIONARY and DELTA_BINARY_PACKED of values, RLE and BIT_PACKED of
   levels. */
#define KNOWN_ENCODINGS (1 << 0 | 1 << 2 | 1 << 8 | 1 << 5 | 1 << 3 | 1 << 4)
#define MOST_OF_FOOTER ((int64_t)1 << 48) /* values, or bytes: sums and small multiples of them do not overflow */
/* In the worst case of the RLE hybrid encoding each value is a run of its own: 5 bytes for a dictionary index, and 4 for its two
   levels. */
#define LEVEL_BYTES 4
#define INDEX_BYTES 5
/* A page may claim this much however few values there are: writers round up, and row groups may share a dictionary. */
#define LEAST_PAGE_BYTES (2 << 20)
#define MOST_VALUE_BYTES 16 /* of a number of any type */
#define MOST_RATIO 24 /* more than snappy can compress by, which is 64 bytes to 3 */

static int64_t larger(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t smaller(int64_t one, int64_t other) { return one < other ? one : other; }

static int64_t in_blocks(int64_t num_bytes) { return (num_bytes + BLOCK - 1) & ~(int64_t)(BLOCK - 1); }

/* The most bytes that a page may claim to decompress to: what its values can need in the worst case, or, since a dictionary may have
   more values than the chunk, what the stored bytes can decompress to. Values of no width are texts, which the footer's sizes bound. */
static int64_t most_page_bytes(const int64_t* chunk, int64_t width) {
  const int64_t stored = chunk[FOOTER_STORED], raw = chunk[FOOTER_RAW];
  if (!width) return larger(larger(raw, stored), LEAST_PAGE_BYTES);
  const int64_t needed = chunk[FOOTER_NUM_VALUES] * (larger(width, INDEX_BYTES) + LEVEL_BYTES);
  return larger(larger(needed, smaller(raw, MOST_RATIO * stored)), LEAST_PAGE_BYTES);
}

static int is_counted(int64_t number) { return number >= 0 && number <= MOST_OF_FOOTER; }

static int is_chunk_known(const int64_t* chunk) {
  const int64_t codec = chunk[FOOTER_CODEC];
  return (codec == UNCOMPRESSED || codec == SNAPPY || codec == ZSTD) && !(chunk[FOOTER_ENCODINGS] & ~(int64_t)KNOWN_ENCODINGS);
}

/* A window that is planned: of each column its chunks as `Column` has them. Where a number of the footer cannot be, there is no plan. */
typedef struct {
  const int64_t* footer; /* (num_file_groups, num_leaves, NUMBERS_OF_FOOTER) */
  int64_t num_file_groups, num_leaves;
  const int64_t* row_groups; /* that are read */
  int64_t num_row_groups, num_rows;
  int is_together; /* all columns lie in one buffer */
  int is_ordered;  /* they are decoded into the working memory first */
  int64_t room_bytes, memory_bytes;
} WindowPlan;

/* Plans a column: its chunks and values, and the working memory of its largest chunk: the bytes as stored, then its decompressed
   dictionary and one decompressed page at a time. 0 where a number is not one that a checked footer has. */
static int plan_chunks(const WindowPlan* plan, int64_t* column, int64_t* chunks, int64_t* room_bytes) {
  const int64_t leaf = column[COLUMN_LEAF], width = column[COLUMN_WIDTH];
  int is_known = 1;
  int64_t num_values = 0;
  *room_bytes = 0;
  if (leaf < 0 || leaf >= plan->num_leaves || width < 0 || width > MOST_VALUE_BYTES) return 0;
  for (int64_t i = 0; i < plan->num_row_groups; i++, chunks += NUMBERS_OF_CHUNK) {
    const int64_t* of = plan->footer + (plan->row_groups[i] * plan->num_leaves + leaf) * NUMBERS_OF_FOOTER;
    int64_t chunk[NUMBERS_OF_FOOTER];
    for (int number = 0; number < NUMBERS_OF_FOOTER; number++) chunk[number] = int64_at(of, number);
    if (!is_counted(chunk[FOOTER_NUM_VALUES]) || !is_counted(chunk[FOOTER_STORED]) || !is_counted(chunk[FOOTER_RAW])) return 0;
    const int64_t page_bytes = most_page_bytes(chunk, width);
    chunks[FIRST] = chunk[FOOTER_FIRST];
    chunks[SIZE] = chunk[FOOTER_STORED];
    chunks[CODEC] = chunk[FOOTER_CODEC];
    chunks[NUM_VALUES] = chunk[FOOTER_NUM_VALUES];
    chunks[PAGE_BYTES] = page_bytes;
    is_known = is_known && is_chunk_known(chunk);
    num_values = smaller(num_values + chunk[FOOTER_NUM_VALUES], MOST_OF_FOOTER);
    *room_bytes =
        larger(*room_bytes, chunk[FOOTER_STORED] + smaller(chunk[FOOTER_RAW], chunk[FOOTER_NUM_VALUES] * width + page_bytes));
  }
  column[COLUMN_FOUND] = is_known && num_values <= INT32_MAX ? num_values : NOT_DECODED;
  return 1;
}

/* Places a column's offsets and values, each in whole blocks, in the buffer of all or in one of its own. */
static void place_column(WindowPlan* plan, int64_t number, int64_t* column, int64_t room_bytes) {
  const int is_read = column[COLUMN_FOUND] >= 0;
  const int64_t offset_bytes = is_read && column[COLUMN_REPETITION] ? in_blocks(4 * (plan->num_rows + 1)) : 0;
  const int64_t value_bytes = is_read ? in_blocks(column[COLUMN_FOUND] * column[COLUMN_WIDTH]) : 0;
  column[COLUMN_OFFSETS_IN] = column[COLUMN_VALUES_IN] = plan->is_together ? 0 : number;
  column[COLUMN_OFFSETS_AT] = plan->is_together ? plan->memory_bytes : 0;
  column[COLUMN_VALUES_AT] = column[COLUMN_OFFSETS_AT] + offset_bytes;
  plan->memory_bytes += offset_bytes + value_bytes;
  if (plan->is_ordered) room_bytes += offset_bytes + value_bytes + BLOCK;
  if (is_read) plan->room_bytes = larger(plan->room_bytes, room_bytes);
}

/* Plans all columns; 0 where a number cannot be. */
static int plan_window(WindowPlan* plan, int64_t* columns, int64_t num_columns, int64_t* chunks) {
  for (int64_t i = 0; i < plan->num_row_groups; i++)
    if (plan->row_groups[i] < 0 || plan->row_groups[i] >= plan->num_file_groups) return 0;
  for (int64_t i = 0; i < num_columns; i++, columns += NUMBERS_OF_COLUMN, chunks += plan->num_row_groups * NUMBERS_OF_CHUNK) {
    int64_t column[NUMBERS_OF_COLUMN], room_bytes;
    for (int number = 0; number < NUMBERS_OF_COLUMN; number++) column[number] = int64_at(columns, number);
    if (!plan_chunks(plan, column, chunks, &room_bytes)) return 0;
    place_column(plan, i, column, room_bytes);
    if (plan->memory_bytes > MOST_OF_FOOTER) return 0;
    memcpy(columns, column, sizeof column);
  }
  return 1;
}

/* A column as it is to be decoded, from its numbers; 0 where they do not fit, or the buffers have no room for it. */
static int column_of(const int64_t* numbers, int64_t num_rows, uint8_t* offsets_in, int64_t offsets_size, uint8_t* values_in,
                     int64_t values_size, Column* column) {
  const int64_t repetition = numbers[COLUMN_REPETITION], definition = numbers[COLUMN_DEFINITION], width = numbers[COLUMN_WIDTH];
  const int64_t offsets_at = numbers[COLUMN_OFFSETS_AT], values_at = numbers[COLUMN_VALUES_AT], capacity = numbers[COLUMN_FOUND];
  const int is_list = repetition == 1 && definition >= 1;
  ColumnOut* const out = &column->out;
  if (width != 4 && width != 8) return 0;
  if ((!is_list && repetition) || definition < 0 || definition > 3) return 0;
  if (numbers[COLUMN_NULL_BELOW] < 0 || numbers[COLUMN_NULL_BELOW] > 3 || capacity < 0 || capacity > INT32_MAX) return 0;
  if (values_at < 0 || values_at > values_size || capacity > (values_size - values_at) / width) return 0;
  if (is_list && (offsets_at < 0 || offsets_at > offsets_size || num_rows + 1 > (offsets_size - offsets_at) / 4)) return 0;
  if (is_list && ((uintptr_t)offsets_in + (uintptr_t)offsets_at) & 3) return 0;
  out->width = (int)width;
  out->max_repetition = (int)repetition;
  out->max_definition = (int)definition;
  out->null_below = (int)numbers[COLUMN_NULL_BELOW];
  out->mark = (const char*)(numbers + COLUMN_MARK);
  out->is_whole = numbers[COLUMN_IS_WHOLE] != 0;
  out->offsets = is_list ? (int32_t*)(void*)(offsets_in + offsets_at) : NULL;
  out->values = (char*)values_in + values_at;
  out->capacity = capacity;
  return 1;
}

/* How many values a column has, -1 where it is not read, or -2 - i where its chunk in row group i is beyond its bounds. */
static int64_t outcome_of(const Column* column) {
  if (column->is_decoded) return column->out.at;
  return column->beyond_bounds < 0 ? NOT_DECODED : -2 - column->beyond_bounds;
}

/* The longest first, so that threads end at about the same time; of equal ones the first. */
static int is_later(const void* one, const void* other) {
  const Column *a = one, *b = other;
  if (a->out.capacity != b->out.capacity) return a->out.capacity < b->out.capacity ? 1 : -1;
  return a->number < b->number ? -1 : 1;
}

#endif
