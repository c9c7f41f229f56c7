/* Column chunks of a Parquet file to columns: read, decompressed and decoded, by several threads that share the columns; and
   whether the pages of chunks are as they were written.

   POSIX files and threads. A column that holds something malformed, or unknown here, or that cannot be read, is left out. */
#ifndef FEATSTORE_CHUNKS_H
#define FEATSTORE_CHUNKS_H

#include <errno.h>
#include <unistd.h>

#include "crc32.h"
#include "once.h"
#include "pages.h"
#include "rows.h"
#include "snappy.h"
#include "threads.h"

#define LIKELY_HEADER 4096 /* bytes that a page's header is likely to be in */

enum { UNCOMPRESSED = 0, SNAPPY = 1, ZSTD = 6 }; /* as Parquet's footers number them */
enum { FIRST, SIZE, CODEC, NUM_VALUES, PAGE_BYTES, NUMBERS_OF_CHUNK };
enum { NOT_READ = 0, READ = 1, BEYOND_BOUNDS = 2 };

#define READ_STEP (4 << 20) /* bytes between looks at whether to stop: about a millisecond of memory's speed */

typedef struct {
  ColumnOut out;
  const int64_t* chunks; /* of each row group: first byte in the file, bytes, codec, values, bytes that a page may claim */
  int64_t number; /* of the column among those that were asked for */
  int is_decoded;
  int64_t beyond_bounds; /* the row group whose chunk claims more than its footer allows, or -1 */
} Column;

/* Decompresses a page to `size` bytes at `out`, by a codec that is not ours; 0 where it cannot. Called by any thread. */
typedef int (*Decompress)(void* by, Bytes page, uint8_t* out, int64_t size);

/* Columns of the same row groups, `rows` in each. Threads take the next that nobody has taken, until `stop` is not 0. */
typedef struct {
  int file;
  Column* columns;
  const int64_t* rows;
  const uint32_t* order; /* the rows that are written, `num_ordered`; NULL: all, as they lie in the file */
  int64_t num_ordered;
  const int64_t* kept; /* the rows that are written, as they lie in the file, as of ColumnOut */
  int64_t num_kept;
  int64_t num_columns, num_row_groups, next;
  uint8_t* room; /* of each thread `room_bytes` */
  int64_t room_bytes, next_room;
  const volatile uint8_t* stop;
  int checks; /* pages against their checksums, where they have one */
  int is_wide; /* as of ColumnOut */
  Decompress decompress;
  void* by;
} Work;

/* Memory from `at` on; pages go where the last one was, after the dictionary. */
typedef struct {
  uint8_t *at, *end;
  const Work* work;
} Room;

/* Whether a page is one literal, which is then read where it lies. */
static int is_literal(Bytes page, int64_t size, Bytes* literal) {
  return first_literal(&page, size, literal) && page.at == page.end && literal->end - literal->at == size;
}

static int decompressed(Bytes page, int64_t size, int64_t codec, const Room* room, Bytes* found) {
  *found = page;
  if (codec == UNCOMPRESSED) return page.end - page.at == size;
  if (codec == SNAPPY && is_literal(page, size, found)) return 1;
  found->at = room->at;
  found->end = room->at + size;
  if (!size && page.at == page.end) return 1;
  if (size > room->end - room->at) return 0;
  if (codec == SNAPPY) return decompress_snappy(page, 0, room->at, size, room->work->stop, room->work->is_wide);
  return room->work->decompress(room->work->by, page, room->at, size);
}

/* The one dictionary of a chunk, before its data, with as many values as its header says. */
static int read_dictionary(ColumnOut* out, const PageHeader* header, Bytes page, int64_t codec, Room* room) {
  Bytes found;
  int is_first = out->num_in_dictionary < 0 && !out->has_data;
  if (!is_first || (header->encoding != PLAIN && header->encoding != PLAIN_DICTIONARY)) return 0;
  if (!decompressed(page, header->uncompressed_size, codec, room, &found)) return 0;
  int64_t size = found.end - found.at;
  out->dictionary = (const char*)found.at;
  out->num_in_dictionary = header->num_values;
  if (found.at == room->at) room->at += size;
  return size == header->num_values * out->width;
}

/* Whether the levels at the begin of a V1 page are those of `count` values and of nothing else. */
static int are_all_values(const ColumnOut* out, Bytes levels, int64_t count) {
  Runs runs = runs_of(NULL, NULL, 0);
  if (!level_runs(&levels, -1, out->max_definition, &runs) || levels.at < levels.end) return 0;
  return run_of_values(out, &runs, count) == count;
}

