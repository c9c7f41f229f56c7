/* Column chunks of a Parquet file to columns: read, decompressed and decoded, by several threads that share the columns; and
   whether the pages of chunks are as they were written.

   POSIX files and threads. A column that holds something malformed, or unknown here, or that cannot be read, is left out. */
#ifndef FEATSTORE_CHUNKS_H
#define FEATSTORE_CHUNKS_H

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "crc32.h"
#include "pages.h"
#include "snappy.h"

#define MAX_THREADS 64
#define LIKELY_HEADER 4096 /* bytes that a page's header is likely to be in */

enum { UNCOMPRESSED = 0, SNAPPY = 1, ZSTD = 6 }; /* as Parquet's footers number them */
enum { FIRST, SIZE, CODEC, NUMBERS_OF_CHUNK };

typedef struct {
  ColumnOut out;
  const int64_t* chunks; /* of each row group: first byte in the file, bytes, codec */
  int is_decoded;
} Column;

/* Decompresses a page to `size` bytes at `out`, by a codec that is not ours; 0 where it cannot. Called by any thread. */
typedef int (*Decompress)(void* by, Bytes page, uint8_t* out, int64_t size);

/* Columns of the same row groups, `rows` in each. Threads take the next that nobody has taken, until `stop` is not 0. */
typedef struct {
  int file;
  Column* columns;
  const int64_t* rows;
  int64_t num_columns, num_row_groups, next;
  uint8_t* room; /* of each thread `room_bytes` */
  int64_t room_bytes, next_room;
  const volatile uint8_t* stop;
  int checks; /* pages against their checksums, where they have one */
  Decompress decompress;
  void* by;
} Work;

/* Memory from `at` on; pages go where the last one was, after the dictionary. */
typedef struct {
  uint8_t *at, *end;
  const Work* work;
} Room;

static int decompressed(Bytes page, int64_t size, int64_t codec, const Room* room, Bytes* found) {
  *found = page;
  if (codec == UNCOMPRESSED) return 1;
  found->at = room->at;
  found->end = room->at + size;
  if (!size) return 1;
  if (size > room->end - room->at - SLOP) return 0;
  if (codec == SNAPPY) return decompress_snappy(page.at, page.end, room->at, size);
  return room->work->decompress(room->work->by, page, room->at, size);
}

static int read_dictionary(ColumnOut* out, const PageHeader* header, Bytes page, int64_t codec, Room* room) {
  Bytes found;
  if (!decompressed(page, header->uncompressed_size, codec, room, &found)) return 0;
  int64_t size = found.end - found.at;
  out->dictionary = (const char*)found.at;
  out->num_in_dictionary = size / out->width;
  if (found.at == room->at) room->at += size;
  return 1;
}

static int decode_v1(ColumnOut* out, const PageHeader* header, Bytes bytes, int64_t codec, const Room* room) {
  Bytes found;
  /* of levels that a column does not have anything may be said */
  if (out->max_definition && header->definition_encoding != RLE) return 0;
  if (out->max_repetition && header->repetition_encoding != RLE) return 0;
  if (!decompressed(bytes, header->uncompressed_size, codec, room, &found)) return 0;
  Page page = {found.at, found.end - found.at, NULL, 0, header->num_values, (int)header->encoding, -1, -1};
  return decode_page(out, &page);
}

static int decode_v2(ColumnOut* out, const PageHeader* header, Bytes bytes, int64_t codec, const Room* room) {
  int64_t levels = header->definition_bytes + header->repetition_bytes;
  if (levels > header->compressed_size || levels > header->uncompressed_size) return 0;
  Bytes found, compressed = {bytes.at + levels, bytes.end};
  if (!decompressed(compressed, header->uncompressed_size - levels, header->is_compressed ? codec : UNCOMPRESSED, room, &found))
    return 0;
  Page page = {bytes.at, levels, found.at, found.end - found.at, header->num_values, (int)header->encoding,
               header->repetition_bytes, header->definition_bytes};
  return decode_page(out, &page);
}

/* Whether a page's bytes (of V2 its levels too) are those that were written, as far as its header says. */
static int is_intact(const PageHeader* header, Bytes page) {
  return header->crc == NO_CRC || (uint32_t)header->crc == crc32_of(page.at, page.end - page.at, 0);
}

/* All pages of a chunk, in order, after the rows and values that there are. */
static int decode_chunk(ColumnOut* out, Bytes chunk, int64_t codec, Room room) {
  PageHeader header;
  out->num_in_dictionary = 0;
  while (chunk.at < chunk.end) {
    if (!read_page_header(&chunk, &header)) return 0;
    Bytes page = {chunk.at, chunk.at};
    if (!skip_bytes(&chunk, (uint64_t)header.compressed_size)) return 0;
    page.end = chunk.at;
    if (room.work->checks && !is_intact(&header, page)) return 0;
    int is_read = 0;
    if (header.type == PAGE_DICTIONARY) is_read = read_dictionary(out, &header, page, codec, &room);
    if (header.type == PAGE_DATA) is_read = decode_v1(out, &header, page, codec, &room);
    if (header.type == PAGE_DATA_V2) is_read = decode_v2(out, &header, page, codec, &room);
    if (!is_read) return 0;
  }
  if (out->max_repetition) out->offsets[out->row] = (int32_t)out->at;
  return out->row == out->num_rows;
}

static int read_file(int file, int64_t first, uint8_t* to, int64_t count) {
  while (count) {
    ssize_t found = pread(file, to, (size_t)count, (off_t)first);
    if (found < 0 && errno == EINTR) continue;
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

/* The first of the spans (each a chunk's first byte and the byte after it) whose chunk is not intact, or -1. */
static int64_t first_damaged(int file, const int64_t* spans, int64_t count, uint8_t* room, int64_t room_bytes) {
  for (int64_t i = 0; i < count; i++)
    if (!is_chunk_intact(file, spans[2 * i], spans[2 * i + 1], room, room_bytes)) return i;
  return -1;
}

static int decode_column(const Work* work, Column* column, uint8_t* room) {
  ColumnOut* out = &column->out;
  if (out->max_repetition) out->offsets[0] = 0;
  for (int64_t i = 0; i < work->num_row_groups; i++) {
    const int64_t *chunk = column->chunks + i * NUMBERS_OF_CHUNK, size = chunk[SIZE];
    if (*work->stop || size > work->room_bytes || !read_file(work->file, chunk[FIRST], room, size)) return 0;
    out->first_row = out->row;
    out->num_rows = out->row + work->rows[i];
    Bytes bytes = {room, room + size};
    Room left = {room + size, room + work->room_bytes, work};
    if (!decode_chunk(out, bytes, chunk[CODEC], left)) return 0;
  }
  return 1;
}

static void* decode_next(void* of) {
  Work* work = of;
  uint8_t* room = work->room + work->room_bytes * __atomic_fetch_add(&work->next_room, 1, __ATOMIC_RELAXED);
  int64_t next;
  while ((next = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->num_columns)
    work->columns[next].is_decoded = decode_column(work, &work->columns[next], room);
  return NULL;
}

/* Decodes all columns in so many threads, this one among them, or in fewer where no more can be started. Signals are for the
   threads that there were. */
static void decode_columns(Work* work, int num_threads) {
  pthread_t threads[MAX_THREADS];
  sigset_t all, before;
  int num_started = 0;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  while (num_started < num_threads - 1 && !pthread_create(&threads[num_started], NULL, decode_next, work)) num_started++;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  decode_next(work);
  while (num_started) pthread_join(threads[--num_started], NULL);
}

#endif
