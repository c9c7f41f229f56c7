/* Structs of Thrift's compact protocol as rows of numbers, by a plan that says which fields there
   are.

   The plan comes from `featstore/native/format.py`, which describes Parquet's footer, and is that of
   the tests' walk in Python too: this is the same walk, sooner. Each struct that opens a row writes
   its fields there; a struct inside it may write to the same row. Everything is walked, known or
   not. Memory grows with the bytes that were walked: a count in them never sizes it, and a
   struct that lacks a field that it must have ends the walk. */
#ifndef FEATSTORE_FOOTER_H
#define FEATSTORE_FOOTER_H

#include <stdlib.h>
#include <string.h>

#include "thrift.h"

#define ABSENT INT64_MIN
#define MOST_ITEMS 1000000 /* of a list: Arrow's bound too */
#define MOST_TABLES 8

enum { MALFORMED = 1, OTHER_TYPE, OTHER_ORDER, MISSING, TOO_MANY, NO_MEMORY };
/* What becomes of a field: see `Keep` in format.py. */
enum { NOTHING, VALUE, LENGTH, SPAN, COUNT, MASK, END, ROWS };
/* Numbers of a struct and of a field in the plan. */
enum { TABLE, OPENS_ROW, FIRST_FIELD, NUM_FIELDS, REQUIRED, CUT_NUMBER, CUT_SLOT,
       NUMBERS_OF_STRUCT };
enum { TYPE, KEEP, SLOT, OF, ITEM_TYPE, NUMBERS_OF_FIELD };

typedef struct {
  int64_t* numbers;
  int64_t num_rows, room, width;
} Table;

typedef struct {
  Bytes bytes;
  const uint8_t* first;
  const int64_t *structs, *fields;
  Table tables[MOST_TABLES];
  int wrong;
  int64_t wrong_at; /* the byte at which the field begins that is wrong */
} Walk;

static int ends_as(Walk* walk, int wrong) {
  if (!walk->wrong) walk->wrong = wrong;
  return 0;
}

static int64_t position(const Walk* walk) { return walk->bytes.at - walk->first; }

static int64_t* slot_of(Walk* walk, const int64_t* of, int64_t row, int64_t slot) {
  Table* table = &walk->tables[of[TABLE]];
  return &table->numbers[row * table->width + slot];
}

/* A new row of which nothing is known, -1 where there is no memory for it. */
static int64_t open_row(Table* table) {
  if (table->num_rows == table->room) {
    int64_t room = table->room ? 2 * table->room : 16;
    int64_t* numbers = realloc(table->numbers, (size_t)(room * table->width) * sizeof *numbers);
    if (!numbers) return -1;
    table->numbers = numbers;
    table->room = room;
  }
  int64_t* row = &table->numbers[table->num_rows * table->width];
  for (int64_t i = 0; i < table->width; i++) row[i] = ABSENT;
  return table->num_rows++;
}

static int walk_struct(Walk* walk, const int64_t* of, int64_t row);

static int walk_number(Walk* walk, int64_t type, int64_t* value) {
  uint64_t word;
  if (type == THRIFT_I8) {
    const uint8_t* at = walk->bytes.at;
    if (!skip_bytes(&walk->bytes, 1)) return ends_as(walk, MALFORMED);
    *value = (int8_t)*at;
    return 1;
  }
  if (!read_varint(&walk->bytes, &word)) return ends_as(walk, MALFORMED);
  *value = zigzag_of(word);
  if (type == THRIFT_I32 && *value != (int32_t)*value) return ends_as(walk, MALFORMED);
  return type != THRIFT_I16 || *value == (int16_t)*value || ends_as(walk, MALFORMED);
}

