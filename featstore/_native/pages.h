/* Pages of a Parquet column chunk to values and list offsets, without the nulls.

   Plain C over plain memory, of the format that parquet.apache.org describes: page headers in Thrift's compact protocol, levels
   and dictionary indices as runs (RLE and bit-packed, hybrid), values plain or from a dictionary. What is compressed was
   decompressed before. Little-endian machines only. A function that meets something malformed, or that it does not know, stops
   and says so (0), having written only inside its output: Arrow reads such a chunk, or says what is wrong with it. */
#ifndef FEATSTORE_PAGES_H
#define FEATSTORE_PAGES_H

#include <stdint.h>
#include <string.h>

#include "thrift.h"

#define STEP 1024  /* levels that are decoded at a time */
#define INDICES 256 /* dictionary indices that are */
#define NO_CRC INT64_MIN

enum { PAGE_DATA = 0, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };
enum { DATA_STRUCT = 5, INDEX_STRUCT, DICTIONARY_STRUCT, DATA_V2_STRUCT }; /* fields of a page's header */
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, RLE_DICTIONARY = 8 };

/* What is needed of a page's header. Levels of a V1 page are in its data, their lengths before them. */
typedef struct {
  int64_t type, uncompressed_size, compressed_size, num_values, encoding, definition_encoding, repetition_encoding;
  int64_t num_nulls, num_rows, definition_bytes, repetition_bytes; /* of a V2 page */
  int64_t is_compressed;
  int64_t crc;  /* of the page's bytes as they are stored, signed; NO_CRC where the header has none */
  int structs;  /* a bit for each struct that describes a kind of page */
  int is_typed; /* every field has the type that the format gives it */
} PageHeader;

/* A field of a Thrift struct: where its number goes, and the type that it must have. */
typedef struct {
  int64_t* to;
  int type;
} NumberField;

/* A number or a truth of the type that it must have; what has another is passed over, as Thrift does. */
static int read_number(Bytes* bytes, int type, NumberField field, PageHeader* page) {
  uint64_t zigzag;
  int is_truth = type == THRIFT_TRUE || type == THRIFT_FALSE;
  if (field.type == THRIFT_TRUE ? !is_truth : type != field.type) {
    page->is_typed = 0;
    return skip_value(bytes, type, 0);
  }
  if (is_truth) {
    *field.to = type == THRIFT_TRUE;
    return 1;
  }
  if (!read_varint(bytes, &zigzag)) return 0;
  *field.to = zigzag_of(zigzag);
  return 1;
}

/* Passes over a value that is not needed: a number, a truth, bytes or, as statistics are, a struct of such. Anything else has no
   place in a page's header, and Thrift's own reader may refuse what `skip_value` takes for whole. */
static int pass_value(Bytes* bytes, int type, PageHeader* page, int is_nested) {
  int of;
  int64_t number = 0;
  if (type == THRIFT_TRUE || type == THRIFT_FALSE || type == THRIFT_I32 || type == THRIFT_I64 || type == THRIFT_BINARY)
    return skip_value(bytes, type, 0);
  if (type != THRIFT_STRUCT || is_nested) {
    page->is_typed = 0;
    return skip_value(bytes, type, 0);
  }
  while (read_field(bytes, &of, &number)) {
    if (!of) return 1;
    if (!pass_value(bytes, of, page, 1)) return 0;
  }
  return 0;
}

/* The numbers of a struct by field, from field 1 on; other fields are passed over. */
static int read_numbers(Bytes* bytes, const NumberField* fields, int num_fields, PageHeader* page) {
  int type;
  int64_t number = 0;
  while (read_field(bytes, &type, &number)) {
    if (!type) return 1;
    int is_wanted = number >= 1 && number <= num_fields && fields[number - 1].to;
    if (is_wanted ? !read_number(bytes, type, fields[number - 1], page) : !pass_value(bytes, type, page, 0)) return 0;
  }
  return 0;
}