/* A V1 page of plain values and nothing else, decompressed to where they belong: the levels before them are read where they lie
   in its first literal. 0 where it is no such page; then what was written is written again. */
static int decode_straight(ColumnOut* out, const PageHeader* header, Bytes page) {
  const int64_t count = header->num_values, size = count * out->width, num_levels = header->uncompressed_size - size;
  Bytes rest = page, levels;
  if (out->max_repetition || header->encoding != PLAIN || !first_literal(&rest, header->uncompressed_size, &levels)) return 0;
  if (num_levels < 0 || num_levels > levels.end - levels.at || !has_room(out, count, count) || rows_to_keep(out) < count) return 0;
  levels.end = levels.at + num_levels;
  if (!are_all_values(out, levels, count)) return 0;
  uint8_t* const to = (uint8_t*)out->values + out->at * out->width;
  if (!decompress_snappy(page, num_levels, to, size, out->stop, out->is_wide)) return 0;
  count_written(out, count, count, count);
  return 1;
}

static int decode_v1(ColumnOut* out, const PageHeader* header, Bytes bytes, int64_t codec, const Room* room) {
  Bytes found;
  /* of levels that a column does not have anything may be said */
  if (out->max_definition && header->definition_encoding != RLE) return 0;
  if (out->max_repetition && header->repetition_encoding != RLE) return 0;
  if (codec == SNAPPY && decode_straight(out, header, bytes)) return 1;
  if (!decompressed(bytes, header->uncompressed_size, codec, room, &found)) return 0;
  Page page = {found.at, found.end - found.at, NULL, 0, header->num_values, (int)header->encoding, -1, -1, -1, -1};
  return decode_page(out, &page);
}

static int decode_v2(ColumnOut* out, const PageHeader* header, Bytes bytes, int64_t codec, const Room* room) {
  int64_t levels = header->definition_bytes + header->repetition_bytes;
  if (levels > header->compressed_size || levels > header->uncompressed_size) return 0;
  Bytes found, compressed = {bytes.at + levels, bytes.end};
  if (!decompressed(compressed, header->uncompressed_size - levels, header->is_compressed ? codec : UNCOMPRESSED, room, &found))
    return 0;
  Page page = {bytes.at, levels, found.at, found.end - found.at, header->num_values, (int)header->encoding,
               header->repetition_bytes, header->definition_bytes, header->num_rows, header->num_nulls};
  return decode_page(out, &page);
}

/* Whether a page's bytes (of V2 its levels too) are those that were written, as far as its header says. */
static int is_intact(const PageHeader* header, Bytes page, const volatile uint8_t* stop) {
  uint32_t crc = 0;
  if (header->crc == NO_CRC) return 1;
  while (page.at < page.end && !*stop) {
    int64_t now = page.end - page.at < READ_STEP ? page.end - page.at : READ_STEP;
    crc = crc32_of(page.at, now, crc);
    page.at += now;
  }
  return page.at == page.end && crc == (uint32_t)header->crc;
}

/* Whether a page claims no more levels than are left of its chunk, and no more bytes than the chunk's values can need. */
static int is_within(const PageHeader* header, int64_t levels_left, int64_t page_bytes) {
  int is_data = header->type == PAGE_DATA || header->type == PAGE_DATA_V2;
  return (!is_data || header->num_values <= levels_left) && header->uncompressed_size <= page_bytes;
}

static int decode_one_page(ColumnOut* out, const PageHeader* header, Bytes page, int64_t codec, Room* room) {
  if (!is_whole_header(header)) return 0;
  if (room->work->checks && !is_intact(header, page, room->work->stop)) return 0;
  if (header->type == PAGE_DICTIONARY) return read_dictionary(out, header, page, codec, room);
  out->has_data = 1;
  if (header->type == PAGE_DATA) return decode_v1(out, header, page, codec, room);
  return decode_v2(out, header, page, codec, room);
}

/* All pages of a chunk, in order, after the rows and values that there are. */
static int decode_chunk(ColumnOut* out, Bytes chunk, const int64_t* numbers, Room room) {
  PageHeader header;
  out->num_in_dictionary = -1;
  out->has_data = 0;
  out->levels_left = numbers[NUM_VALUES];
  out->ends_in_element = 0;
  while (chunk.at < chunk.end) {
    if (*room.work->stop || !read_page_header(&chunk, &header)) return NOT_READ;
    if (!is_within(&header, out->levels_left, numbers[PAGE_BYTES])) return BEYOND_BOUNDS;
    Bytes page = {chunk.at, chunk.at};
    if (!skip_bytes(&chunk, (uint64_t)header.compressed_size)) return NOT_READ;
    page.end = chunk.at;
    if (!decode_one_page(out, &header, page, numbers[CODEC], &room)) return NOT_READ;
  }
  if (out->max_repetition) out->offsets[out->row] = (int32_t)out->at;
  return out->row == out->num_rows && !out->levels_left ? READ : NOT_READ;
}