/* One element of a list: rows of structs that the plan names, of others that they are there. */
static int walk_item(Walk* walk, const int64_t* field, int64_t* mask) {
  int64_t value;
  if (field[OF] >= 0) return walk_struct(walk, walk->structs + field[OF] * NUMBERS_OF_STRUCT, -1);
  if (field[KEEP] != MASK)
    return skip_value(&walk->bytes, (int)field[ITEM_TYPE], 0) || ends_as(walk, MALFORMED);
  if (!walk_number(walk, field[ITEM_TYPE], &value)) return 0;
  *mask = *mask < 0 || value < 0 || value > 62 ? -1 : *mask | (int64_t)1 << value;
  return 1;
}

static int walk_list(Walk* walk, const int64_t* of, const int64_t* field, int64_t row) {
  int64_t begin = position(walk), mask = 0, first = 0;
  if (walk->bytes.at >= walk->bytes.end) return ends_as(walk, MALFORMED);
  uint8_t head = *walk->bytes.at++;
  uint64_t count = head >> 4;
  if (count == 15 && !read_varint(&walk->bytes, &count)) return ends_as(walk, MALFORMED);
  if (count > MOST_ITEMS) return ends_as(walk, TOO_MANY);
  if (count && (head & 0xf) != field[ITEM_TYPE]) return ends_as(walk, OTHER_TYPE);
  const int64_t* items = field[OF] < 0 ? NULL : walk->structs + field[OF] * NUMBERS_OF_STRUCT;
  if (items) first = walk->tables[items[TABLE]].num_rows;
  for (uint64_t i = 0; i < count; i++)
    if (!walk_item(walk, field, &mask)) return 0;
  const int64_t found[] = {begin, position(walk), first, (int64_t)count};
  if (field[KEEP] == ROWS) memcpy(slot_of(walk, of, row, field[SLOT]), found, sizeof found);
  if (field[KEEP] == COUNT) *slot_of(walk, of, row, field[SLOT]) = (int64_t)count;
  if (field[KEEP] == MASK) *slot_of(walk, of, row, field[SLOT]) = mask;
  return 1;
}

static int walk_binary(Walk* walk, const int64_t* of, const int64_t* field, int64_t row) {
  uint64_t length;
  if (!read_varint(&walk->bytes, &length)) return ends_as(walk, MALFORMED);
  int64_t begin = position(walk);
  if (!skip_bytes(&walk->bytes, length)) return ends_as(walk, MALFORMED);
  if (field[KEEP] == NOTHING) return 1;
  int64_t* slot = slot_of(walk, of, row, field[SLOT]);
  slot[0] = field[KEEP] == SPAN ? begin : (int64_t)length;
  if (field[KEEP] == SPAN) slot[1] = position(walk);
  return 1;
}

static int walk_nested(Walk* walk, const int64_t* of, const int64_t* field, int64_t row) {
  if (field[OF] >= 0) {
    if (!walk_struct(walk, walk->structs + field[OF] * NUMBERS_OF_STRUCT, row)) return 0;
  } else if (!skip_value(&walk->bytes, THRIFT_STRUCT, 0)) {
    return ends_as(walk, MALFORMED);
  }
  if (field[KEEP] == END) *slot_of(walk, of, row, field[SLOT]) = position(walk);
  return 1;
}

static int walk_field(Walk* walk, const int64_t* of, const int64_t* field, int type, int64_t row) {
  int64_t value;
  switch (type) {
    case THRIFT_LIST: return walk_list(walk, of, field, row);
    case THRIFT_BINARY: return walk_binary(walk, of, field, row);
    case THRIFT_STRUCT: return walk_nested(walk, of, field, row);
    case THRIFT_TRUE: case THRIFT_FALSE: value = type == THRIFT_TRUE; break;
    default:
      if (!walk_number(walk, type, &value)) return 0;
  }
  if (field[KEEP] == VALUE) *slot_of(walk, of, row, field[SLOT]) = value;
  return 1;
}