static int read_struct(Bytes* bytes, int type, int64_t number, PageHeader* page) {
  const int i32 = THRIFT_I32;
  const NumberField num_values = {&page->num_values, i32}, encoding = {&page->encoding, i32};
  const NumberField definitions = {&page->definition_encoding, i32}, repetitions = {&page->repetition_encoding, i32};
  const NumberField data[] = {num_values, encoding, definitions, repetitions};
  const NumberField data_v2[] = {num_values,
                                 {&page->num_nulls, i32},
                                 {&page->num_rows, i32},
                                 encoding,
                                 {&page->definition_bytes, i32},
                                 {&page->repetition_bytes, i32},
                                 {&page->is_compressed, THRIFT_TRUE}};
  if (page->structs & 1 << number) page->is_typed = 0; /* twice: Thrift's reader asks for all fields each time */
  if (type == THRIFT_STRUCT) page->structs |= 1 << number;
  if (type == THRIFT_STRUCT && number == DATA_STRUCT) return read_numbers(bytes, data, 4, page);
  if (type == THRIFT_STRUCT && number == DICTIONARY_STRUCT) return read_numbers(bytes, data, 2, page);
  if (type == THRIFT_STRUCT && number == DATA_V2_STRUCT) return read_numbers(bytes, data_v2, 7, page);
  page->is_typed = 0;
  return skip_value(bytes, type, 0);
}

static int is_i32(int64_t number) { return number >= 0 && number <= INT32_MAX; }

/* A header with a kind and sizes, whatever kind that is. */
static int read_page_header(Bytes* bytes, PageHeader* page) {
  const PageHeader empty = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1, NO_CRC, 0, 1};
  const NumberField top[] = {{&page->type, THRIFT_I32},
                             {&page->uncompressed_size, THRIFT_I32},
                             {&page->compressed_size, THRIFT_I32},
                             {&page->crc, THRIFT_I32}};
  int type;
  int64_t number = 0;
  *page = empty;
  while (read_field(bytes, &type, &number)) {
    int is_read;
    if (!type) return is_i32(page->type) && is_i32(page->uncompressed_size) && is_i32(page->compressed_size);
    if (number >= 1 && number <= 4) is_read = read_number(bytes, type, top[number - 1], page);
    else if (number >= DATA_STRUCT && number <= DATA_V2_STRUCT) is_read = read_struct(bytes, type, number, page);
    else is_read = pass_value(bytes, type, page, 0);
    if (!is_read) return 0;
  }
  return 0;
}

/* Whether a header says all that the format asks of its kind of page, and nothing of another kind. */
static int is_whole_header(const PageHeader* page) {
  if (!page->is_typed || !is_i32(page->num_values) || page->encoding < 0) return 0;
  if (page->type == PAGE_DICTIONARY) return page->structs == 1 << DICTIONARY_STRUCT;
  if (page->type == PAGE_DATA)
    return page->structs == 1 << DATA_STRUCT && page->definition_encoding >= 0 && page->repetition_encoding >= 0;
  return page->type == PAGE_DATA_V2 && page->structs == 1 << DATA_V2_STRUCT && is_i32(page->num_nulls) &&
         is_i32(page->num_rows) && is_i32(page->definition_bytes) && is_i32(page->repetition_bytes);
}

/* Runs of small numbers: equal ones, or packed ones of `width` bits, lowest first. */
typedef struct {
  Bytes bytes;
  int width;
  int64_t left; /* numbers of the run that are still to come */
  int is_packed;
  uint32_t value;        /* of equal ones */
  const uint8_t* packed; /* where the run begins */
  int64_t bit;           /* how far it was read */
} Runs;

static Runs runs_of(const uint8_t* at, const uint8_t* end, int width) {
  Runs runs = {{at, end}, width, 0, 0, 0, NULL, 0};
  return runs;
}

/* A run of nothing, or of numbers wider than they may be, is not read here: nor does Arrow read it. */
static int next_run(Runs* runs) {
  uint64_t header;
  const uint8_t* begin = runs->bytes.at;
  if (!read_varint(&runs->bytes, &header) || header < 2 || runs->bytes.at - begin > 5) return 0;
  runs->is_packed = header & 1;
  if (runs->is_packed) {
    uint64_t groups = header >> 1;
    if (groups > (uint64_t)INT32_MAX / 8) return 0;
    runs->left = (int64_t)groups * 8;
    runs->packed = runs->bytes.at;
    runs->bit = 0;
    return skip_bytes(&runs->bytes, groups * (uint64_t)runs->width);
  }
  if (header >> 1 > INT32_MAX) return 0;
  runs->left = (int64_t)(header >> 1);
  runs->value = 0;
  const uint8_t* at = runs->bytes.at;
  int num_bytes = (runs->width + 7) / 8;
  if (!skip_bytes(&runs->bytes, (uint64_t)num_bytes)) return 0;
  memcpy(&runs->value, at, (size_t)num_bytes);
  return (uint64_t)runs->value >> runs->width == 0;
}

