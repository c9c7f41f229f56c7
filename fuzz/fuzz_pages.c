/* Column chunks: whatever they hold, decoding reads and writes nothing but their bytes and what it was given, and ends.

   An input begins with what the caller knows: codec and whether values are whole numbers, width and rows that are left out, levels, rows, values, and the room for a
   dictionary and a page. */
#include <stdlib.h>

#include "chunks.h"

enum { CODEC_BYTE, WIDTH_BYTE, LEVELS_BYTE, ROWS_BYTE, VALUES_BYTE, ROOM_BYTE, NUM_BYTES };

/* In the place of Zstandard: the bytes over and over, none for some. */
static int repeated(void* by, Bytes page, uint8_t* out, int64_t size) {
  (void)by;
  int64_t given = page.end - page.at;
  if (given < 2) return 0;
  for (int64_t i = 0; i < size; i++) out[i] = page.at[i % given];
  return 1;
}

/* Runs of rows of which every `every`th is left out, 0 for none; how many runs there are. */
static int64_t kept_rows(int64_t rows, int64_t every, int64_t* runs) {
  int64_t count = 0;
  for (int64_t first = 0; every && first < rows; first += every) {
    const int64_t end = first + every - 1 < rows ? first + every - 1 : rows;
    runs[2 * count] = first;
    runs[2 * count + 1] = end;
    count += first < end;
  }
  return count;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int64_t codecs[] = {UNCOMPRESSED, SNAPPY, ZSTD, UNCOMPRESSED};
  static const uint8_t stop = 0;
  if (size < NUM_BYTES) return 0;
  int is_list = data[LEVELS_BYTE] & 1, max_definition = data[LEVELS_BYTE] >> 1 & 3;
  if (is_list && !max_definition) max_definition = 1;
  int64_t width = data[WIDTH_BYTE] & 1 ? 8 : 4, rows = data[ROWS_BYTE], values = data[VALUES_BYTE] * 16;
  int64_t room_bytes = data[ROOM_BYTE] * 64, runs[2 * (UINT8_MAX + 1)];
  const int64_t every = data[WIDTH_BYTE] >> 3, num_kept = kept_rows(rows, every, runs), rows_kept = every ? rows - rows / every : rows;
  /* Each of its own size, so that the sanitizer sees a byte beyond any of them. */
  char *mark = calloc(1, (size_t)width), *out_values = malloc((size_t)(values * width) + 1);
  int32_t* offsets = malloc((size_t)(rows + 1) * sizeof *offsets);
  uint8_t *room_at = malloc((size_t)room_bytes + 1), *chunk = malloc(size);
  memcpy(chunk, data, size);
  Work work = {.rows = &rows, .num_row_groups = 1, .stop = &stop, .checks = data[WIDTH_BYTE] >> 1 & 1, .decompress = repeated};
  ColumnOut out = {.width = (int)width, .max_repetition = is_list, .max_definition = max_definition,
                   .null_below = data[LEVELS_BYTE] >> 3 & 3, .is_whole = data[CODEC_BYTE] >> 2 & 1, .mark = mark, .num_rows = rows, .capacity = values,
                   .offsets = offsets, .values = out_values, .stop = &stop,
                   .is_wide = data[WIDTH_BYTE] >> 2 & 1 && can_be_wide(), .kept = every ? runs : NULL, .num_kept = num_kept};
  const int64_t numbers[NUMBERS_OF_CHUNK] = {
      [CODEC] = codecs[data[CODEC_BYTE] & 3], [NUM_VALUES] = values, [PAGE_BYTES] = 1 << 20};
  Room room = {room_at, room_at + room_bytes, &work};
  Bytes bytes = {chunk + NUM_BYTES, chunk + size};
  offsets[0] = 0;
  int is_decoded = decode_chunk(&out, bytes, numbers, room) == READ;
  if (is_decoded && (out.row != rows_kept || out.at > values)) abort();
  for (int64_t i = 0; is_decoded && is_list && i < rows_kept; i++)
    if (offsets[i] > offsets[i + 1] || offsets[i] < 0 || offsets[i + 1] > out.at) abort();
  free(mark);
  free(out_values);
  free(offsets);
  free(room_at);
  free(chunk);
  return 0;
}
