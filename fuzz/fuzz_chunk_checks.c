/* Checks of column chunks: whatever the layout, the ranges and the numbers are, what is read and written lies in what was given, and
   what is taken of chunks that pass lies before the footer.

   An input begins with the widths of both tables, the rows of the file, and the byte at which the footer begins. The lengths fit
   as `kernels.c` asks for, what is in them may be anything. */
#include "chunk_checks.h"
#include "parts.h"

enum { GROUP_WIDTH, CHUNK_WIDTH, ROWS_BYTE, END_BYTES = 4, NUM_BYTES = 6 };
enum { GROUPS, CHUNKS, LAYOUT, RANGES, LOW, HIGH, LEVELS, NUM_PARTS };

static void checked(const uint8_t* head, Part* of) {
  uint16_t end;
  memcpy(&end, head + END_BYTES, sizeof end);
  ChunkChecks checks = {.groups = (int64_t*)of[GROUPS].at, .chunks = (int64_t*)of[CHUNKS].at, .group_width = head[GROUP_WIDTH],
                        .chunk_width = head[CHUNK_WIDTH], .num_leaves = of[LEVELS].size / 24, .layout = (int64_t*)of[LAYOUT].at,
                        .ranges = (int64_t*)of[RANGES].at, .num_ranges = of[RANGES].size / 16, .low = (int64_t*)of[LOW].at,
                        .high = (int64_t*)of[HIGH].at, .levels = (int64_t*)of[LEVELS].at, .num_rows = head[ROWS_BYTE], .end = end};
  if (!checks.group_width || !checks.chunk_width || of[LAYOUT].size / 8 < NUMBERS_OF_LAYOUT) return;
  checks.num_groups = of[GROUPS].size / 8 / checks.group_width;
  const int64_t num_chunks = checks.num_groups * checks.num_leaves, num_bounds = checks.num_leaves * checks.num_ranges;
  if (of[LOW].size / 8 < num_bounds || of[HIGH].size / 8 < num_bounds || !layout_fits(&checks) || !groups_fit(&checks)) return;
  if (of[CHUNKS].size / 8 < num_chunks * checks.chunk_width) return;
  int64_t* taken = malloc((size_t)(num_chunks * NUMBERS_TAKEN) * 8 + 1);
  if (check_chunks(&checks, taken) == (checks.wrong != 0)) abort();
  if (checks.wrong && (checks.group >= checks.num_groups || checks.leaf >= checks.num_leaves)) abort();
  for (int64_t i = 0; !checks.wrong && i < num_chunks; i++)
    if (taken[i * NUMBERS_TAKEN + TAKEN_END] > checks.end || taken[i * NUMBERS_TAKEN + TAKEN_VALUES] > MOST_COUNTED) abort();
  free(taken);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < NUM_BYTES) return 0;
  Part parts[NUM_PARTS];
  take_parts(data + NUM_BYTES, size - NUM_BYTES, parts, NUM_PARTS);
  checked(data, parts);
  free_parts(parts, NUM_PARTS);
  return 0;
}