/* So many bytes; 0 where the file ends before, with `errno` 0, or where the system cannot read it. */
static int read_file(int file, int64_t first, uint8_t* to, int64_t count) {
  errno = 0;
  while (count) {
    ssize_t found = pread(file, to, (size_t)count, (off_t)first);
    if (found < 0 && errno == EINTR) {
      errno = 0;
      continue;
    }
    if (found <= 0) return 0;
    first += found;
    to += found;
    count -= found;
  }
  return 1;
}

/* The rest of a chunk in a file, from `bytes.at` on: as much of it as `room` holds is in `bytes`. */
typedef struct {
  int file;
  int64_t next, end; /* the byte of the file after `bytes`, and after the chunk */
  uint8_t* room;
  int64_t room_bytes;
  Bytes bytes;
} Rest;

static int64_t num_here(const Rest* rest) { return rest->bytes.end - rest->bytes.at; }

static int64_t num_left(const Rest* rest) { return rest->end - rest->next + num_here(rest); }

/* Reads from `bytes.at` on, at most so much, or the room full; 0 where the file ends. */
static int refill(Rest* rest, int64_t most) {
  int64_t first = rest->next - num_here(rest), size = num_left(rest);
  if (size > most) size = most;
  if (size > rest->room_bytes) size = rest->room_bytes;
  rest->bytes.at = rest->room;
  rest->bytes.end = rest->room + size;
  rest->next = first + size;
  return read_file(rest->file, first, rest->room, size);
}

/* The header of the next page, of which no more is read than is likely to be needed: pages without checksums are passed over. */
static int next_page_header(Rest* rest, PageHeader* header) {
  const int64_t most[] = {LIKELY_HEADER, rest->room_bytes};
  for (int i = 0; i < 3; i++) {
    if (i && !refill(rest, most[i - 1])) return 0;
    Bytes begun = rest->bytes;
    if (read_page_header(&rest->bytes, header)) return 1;
    rest->bytes = begun;
  }
  return 0;
}

/* The CRC-32 of the next bytes; 0 where the file ends before. */
static int sum_next(Rest* rest, int64_t count, uint32_t* crc) {
  for (*crc = 0; count;) {
    if (!num_here(rest) && !refill(rest, rest->room_bytes)) return 0;
    int64_t now = num_here(rest) < count ? num_here(rest) : count;
    *crc = crc32_of(rest->bytes.at, now, *crc);
    rest->bytes.at += now;
    count -= now;
  }
  return 1;
}

/* Passes over the next bytes without reading those that are not here yet. */
static void pass_over(Rest* rest, int64_t count) {
  int64_t here = num_here(rest) < count ? num_here(rest) : count;
  rest->bytes.at += here;
  rest->next += count - here;
}

/* Whether a chunk is made of whole pages, and the bytes of each are those that were written, as far as its header says; reads a
   room's length at a time. */
static int is_chunk_intact(int file, int64_t first, int64_t end, uint8_t* room, int64_t room_bytes) {
  Rest rest = {file, first, end, room, room_bytes, {room, room}};
  PageHeader header;
  uint32_t crc;
  while (num_left(&rest)) {
    if (!next_page_header(&rest, &header) || header.compressed_size > num_left(&rest)) return 0;
    if (header.crc == NO_CRC) pass_over(&rest, header.compressed_size);
    else if (!sum_next(&rest, header.compressed_size, &crc) || crc != (uint32_t)header.crc) return 0;
  }
  return 1;
}

/* The first of the spans (each a chunk's first byte and the byte after it) whose chunk is not intact, or -1; of a span that
   ends before it begins -2, and -3 with `errno` where the system cannot read one: that says nothing about its bytes. Each number
   is read once: another thread may change it. */
static int64_t first_damaged(int file, const int64_t* spans, int64_t count, uint8_t* room, int64_t room_bytes) {
  for (int64_t i = 0; i < count; i++) {
    const int64_t first = int64_at(spans, 2 * i);
    const int64_t end = int64_at(spans, 2 * i + 1);
    if (first < 0 || first > end) return -2;
    errno = 0;
    if (!is_chunk_intact(file, first, end, room, room_bytes)) return errno ? -3 : i;
  }
  return -1;
}