/* A struct, in the row of the one around it unless it opens one of its own. */
static int walk_struct(Walk* walk, const int64_t* of, int64_t row) {
  int type;
  int64_t number = 0, before = 0, required = of[REQUIRED], cut = ABSENT, begin = position(walk);
  if (of[OPENS_ROW]) row = open_row(&walk->tables[of[TABLE]]);
  if (row < 0) return ends_as(walk, NO_MEMORY);
  for (;; before = number) {
    int64_t at = walk->wrong_at = position(walk);
    if (!read_field(&walk->bytes, &type, &number)) return ends_as(walk, MALFORMED);
    if (cut == ABSENT && (!type || number >= of[CUT_NUMBER])) cut = at;
    if (!type) break;
    if (number <= before) return ends_as(walk, OTHER_ORDER);
    const int64_t* field = NULL;
    if (number <= of[NUM_FIELDS])
      field = walk->fields + (of[FIRST_FIELD] + number - 1) * NUMBERS_OF_FIELD;
    int is_required = number < 63 && of[REQUIRED] >> number & 1;
    int is_known = field && field[TYPE] == (type == THRIFT_FALSE ? THRIFT_TRUE : type);
    if (is_required && !is_known) return ends_as(walk, OTHER_TYPE);
    /* Readers that Thrift generates skip an optional field of another type, too. */
    if (!is_known) {
      if (!skip_value(&walk->bytes, type, 0)) return ends_as(walk, MALFORMED);
    } else if (!walk_field(walk, of, field, type, row)) {
      return 0;
    }
    if (number < 63) required &= ~((int64_t)1 << number);
  }
  if (required) return ends_as(walk, MISSING);
  if (of[CUT_NUMBER]) *slot_of(walk, of, row, of[CUT_SLOT]) = cut;
  if (of[OPENS_ROW]) {
    int64_t* own = slot_of(walk, of, row, 0);
    own[0] = begin;
    own[1] = position(walk);
  }
  return 1;
}

static int field_fits(const Walk* walk, const int64_t* field, const int64_t* of,
                      int64_t num_structs) {
  static const int64_t slots[] = {0, 1, 1, 2, 1, 1, 1, 4};
  if (field[KEEP] < NOTHING || field[KEEP] > ROWS) return 0;
  if (field[SLOT] < 0 || field[SLOT] + slots[field[KEEP]] > walk->tables[of[TABLE]].width) return 0;
  if (field[OF] < 0) return 1;
  /* A struct inside another comes later in the plan, so that none contains itself. */
  if (field[OF] >= num_structs || field[OF] <= (of - walk->structs) / NUMBERS_OF_STRUCT) return 0;
  const int64_t* inner = walk->structs + field[OF] * NUMBERS_OF_STRUCT;
  if (field[TYPE] == THRIFT_LIST) return inner[OPENS_ROW] && field[ITEM_TYPE] == THRIFT_STRUCT;
  return !inner[OPENS_ROW] && inner[TABLE] == of[TABLE];
}

/* Whether the plan stays within itself and its tables: what walks relies on it. */
static int plan_fits(const Walk* walk, int64_t num_structs, int64_t num_fields) {
  for (int64_t i = 0; i < num_structs; i++) {
    const int64_t* of = walk->structs + i * NUMBERS_OF_STRUCT;
    if (of[TABLE] < 0 || of[TABLE] >= MOST_TABLES || walk->tables[of[TABLE]].width < 2) return 0;
    if (of[FIRST_FIELD] < 0 || of[NUM_FIELDS] < 0) return 0;
    if (of[FIRST_FIELD] + of[NUM_FIELDS] > num_fields) return 0;
    if (of[CUT_SLOT] < 0 || of[CUT_SLOT] >= walk->tables[of[TABLE]].width) return 0;
    const int64_t* field = walk->fields + of[FIRST_FIELD] * NUMBERS_OF_FIELD;
    for (int64_t j = 0; j < of[NUM_FIELDS]; j++, field += NUMBERS_OF_FIELD)
      if (!field_fits(walk, field, of, num_structs)) return 0;
  }
  return num_structs > 0 && walk->structs[OPENS_ROW];
}

#endif
