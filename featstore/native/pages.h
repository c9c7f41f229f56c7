/* Pages of a Parquet column chunk to values and list offsets, without the nulls.

   Plain C over plain memory, of the format that parquet.apache.org describes: page headers in Thrift's compact protocol, levels
   and dictionary indices as runs (RLE and bit-packed, hybrid), values plain, from a dictionary or, whole numbers, as differences. What is compressed was
   decompressed before. Little-endian machines only. A function that meets something malformed, or that it does not know, stops
   and says so (0), having written only inside its output: Arrow reads such a chunk, or says what is wrong with it. */
#ifndef FEATSTORE_PAGES_H
#define FEATSTORE_PAGES_H

#include <stdint.h>
#include <string.h>

#include "deltas.h"
#include "thrift.h"
#include "wide.h"

#define STEP 1024  /* levels that are decoded at a time */
#define WORDS (STEP / 64)
#define LONG_STEP (1 << 16) /* values that are decoded at a time where a run says that nothing is null */
#define INDICES 256 /* dictionary indices that are */
#define DECODED_BLOCK 64 /* bytes */
#define NO_CRC INT64_MIN

enum { PAGE_DATA = 0, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3 };
enum { DATA_STRUCT = 5, INDEX_STRUCT, DICTIONARY_STRUCT, DATA_V2_STRUCT }; /* fields of a page's header */
enum { PLAIN = 0, PLAIN_DICTIONARY = 2, RLE = 3, DELTA_BINARY_PACKED = 5, RLE_DICTIONARY = 8 };

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

#if HAS_WIDE
#define WIDEST 25 /* bits that lie in four bytes wherever they begin */
#define WIDE_BYTES 28 /* that are read of a group at most */

/* Where the four bytes of each of eight packed numbers lie, counted from the first byte of four of them, and how far the number
   is from their lowest bit. */
typedef struct {
  uint8_t bytes[32];
  uint32_t shifts[8];
} Places;

static void find_places(Places* places, int width) {
  for (int i = 0; i < 8; i++) {
    int bit = i * width - (i < 4 ? 0 : width / 2 * 8);
    for (int byte = 0; byte < 4; byte++) places->bytes[i * 4 + byte] = (uint8_t)(bit / 8 + byte);
    places->shifts[i] = (uint32_t)(bit % 8);
  }
}

static inline WIDE void unpack_wide(const Places* places, const uint8_t* at, uint32_t* numbers, int64_t num_groups, int width) {
  const __m256i bytes = _mm256_loadu_si256((const __m256i*)places->bytes);
  const __m256i shifts = _mm256_loadu_si256((const __m256i*)places->shifts);
  const __m256i mask = _mm256_set1_epi32((int)(((uint32_t)1 << width) - 1));
  for (int64_t group = 0; group < num_groups; group++, at += width, numbers += 8) {
    const __m128i low = _mm_loadu_si128((const __m128i*)at), high = _mm_loadu_si128((const __m128i*)(at + width / 2));
    const __m256i found = _mm256_shuffle_epi8(_mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1), bytes);
    _mm256_storeu_si256((__m256i*)numbers, _mm256_and_si256(_mm256_srlv_epi32(found, shifts), mask));
  }
}
#else
typedef struct {
  int none;
} Places;

static void find_places(Places* places, int width) {
  (void)places;
  (void)width;
}
#endif

#define GROUPS_OF(width) case width: unpack_groups(at, numbers, num_groups, width); break;
#define GROUPS_OF_4(width) GROUPS_OF(width) GROUPS_OF(width + 1) GROUPS_OF(width + 2) GROUPS_OF(width + 3)

static void unpack_whole(const uint8_t* at, uint32_t* numbers, int64_t num_groups, int width) {
  switch (width) {
    GROUPS_OF_4(1) GROUPS_OF_4(5) GROUPS_OF_4(9) GROUPS_OF_4(13) GROUPS_OF_4(17) GROUPS_OF_4(21)
    default: unpack_groups(at, numbers, num_groups, width);
  }
}