/* Whether the pages of a chunk claim no more levels and bytes than they may; of what is no page its reader will tell. */
static int is_chunk_within(int file, const int64_t* chunk, const volatile uint8_t* stop, uint8_t* room, int64_t room_bytes) {
  Rest rest = {file, chunk[FIRST], chunk[FIRST] + chunk[SIZE], room, room_bytes, {room, room}};
  PageHeader header;
  int64_t levels_left = chunk[NUM_VALUES];
  while (levels_left && num_left(&rest) && !*stop) {
    if (!next_page_header(&rest, &header)) return 1;
    if (!is_within(&header, levels_left, chunk[PAGE_BYTES])) return 0;
    if (header.compressed_size > num_left(&rest)) return 1;
    if (header.type == PAGE_DATA || header.type == PAGE_DATA_V2) levels_left -= header.num_values < 0 ? 0 : header.num_values;
    pass_over(&rest, header.compressed_size);
  }
  return 1;
}

/* The first of the chunks whose pages claim more than they may, or -1. */
static int64_t first_beyond(
    int file, const int64_t* chunks, int64_t count, const volatile uint8_t* stop, uint8_t* room, int64_t room_bytes) {
  for (int64_t i = 0; i < count; i++)
    if (!is_chunk_within(file, chunks + i * NUMBERS_OF_CHUNK, stop, room, room_bytes)) return i;
  return -1;
}

static int read_chunk(const Work* work, int64_t first, uint8_t* to, int64_t size) {
  for (int64_t now; size && !*work->stop; first += now, to += now, size -= now) {
    now = size < READ_STEP ? size : READ_STEP;
    if (!read_file(work->file, first, to, now)) return 0;
  }
  return !size;
}

/* Decodes a column into its memory, with `room_bytes` of working memory. */
static int decode_in_file_order(const Work* work, Column* column, uint8_t* room, int64_t room_bytes) {
  ColumnOut* out = &column->out;
  out->stop = work->stop;
  out->is_wide = work->is_wide;
  out->kept = work->kept;
  out->num_kept = work->num_kept;
  if (out->max_repetition) out->offsets[0] = 0;
  for (int64_t i = 0; i < work->num_row_groups; i++) {
    const int64_t *chunk = column->chunks + i * NUMBERS_OF_CHUNK, size = chunk[SIZE];
    if (size > room_bytes || !read_chunk(work, chunk[FIRST], room, size)) return 0;
    out->num_rows = out->row + work->rows[i];
    Bytes bytes = {room, room + size};
    Room left = {room + size, room + room_bytes, work};
    int outcome = decode_chunk(out, bytes, chunk, left);
    if (outcome == BEYOND_BOUNDS) column->beyond_bounds = i;
    if (outcome != READ) return 0;
  }
  return 1;
}

/* Decodes a column. If its rows are wanted in another order, they are decoded into the begin of the room, which is still in the cache
   when they are then looked up. */
static int decode_column(const Work* work, Column* column, uint8_t* room) {
  if (!work->order) return decode_in_file_order(work, column, room, work->room_bytes);
  ColumnOut* out = &column->out;
  const ColumnOut wanted = *out;
  int64_t num_rows = 0;
  for (int64_t i = 0; i < work->num_row_groups; i++) num_rows += work->rows[i];
  const int64_t skipped = (int64_t)(-(uintptr_t)room & (BLOCK - 1)), offset_bytes = out->max_repetition ? (num_rows + 1) * 4 : 0;
  const int64_t first = skipped + ((offset_bytes + BLOCK - 1) & ~(int64_t)(BLOCK - 1)), end = first + out->capacity * out->width;
  if (end > work->room_bytes) return 0;
  out->offsets = (int32_t*)(void*)(room + skipped);
  out->values = (char*)room + first;
  if (!decode_in_file_order(work, column, room + end, work->room_bytes - end)) return 0;
  const Ordered ordered = {work->order, work->num_ordered, num_rows, out->width, out->max_repetition ? out->offsets : NULL, out->values, out->at};
  out->at = write_ordered(&ordered, wanted.offsets, wanted.values, work->stop);
  return out->at >= 0;
}

static void* decode_next(void* of) {
  Work* work = of;
  uint8_t* room = work->room + work->room_bytes * __atomic_fetch_add(&work->next_room, 1, __ATOMIC_RELAXED);
  int64_t next;
  while ((next = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->num_columns)
    work->columns[next].is_decoded = decode_column(work, &work->columns[next], room);
  return NULL;
}

#endif