/* The run that the next numbers are of; how many of them, at most `count`, 0 where there is none. */
static int64_t numbers_of_run(Runs* runs, int64_t count) {
  if (!runs->left && !next_run(runs)) return 0;
  return runs->left < count ? runs->left : count;
}

/* The packed number that begins at the bit; eight bytes are read where there are so many. */
static inline uint32_t packed_at(const uint8_t* packed, const uint8_t* end, int64_t bit, uint64_t mask) {
  uint64_t word = 0;
  const uint8_t* at = packed + (bit >> 3);
  memcpy(&word, at, end - at < 8 ? (size_t)(end - at) : 8);
  return (uint32_t)(word >> (bit & 7) & mask);
}

/* Groups of eight packed numbers, each group `width` bytes; with a width that the compiler knows, shifts are constants. */
static inline void unpack_groups(const uint8_t* at, uint32_t* numbers, int64_t num_groups, const int width) {
  const uint64_t mask = ((uint64_t)1 << width) - 1;
  for (int64_t group = 0; group < num_groups; group++, at += width, numbers += 8) {
    for (int i = 0; i < 8; i++) {
      uint64_t word;
      memcpy(&word, at + (i * width >> 3), 8);
      numbers[i] = (uint32_t)(word >> (i * width & 7) & mask);
    }
  }
}

#define GROUPS_OF(width) case width: unpack_groups(at, numbers, num_groups, width); break;
#define GROUPS_OF_4(width) GROUPS_OF(width) GROUPS_OF(width + 1) GROUPS_OF(width + 2) GROUPS_OF(width + 3)

static void unpack_whole(const uint8_t* at, uint32_t* numbers, int64_t num_groups, int width) {
  switch (width) {
    GROUPS_OF_4(1) GROUPS_OF_4(5) GROUPS_OF_4(9) GROUPS_OF_4(13) GROUPS_OF_4(17) GROUPS_OF_4(21)
    default: unpack_groups(at, numbers, num_groups, width);
  }
}

static void unpack(const Runs* runs, uint32_t* numbers, int64_t count) {
  int width = runs->width;
  if (!width) {
    memset(numbers, 0, (size_t)count * sizeof *numbers);
    return;
  }
  uint64_t mask = ((uint64_t)1 << width) - 1;
  const uint8_t* end = runs->bytes.end;
  int64_t bit = runs->bit, i = 0;
  for (; i < count && bit / 8 * 8 != bit; i++, bit += width) numbers[i] = packed_at(runs->packed, end, bit, mask);
  const uint8_t* at = runs->packed + bit / 8;
  int64_t whole = (count - i) / 8, readable = (end - at - 8) / width;
  if (readable < whole) whole = readable < 0 ? 0 : readable;
  unpack_whole(at, numbers + i, whole, width);
  for (i += whole * 8, bit += whole * 8 * width; i < count; i++, bit += width)
    numbers[i] = packed_at(runs->packed, end, bit, mask);
}

static int read_indices(Runs* runs, uint32_t* numbers, int64_t count) {
  while (count) {
    int64_t now = numbers_of_run(runs, count);
    if (!now) return 0;
    if (runs->is_packed) {
      unpack(runs, numbers, now);
      runs->bit += now * runs->width;
    } else {
      for (int64_t i = 0; i < now; i++) numbers[i] = runs->value;
    }
    runs->left -= now;
    numbers += now;
    count -= now;
  }
  return 1;
}