/* Of how many whole groups `room` bytes more than the group's are there to be read. */
INLINED int64_t readable_groups(int64_t num_bytes, int64_t room, int width) {
  return num_bytes < room ? 0 : (num_bytes - room) / width;
}

INLINED void unpack(const Runs* runs, const Places* places, uint32_t* numbers, int64_t count, const int is_wide) {
  int width = runs->width;
  if (!width) {
    memset(numbers, 0, (size_t)count * sizeof *numbers);
    return;
  }
  uint64_t mask = ((uint64_t)1 << width) - 1;
  const uint8_t* end = runs->bytes.end;
  int64_t bit = runs->bit, i = 0;
  for (; i < count && bit & 7; i++, bit += width) numbers[i] = packed_at(runs->packed, end, bit, mask);
#if HAS_WIDE
  if (is_wide && width <= WIDEST) {
    const uint8_t* at = runs->packed + bit / 8;
    int64_t whole = (count - i) / 8, readable = readable_groups(end - at, WIDE_BYTES, width);
    if (readable < whole) whole = readable;
    unpack_wide(places, at, numbers + i, whole, width);
    i += whole * 8;
    bit += whole * 8 * width;
  }
#endif
  (void)places;
  (void)is_wide;
  const uint8_t* at = runs->packed + bit / 8;
  int64_t whole = (count - i) / 8, readable = readable_groups(end - at, 8, width);
  if (readable < whole) whole = readable;
  unpack_whole(at, numbers + i, whole, width);
  for (i += whole * 8, bit += whole * 8 * width; i < count; i++, bit += width)
    numbers[i] = packed_at(runs->packed, end, bit, mask);
}

/* Levels of one or two bits as bits: the lowest of each, and the other; so that 64 levels are compared at a time. */
typedef struct {
  uint64_t low[WORDS + 1], high[WORDS + 1]; /* one more, into which nothing but zeros is ever written */
} Planes;

/* How many bits are 1: what compilers know as one instruction where there is one. */
INLINED int64_t num_ones(uint64_t bits) {
  bits -= bits >> 1 & UINT64_C(0x5555555555555555);
  bits = (bits & UINT64_C(0x3333333333333333)) + (bits >> 2 & UINT64_C(0x3333333333333333));
  bits = (bits + (bits >> 4)) & UINT64_C(0x0f0f0f0f0f0f0f0f);
  return (int64_t)(bits * UINT64_C(0x0101010101010101) >> 56);
}

/* The lowest bits, `count` of them and not 64. */
INLINED uint64_t lowest(int64_t count) { return ((uint64_t)1 << count) - 1; }

/* Every second bit, from the lowest on, side by side. */
INLINED uint64_t even_bits(uint64_t bits) {
  bits &= UINT64_C(0x5555555555555555);
  bits = (bits | bits >> 1) & UINT64_C(0x3333333333333333);
  bits = (bits | bits >> 2) & UINT64_C(0x0f0f0f0f0f0f0f0f);
  bits = (bits | bits >> 4) & UINT64_C(0x00ff00ff00ff00ff);
  bits = (bits | bits >> 8) & UINT64_C(0x0000ffff0000ffff);
  return (bits | bits >> 16) & UINT64_C(0x00000000ffffffff);
}

/* At most 32 bits behind the first `at`, where zeros are. */
INLINED void put_bits(uint64_t* words, int64_t at, uint64_t bits) {
  words[at >> 6] |= bits << (at & 63);
  words[(at >> 6) + 1] |= bits >> 1 >> (63 - (at & 63));
}

INLINED void put_ones(uint64_t* words, int64_t at, int64_t count) {
  for (int64_t now; count; at += now, count -= now) {
    const int64_t left = 64 - (at & 63);
    now = left < count ? left : count;
    words[at >> 6] |= (now == 64 ? ~UINT64_C(0) : lowest(now)) << (at & 63);
  }
}

INLINED void unpack_levels(const Runs* runs, Planes* planes, int64_t at, int64_t count) {
  const int64_t most = runs->width == 1 ? 32 : 28; /* levels that eight bytes hold wherever they begin, 32 at most */
  const uint8_t* end = runs->bytes.end;
  int64_t bit = runs->bit;
  for (int64_t now; count; at += now, count -= now, bit += now * runs->width) {
    now = count < most ? count : most;
    uint64_t word = 0;
    const uint8_t* from = runs->packed + (bit >> 3);
    memcpy(&word, from, end - from < 8 ? (size_t)(end - from) : 8);
    word = word >> (bit & 7) & lowest(now * runs->width);
    put_bits(planes->low, at, runs->width == 1 ? word : even_bits(word));
    if (runs->width == 2) put_bits(planes->high, at, even_bits(word >> 1));
  }
}

INLINED int read_levels(Runs* runs, Planes* planes, int64_t count) {
  memset(planes, 0, sizeof *planes);
  for (int64_t at = 0, now; at < count; at += now) {
    now = numbers_of_run(runs, count - at);
    if (!now) return 0;
    if (runs->is_packed) {
      unpack_levels(runs, planes, at, now);
      runs->bit += now * runs->width;
    } else {
      if (runs->value & 1) put_ones(planes->low, at, now);
      if (runs->value & 2) put_ones(planes->high, at, now);
    }
    runs->left -= now;
  }
  return 1;
}

/* The values of a page that are not null: plain, differences, or indices of a dictionary's. */
typedef struct {
  Bytes plain;
  int is_dictionary, is_delta;
  Deltas deltas;
  Runs runs;
  Places places; /* of the indices */
  const char* dictionary;
  uint32_t num_in_dictionary;
} ValueReader;

/* The values of a dictionary that have these indices, which are all checked before. */
INLINED int look_up(const ValueReader* reader, const uint32_t* indices, int64_t count, int width, char* to) {
  const uint32_t last = reader->num_in_dictionary - 1;
  const char* const from = reader->dictionary;
  /* An index is within unless it, or what it leaves of the last one, has the highest bit, which no count here has. */
  uint32_t beyond = 0;
  for (int64_t i = 0; i < count; i++) beyond |= indices[i] | (last - indices[i]);
  if (beyond >> 31) return 0;
  if (width == 8) {
    for (int64_t i = 0; i < count; i++) memcpy(to + i * 8, from + (int64_t)indices[i] * 8, 8);
  } else {
    for (int64_t i = 0; i < count; i++) memcpy(to + i * 4, from + (int64_t)indices[i] * 4, 4);
  }
  return 1;
}

/* One value of a dictionary, `count` times. */
INLINED int repeat(const ValueReader* reader, uint32_t index, int64_t count, int width, char* to) {
  if (index >= reader->num_in_dictionary) return 0;
  const char* const from = reader->dictionary + (int64_t)index * width;
  if (width == 8) {
    uint64_t value;
    memcpy(&value, from, 8);
    for (int64_t i = 0; i < count; i++) memcpy(to + i * 8, &value, 8);
  } else {
    uint32_t value;
    memcpy(&value, from, 4);
    for (int64_t i = 0; i < count; i++) memcpy(to + i * 4, &value, 4);
  }
  return 1;
}