/* Packed levels of one or two bits, a byte of them at a time from where one begins. */
static void unpack_levels(const Runs* runs, uint8_t* levels, int64_t count) {
  int width = runs->width, per_byte = 8 / width;
  uint64_t mask = ((uint64_t)1 << width) - 1;
  const uint8_t* end = runs->bytes.end;
  int64_t bit = runs->bit, i = 0;
  for (; i < count && bit & 7; i++, bit += width) levels[i] = (uint8_t)packed_at(runs->packed, end, bit, mask);
  const uint8_t* at = runs->packed + (bit >> 3);
  if (width == 1) {
    for (; i + per_byte <= count; i += per_byte, bit += 8) {
      uint64_t spread = (*at++ * UINT64_C(0x0101010101010101)) & UINT64_C(0x8040201008040201);
      spread = (spread + UINT64_C(0x7f7f7f7f7f7f7f7f)) >> 7 & UINT64_C(0x0101010101010101);
      memcpy(levels + i, &spread, 8);
    }
  } else {
    for (; i + per_byte <= count; i += per_byte, bit += 8) {
      uint32_t byte = *at++, spread = (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303;
      memcpy(levels + i, &spread, 4);
    }
  }
  for (; i < count; i++, bit += width) levels[i] = (uint8_t)packed_at(runs->packed, end, bit, mask);
}

static int read_levels(Runs* runs, uint8_t* levels, int64_t count) {
  while (count) {
    int64_t now = numbers_of_run(runs, count);
    if (!now) return 0;
    if (runs->is_packed) {
      unpack_levels(runs, levels, now);
      runs->bit += now * runs->width;
    } else {
      memset(levels, (int)runs->value, (size_t)now);
    }
    runs->left -= now;
    levels += now;
    count -= now;
  }
  return 1;
}

/* The values of a page that are not null: plain, or indices of a dictionary's. */
typedef struct {
  Bytes plain;
  int is_dictionary;
  Runs runs;
  const char* dictionary;
  uint32_t num_in_dictionary;
} ValueReader;

static int read_values(ValueReader* reader, char* out, int64_t count, int width) {
  if (!reader->is_dictionary) {
    const uint8_t* from = reader->plain.at;
    if (!skip_bytes(&reader->plain, (uint64_t)(count * width))) return 0;
    memcpy(out, from, (size_t)(count * width));
    return 1;
  }
  for (int64_t done = 0; done < count;) {
    uint32_t indices[INDICES], bits = 0;
    int64_t now = count - done < INDICES ? count - done : INDICES;
    if (!read_indices(&reader->runs, indices, now)) return 0;
    for (int64_t i = 0; i < now; i++) bits |= indices[i];
    if (bits >= reader->num_in_dictionary) /* no index is above all bits together */
      for (int64_t i = 0; i < now; i++)
        if (indices[i] >= reader->num_in_dictionary) return 0;
    char* to = out + done * width;
    const char* from = reader->dictionary;
    if (width == 8) {
      for (int64_t i = 0; i < now; i++) memcpy(to + i * 8, from + (int64_t)indices[i] * 8, 8);
    } else {
      for (int64_t i = 0; i < now; i++) memcpy(to + i * 4, from + (int64_t)indices[i] * 4, 4);
    }
    done += now;
  }
  return 1;
}

/* A decompressed page. V1 (`repetition_bytes` below 0): levels and values in `levels`. V2: the levels there, values apart. */
typedef struct {
  const uint8_t* levels;
  int64_t levels_size;
  const uint8_t* values;
  int64_t values_size;
  int64_t num_values;
  int encoding;
  int64_t repetition_bytes, definition_bytes, num_rows, num_nulls; /* the last two below 0 where they are not said */
} Page;

/* A column, and how far it was decoded. A definition level of `max_definition` is a value, one below `null_below` becomes the
   mark (a null, or the one element of a null list), one between is nothing (an empty list, a null element). */
typedef struct {
  int width, max_repetition, max_definition, null_below;
  const char* mark;
  const char* dictionary;
  int64_t num_in_dictionary; /* below 0 where there is no dictionary */
  int64_t num_rows, capacity; /* rows; values that there is room for */
  int32_t* offsets;           /* num_rows + 1, where max_repetition is 1 */
  char* values;
  int64_t row, at;            /* rows that have begun, values that were written */
  int64_t levels_left;        /* of the chunk, by its footer's number of values */
  int has_data;               /* a page of data came before */
  int ends_in_element;        /* the last level is an element of a list, which the next may go on with */
  const volatile uint8_t* stop;
} ColumnOut;

static int level_bits(int highest) { return highest < 2 ? highest : 2; }

/* Runs of levels: `size` bytes, or with a length of four bytes before them where it is below 0. Moves the bytes on. */
static int level_runs(Bytes* bytes, int64_t size, int highest, Runs* runs) {
  uint32_t length;
  if (!highest) return size <= 0;
  if (size < 0) {
    const uint8_t* at = bytes->at;
    if (!skip_bytes(bytes, 4)) return 0;
    memcpy(&length, at, 4);
    size = length;
  }
  const uint8_t* at = bytes->at;
  if (!skip_bytes(bytes, (uint64_t)size)) return 0;
  *runs = runs_of(at, at + size, level_bits(highest));
  return 1;
}

static int value_reader(const Page* page, Bytes bytes, const ColumnOut* out, ValueReader* reader) {
  memset(reader, 0, sizeof *reader);
  reader->plain = bytes;
  if (page->encoding == PLAIN) return 1;
  if (page->encoding != PLAIN_DICTIONARY && page->encoding != RLE_DICTIONARY) return 0;
  if (out->num_in_dictionary < 0) return 0;
  reader->is_dictionary = 1;
  reader->dictionary = out->dictionary;
  reader->num_in_dictionary = (uint32_t)out->num_in_dictionary;
  int width = bytes.at < bytes.end ? *bytes.at++ : 0; /* a page of nulls may have no byte here */
  reader->runs = runs_of(bytes.at, bytes.end, width);
  return width <= 32;
}

/* The levels of a step: which begin a row, and which are values, are nulls, or are either, as 0 and 1. */
typedef struct {
  uint8_t definitions[STEP], begins[STEP], is_value[STEP], is_null[STEP], is_written[STEP];
  int64_t count, num_rows, num_values, num_nulls;
} Levels;

/* How many of at most STEP bytes are 1, the others being 0: eight sums side by side, none of which reaches 256. */
static int64_t num_ones(const uint8_t* ones, int64_t count) {
  const uint64_t even = UINT64_C(0x00ff00ff00ff00ff);
  uint64_t sums = 0;
  int64_t i = 0, rest = 0;
  for (; i + 8 <= count; i += 8) {
    uint64_t word;
    memcpy(&word, ones + i, 8);
    sums += word;
  }
  for (; i < count; i++) rest += ones[i];
  sums = (sums & even) + (sums >> 8 & even);
  return rest + (int64_t)(sums * UINT64_C(0x0001000100010001) >> 48);
}

static int read_definitions(Levels* levels, Runs* runs, uint8_t highest, uint8_t null_below) {
  uint8_t *found = levels->definitions, most = 0;
  int64_t count = levels->count;
  if (!read_levels(runs, found, count)) return 0;
  for (int64_t i = 0; i < count; i++) most = found[i] > most ? found[i] : most;
  for (int64_t i = 0; i < count; i++) {
    uint8_t is_value = found[i] == highest, is_null = found[i] < null_below;
    levels->is_value[i] = is_value;
    levels->is_null[i] = is_null;
    levels->is_written[i] = is_value | is_null;
  }
  levels->num_values = num_ones(levels->is_value, count);
  levels->num_nulls = null_below ? num_ones(levels->is_null, count) : 0;
  return most <= highest;
}

/* Which levels begin a row. Those that do not must be elements, and so must the one before each: no null and no empty list
   goes on. Of a list a definition level below `null_below` is a null, one at it an empty list, and one above it an element. A
   repetition level above 1 is seen as a stray one too, by its second bit. */
static int read_repetitions(Levels* levels, Runs* runs, uint8_t null_below, int ends_in_element) {
  uint8_t *begins = levels->begins, stray;
  const uint8_t* definitions = levels->definitions;
  int64_t count = levels->count;
  if (!read_levels(runs, begins, count)) return 0;
  stray = begins[0] & (uint8_t)~((definitions[0] > null_below) & ends_in_element);
  begins[0] ^= 1;
  for (int64_t i = 1; i < count; i++) {
    uint8_t may_go_on = (definitions[i] > null_below) & (definitions[i - 1] > null_below);
    stray |= begins[i] & (uint8_t)~may_go_on;
    begins[i] ^= 1;
  }
  levels->num_rows = num_ones(begins, count);
  return !stray;
}

/* Begins rows, counting values as they will lie. */
static void write_offsets(ColumnOut* out, const Levels* levels) {
  int32_t *offsets = out->offsets + out->row, at = (int32_t)out->at;
  for (int64_t i = 0; i < levels->count; i++) {
    *offsets = at;
    offsets += levels->begins[i];
    at += levels->is_written[i];
  }
}

/* Values, and marks between them; there is room for as many as there are levels, so that what is none can be written over. */
static int write_marked(ColumnOut* out, ValueReader* reader, const Levels* levels) {
  int64_t found[STEP + 1], count = levels->count;
  int width = out->width;
  char *to = out->values + out->at * width, *from = (char*)found;
  if (!read_values(reader, from, levels->num_values, width)) return 0;
  if (width == 8) {
    int64_t mark, value;
    memcpy(&mark, out->mark, 8);
    for (int64_t i = 0; i < count; i++) {
      memcpy(&value, from, 8);
      value = levels->is_value[i] ? value : mark;
      memcpy(to, &value, 8);
      from += 8 * levels->is_value[i];
      to += 8 * levels->is_written[i];
    }
  } else {
    int32_t mark, value;
    memcpy(&mark, out->mark, 4);
    for (int64_t i = 0; i < count; i++) {
      memcpy(&value, from, 4);
      value = levels->is_value[i] ? value : mark;
      memcpy(to, &value, 4);
      from += 4 * levels->is_value[i];
      to += 4 * levels->is_written[i];
    }
  }
  return 1;
}

static int decode_step(ColumnOut* out, Levels* levels, Runs* repetitions, Runs* definitions, ValueReader* reader) {
  levels->num_rows = levels->num_values = levels->count;
  levels->num_nulls = 0;
  if (out->max_definition && !read_definitions(levels, definitions, (uint8_t)out->max_definition, (uint8_t)out->null_below)) return 0;
  if (out->max_repetition && !read_repetitions(levels, repetitions, (uint8_t)out->null_below, out->ends_in_element)) return 0;
  int64_t written = levels->num_values + levels->num_nulls;
  if (levels->num_rows > out->num_rows - out->row || levels->count > out->capacity - out->at) return 0;
  if (out->max_repetition) write_offsets(out, levels);
  if (levels->num_nulls ? !write_marked(out, reader, levels)
                        : !read_values(reader, out->values + out->at * out->width, levels->num_values, out->width))
    return 0;
  out->row += levels->num_rows;
  out->at += written;
  out->levels_left -= levels->count;
  out->ends_in_element = out->max_repetition && levels->definitions[levels->count - 1] > out->null_below;
  return 1;
}

static int decode_page(ColumnOut* out, const Page* page) {
  Runs repetitions = runs_of(NULL, NULL, 0), definitions = repetitions;
  ValueReader reader;
  Bytes bytes = {page->levels, page->levels + page->levels_size};
  int is_v2 = page->repetition_bytes >= 0;
  if (!level_runs(&bytes, page->repetition_bytes, out->max_repetition, &repetitions)) return 0;
  if (!level_runs(&bytes, is_v2 ? page->definition_bytes : -1, out->max_definition, &definitions)) return 0;
  if (is_v2) {
    bytes.at = page->values;
    bytes.end = page->values + page->values_size;
  }
  if (!value_reader(page, bytes, out, &reader)) return 0;
  Levels levels;
  int64_t num_nulls = 0, first_row = out->row;
  for (int64_t left = page->num_values; left > 0; left -= levels.count) {
    levels.count = left < STEP ? left : STEP;
    if (*out->stop || !decode_step(out, &levels, &repetitions, &definitions, &reader)) return 0;
    num_nulls += levels.count - levels.num_values;
  }
  return !is_v2 || (page->num_rows == out->row - first_row && page->num_nulls == num_nulls);
}

#endif