INLINED int read_values(ValueReader* reader, char* out, int64_t count, int width, const int is_wide) {
  Runs* const runs = &reader->runs;
  if (reader->is_delta) return width == 8 ? read_deltas(&reader->deltas, out, count, 8) : read_deltas(&reader->deltas, out, count, 4);
  if (!reader->is_dictionary) {
    const uint8_t* from = reader->plain.at;
    if (!skip_bytes(&reader->plain, (uint64_t)(count * width))) return 0;
    memcpy(out, from, (size_t)(count * width));
    return 1;
  }
  if (!reader->num_in_dictionary) return !count;
  for (int64_t now; count; count -= now, out += now * width) {
    uint32_t indices[INDICES];
    now = numbers_of_run(runs, count);
    if (!now) return 0;
    if (!runs->is_packed) {
      if (!repeat(reader, runs->value, now, width, out)) return 0;
    } else {
      if (now > INDICES) now = INDICES;
      unpack(runs, &reader->places, indices, now, is_wide);
      runs->bit += now * runs->width;
      if (!look_up(reader, indices, now, width, out)) return 0;
    }
    runs->left -= now;
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
  int is_whole; /* values are whole numbers, of which differences may be stored */
  const char* mark;
  const char* dictionary;
  int64_t num_in_dictionary; /* below 0 where there is no dictionary */
  int64_t num_rows, capacity; /* rows, without those that were left out; values that there is room for */
  int32_t* offsets;           /* num_rows + 1, where max_repetition is 1 */
  char* values;
  int64_t row, at;            /* rows that have begun, values that were written */
  int64_t levels_left;        /* of the chunk, by its footer's number of values */
  int has_data;               /* a page of data came before */
  int ends_in_element;        /* the last level is an element of a list, which the next may go on with */
  const volatile uint8_t* stop;
  int is_wide;                /* decoded by what the CPU has beyond the portable instructions */
  const int64_t* kept;        /* the first row and the end of each run of rows that are kept; NULL: all are */
  int64_t num_kept, next_kept; /* how many runs there are, and how many are done */
  int64_t passed;             /* rows that have begun, whether they are kept or not */
  int leaves_out;             /* the last of them, a list, is not, nor is what goes on with it */
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

INLINED int value_reader(const Page* page, Bytes bytes, const ColumnOut* out, ValueReader* reader) {
  memset(reader, 0, sizeof *reader);
  reader->plain = bytes;
  if (page->encoding == PLAIN) return 1;
  reader->is_delta = out->is_whole && page->encoding == DELTA_BINARY_PACKED;
  if (reader->is_delta) return begin_deltas(&reader->deltas, bytes, 8 * out->width);
  if (page->encoding != PLAIN_DICTIONARY && page->encoding != RLE_DICTIONARY) return 0;
  if (out->num_in_dictionary < 0) return 0;
  reader->is_dictionary = 1;
  reader->dictionary = out->dictionary;
  reader->num_in_dictionary = (uint32_t)out->num_in_dictionary;
  int width = bytes.at < bytes.end ? *bytes.at++ : 0; /* a page of nulls may have no byte here */
  reader->runs = runs_of(bytes.at, bytes.end, width);
  if (width > 32) return 0;
  find_places(&reader->places, width);
  return 1;
}

/* The levels of a step as bits: which begin a row, which are values and which are nulls, and which are elements of a list. */
typedef struct {
  uint64_t begins[WORDS], values[WORDS], nulls[WORDS], elements[WORDS];
  int64_t count, num_rows, num_values, num_nulls;
} Levels;

/* The bits that a word of the step has: all but in its last one. */
INLINED uint64_t bits_of_word(const Levels* levels, int64_t word) {
  const int64_t left = levels->count - word * 64;
  return left < 64 ? lowest(left) : ~UINT64_C(0);
}

/* All bits if the number is not 0. */
INLINED uint64_t all_if(int number) { return number ? ~UINT64_C(0) : 0; }

/* Which levels are in a set, given by a bit for each of the four levels that there may be. */
INLINED uint64_t in_set(int set, uint64_t low, uint64_t high) {
  return (all_if(set & 1) & ~low & ~high) | (all_if(set & 2) & low & ~high) | (all_if(set & 4) & ~low & high) |
         (all_if(set & 8) & low & high);
}

/* Levels from 0 to `highest` and no more. Those below `null_below` are nulls, the highest is a value; of lists the level
   `null_below` is an empty one, and what is above it an element. */
INLINED int read_definitions(Levels* levels, Runs* runs, int highest, int null_below) {
  Planes planes;
  const int values = 1 << highest, nulls = ((1 << null_below) - 1) & (values - 1), elements = 15 & ~((2 << null_below) - 1);
  const int beyond = 15 & ~(values | (values - 1));
  uint64_t stray = 0;
  if (!read_levels(runs, &planes, levels->count)) return 0;
  levels->num_values = levels->num_nulls = 0;
  for (int64_t i = 0; i * 64 < levels->count; i++) {
    const uint64_t low = planes.low[i], high = planes.high[i], bits = bits_of_word(levels, i);
    levels->values[i] = in_set(values, low, high) & bits;
    levels->nulls[i] = in_set(nulls, low, high) & bits;
    levels->elements[i] = in_set(elements, low, high) & bits;
    stray |= in_set(beyond, low, high) & bits;
    levels->num_values += num_ones(levels->values[i]);
    levels->num_nulls += num_ones(levels->nulls[i]);
  }
  return !stray;
}

/* Which levels begin a row. Those that do not must be elements, and so must the one before each: no null and no empty list
   goes on. */
INLINED int read_repetitions(Levels* levels, Runs* runs, int ends_in_element) {
  Planes planes;
  uint64_t stray = 0, before = ends_in_element != 0;
  if (!read_levels(runs, &planes, levels->count)) return 0;
  levels->num_rows = 0;
  for (int64_t i = 0; i * 64 < levels->count; i++) {
    const uint64_t goes_on = planes.low[i], elements = levels->elements[i];
    stray |= goes_on & ~(elements & (elements << 1 | before));
    before = elements >> 63;
    levels->begins[i] = ~goes_on & bits_of_word(levels, i);
    levels->num_rows += num_ones(levels->begins[i]);
  }
  return !stray;
}

/* Begins rows, counting values as they will lie. */
INLINED void write_offsets(ColumnOut* out, const Levels* levels) {
  int32_t *offsets = out->offsets + out->row, at = (int32_t)out->at;
  for (int64_t i = 0; i * 64 < levels->count; i++) {
    const uint64_t written = levels->values[i] | levels->nulls[i];
    for (uint64_t begins = levels->begins[i]; begins; begins &= begins - 1)
      *offsets++ = at + (int32_t)num_ones(written & ((begins & (0 - begins)) - 1));
    at += (int32_t)num_ones(written);
  }
}

/* Values, and marks between them: before each null come the values that are left of those before it. */
INLINED int write_marked(ColumnOut* out, ValueReader* reader, const Levels* levels, const int is_wide) {
  int64_t found[STEP], num_before = 0;
  const int width = out->width;
  char *to = out->values + out->at * width, *from = (char*)found;
  if (!read_values(reader, from, levels->num_values, width, is_wide)) return 0;
  for (int64_t i = 0; i * 64 < levels->count; i++) {
    int64_t taken = 0;
    for (uint64_t nulls = levels->nulls[i]; nulls; nulls &= nulls - 1) {
      const int64_t through = num_ones(levels->values[i] & ((nulls & (0 - nulls)) - 1));
      memcpy(to, from + (num_before + taken) * width, (size_t)((through - taken) * width));
      to += (through - taken) * width;
      memcpy(to, out->mark, (size_t)width);
      to += width;
      taken = through;
    }
    const int64_t num_values = num_ones(levels->values[i]);
    memcpy(to, from + (num_before + taken) * width, (size_t)((num_values - taken) * width));
    to += (num_values - taken) * width;
    num_before += num_values;
  }
  return 1;
}

static inline int has_room(const ColumnOut* out, int64_t num_rows, int64_t num_values) {
  return num_rows <= out->num_rows - out->row && num_values <= out->capacity - out->at;
}

static inline void count_written(ColumnOut* out, int64_t num_levels, int64_t num_rows, int64_t num_values) {
  out->levels_left -= num_levels;
  out->row += num_rows;
  out->at += num_values;
  out->passed += num_rows;
}

/* How many rows from the next one on are kept, and with them what goes on with the last one. */
static inline int64_t rows_to_keep(ColumnOut* out) {
  if (!out->kept) return INT64_MAX;
  while (out->next_kept < out->num_kept && out->kept[2 * out->next_kept + 1] <= out->passed) out->next_kept++;
  const int64_t* const run = out->kept + 2 * out->next_kept;
  return out->next_kept < out->num_kept && *run <= out->passed && !out->leaves_out ? run[1] - out->passed : 0;
}

/* How many of the next `count` rows are values, as one run says; 0 where it says something else, and below where there is no run. */
static inline int64_t run_of_values(const ColumnOut* out, Runs* definitions, int64_t count) {
  if (!out->max_definition) return count;
  const int64_t now = numbers_of_run(definitions, count);
  if (!now) return -1;
  return !definitions->is_packed && definitions->value == (uint32_t)out->max_definition ? now : 0;
}

/* The levels of the next step, of `left` that are to come. It is longer where one run says that there are no nulls in it. */
INLINED int next_levels(ColumnOut* out, Levels* levels, Runs* repetitions, Runs* definitions, int64_t left) {
  const int64_t count = left < STEP ? left : STEP, to_keep = rows_to_keep(out), long_step = to_keep < STEP ? STEP : to_keep;
  const int64_t longest = long_step < LONG_STEP ? long_step : LONG_STEP, most = left < longest ? left : longest;
  const int64_t num_values = out->max_repetition ? 0 : run_of_values(out, definitions, most);
  if (num_values < 0) return 0;
  levels->count = levels->num_rows = levels->num_values = num_values < count ? count : num_values;
  levels->num_nulls = 0;
  if (num_values >= count) {
    definitions->left -= num_values; /* also where there are no levels, and nobody looks */
    return 1;
  }
  if (!read_definitions(levels, definitions, out->max_definition, out->null_below)) return 0;
  return !out->max_repetition || read_repetitions(levels, repetitions, out->ends_in_element);
}

#if HAS_WIDE
static inline WIDE void copy_blocks_wide(char* to, const char* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += DECODED_BLOCK) {
    const __m256i low = _mm256_loadu_si256((const __m256i*)(from + at)), high = _mm256_loadu_si256((const __m256i*)(from + at + 32));
    _mm256_storeu_si256((__m256i*)(to + at), low);
    _mm256_storeu_si256((__m256i*)(to + at + 32), high);
  }
}
#endif

/* Copies what a step has decoded, in blocks, which are quicker than to look at how much it is: up to one beyond the end is read. */
INLINED void copy_decoded(char* to, const char* from, int64_t bytes, int64_t room, const int is_wide) {
  if (bytes + DECODED_BLOCK > room) {
    memcpy(to, from, (size_t)bytes);
    return;
  }
#if HAS_WIDE
  if (is_wide) {
    copy_blocks_wide(to, from, bytes);
    return;
  }
#endif
  (void)is_wide;
  for (int64_t at = 0; at < bytes; at += DECODED_BLOCK) memcpy(to + at, from + at, DECODED_BLOCK);
}

/* Writes the rows of a step that are kept. Its values, and the first value of each of its rows, are apart, in the nearest cache. */
INLINED void write_kept(ColumnOut* out, const Levels* levels, const char* values, int64_t num_values, const int32_t* begins,
                        const int is_wide) {
  const int is_list = out->max_repetition;
  const int64_t width = out->width, num_rows = levels->num_rows, last = out->passed + num_rows;
  int64_t num_kept = 0, first = 0, end = 0, from = 0, to = !is_list ? 0 : num_rows ? begins[0] : num_values;
  if (out->leaves_out) to = 0; /* of the row that goes on */
  for (;;) {
    copy_decoded(out->values + out->at * width, values + from * width, (to - from) * width, (out->capacity - out->at) * width, is_wide);
    const int32_t by = (int32_t)(out->at - from);
    for (int64_t i = first; is_list && i < end; i++) out->offsets[out->row - first + i] = by + begins[i];
    out->at += to - from;
    out->row += end - first;
    num_kept += end - first;
    if (out->next_kept == out->num_kept) break;
    const int64_t* const run = out->kept + 2 * out->next_kept;
    if (run[0] >= last || end == num_rows) break;
    first = run[0] > out->passed ? run[0] - out->passed : 0;
    end = run[1] < last ? run[1] - out->passed : num_rows;
    from = is_list ? begins[first] : first;
    to = !is_list ? end : end < num_rows ? begins[end] : num_values;
    out->next_kept += run[1] <= last;
  }
  if (num_rows) out->leaves_out = is_list && end < num_rows;
  out->num_rows -= num_rows - num_kept;
  out->passed = last;
}

INLINED int decode_values(ColumnOut* out, const Levels* levels, ValueReader* reader, const int is_wide) {
  if (out->max_repetition) write_offsets(out, levels);
  if (levels->num_nulls) return write_marked(out, reader, levels, is_wide);
  return read_values(reader, out->values + out->at * out->width, levels->num_values, out->width, is_wide);
}

/* A step of which some rows are not kept. Where nulls are left out, the rows of its values are not known. */
INLINED int decode_some(ColumnOut* out, const Levels* levels, ValueReader* reader, const int is_wide) {
  int64_t values[STEP + DECODED_BLOCK / 8];
  int32_t begins[STEP];
  ColumnOut step = *out;
  if (!out->max_repetition && levels->num_values + levels->num_nulls < levels->count) return 0;
  step.values = (char*)values;
  step.offsets = begins;
  step.row = step.at = 0;
  if (!decode_values(&step, levels, reader, is_wide)) return 0;
  out->levels_left -= levels->count;
  write_kept(out, levels, step.values, levels->num_values + levels->num_nulls, begins, is_wide);
  return 1;
}

INLINED int decode_step(ColumnOut* out, const Levels* levels, ValueReader* reader, const int is_wide) {
  const int64_t last = levels->count - 1;
  if (!has_room(out, levels->num_rows, levels->count)) return 0;
  if (out->leaves_out || rows_to_keep(out) < levels->num_rows) {
    if (!decode_some(out, levels, reader, is_wide)) return 0;
  } else {
    if (!decode_values(out, levels, reader, is_wide)) return 0;
    count_written(out, levels->count, levels->num_rows, levels->num_values + levels->num_nulls);
  }
  out->ends_in_element = out->max_repetition && levels->elements[last / 64] >> last % 64 & 1;
  return 1;
}

INLINED int decode_steps(ColumnOut* out, const Page* page, const int is_wide) {
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
  int64_t num_nulls = 0;
  const int64_t rows_left = out->num_rows - out->row;
  for (int64_t left = page->num_values; left > 0; left -= levels.count) {
    if (*out->stop || !next_levels(out, &levels, &repetitions, &definitions, left)) return 0;
    if (!decode_step(out, &levels, &reader, is_wide)) return 0;
    num_nulls += levels.count - levels.num_values;
  }
  if (reader.is_delta && reader.deltas.left) return 0;
  return !is_v2 || (page->num_rows == rows_left - (out->num_rows - out->row) && page->num_nulls == num_nulls);
}

static int portable_decode_page(ColumnOut* out, const Page* page) { return decode_steps(out, page, 0); }

#if HAS_WIDE
static WIDE int wide_decode_page(ColumnOut* out, const Page* page) { return decode_steps(out, page, 1); }
#else
#define wide_decode_page portable_decode_page
#endif

/* The same source twice: for any machine, and for one with AVX2, which unpacks eight indices at a time and counts bits in one
   instruction. */
static int decode_page(ColumnOut* out, const Page* page) {
  return (out->is_wide ? wide_decode_page : portable_decode_page)(out, page);
}

#endif
