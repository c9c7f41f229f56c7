/* Checks of the row groups and column chunks of a footer that was walked, and the numbers that readers need of each chunk.

   Where a number lies in its row comes from `featstore/native/checks.py`, which also words what is wrong. */
#ifndef FEATSTORE_CHUNK_CHECKS_H
#define FEATSTORE_CHUNK_CHECKS_H

#include <stdint.h>

#define ABSENT_NUMBER INT64_MIN
/* A bound for the numbers of values and bytes of damaged footers, so that sums and small multiples of them do not overflow. No
   chunk that can be read comes near it. */
#define MOST_COUNTED ((int64_t)1 << 48)

/* Numbers of the layout: where a row group and a chunk have theirs. What is taken of a chunk comes in the order of its numbers. */
enum { ROWS_OF_GROUP, CHUNKS_OF_GROUP, CODEC_OF, ENCODINGS_OF, VALUES_OF, STORED_OF, RAW_OF, DATA_PAGE_OF, DICTIONARY_OF, NULLS_OF,
       REPETITION_COUNTS_OF, DEFINITION_COUNTS_OF, NUMBERS_OF_LAYOUT };
enum { TAKEN_CODEC, TAKEN_ENCODINGS, TAKEN_VALUES, TAKEN_STORED, TAKEN_RAW, TAKEN_FIRST, TAKEN_END, NUMBERS_TAKEN };
/* What is wrong. Of a chunk it is a range that is not met, or else another check, numbered after the ranges. */
enum { NOTHING_WRONG, FEWER_THAN_NO_ROWS, OTHER_ROWS, OTHER_CHUNKS, OF_CHUNK };
enum { BEYOND_FOOTER, ENDS_BEYOND_FOOTER, OTHER_VALUES, MORE_NULLS, OTHER_COUNTS };

typedef struct {
  const int64_t *groups, *chunks; /* the rows of both tables */
  int64_t num_groups, group_width, num_leaves, chunk_width;
  const int64_t* layout;
  /* Of each range its place in a chunk's row, and whether the number may be absent. */
  const int64_t* ranges;
  int64_t num_ranges;
  const int64_t *low, *high; /* (num_leaves, num_ranges) */
  const int64_t* levels;     /* physical type, highest repetition and highest definition level: (3, num_leaves) */
  int64_t num_rows, end;     /* the rows of the file, and the byte at which the footer begins */
  int64_t wrong, group, leaf;
} ChunkChecks;

static int is_wrong(ChunkChecks* of, int64_t wrong, int64_t group, int64_t leaf) {
  of->wrong = wrong;
  of->group = group;
  of->leaf = leaf;
  return 0;
}

static int64_t of_group(const ChunkChecks* of, int64_t group, int number) {
  return of->groups[group * of->group_width + of->layout[number]];
}

/* Whether all places lie within the rows of the tables: what checks relies on it. */
static int layout_fits(const ChunkChecks* of) {
  for (int64_t i = 0; i < NUMBERS_OF_LAYOUT; i++)
    if (of->layout[i] < 0 || of->layout[i] >= (i < CODEC_OF ? of->group_width : of->chunk_width)) return 0;
  for (int64_t i = 0; i < of->num_ranges; i++)
    if (of->ranges[2 * i] < 0 || of->ranges[2 * i] >= of->chunk_width) return 0;
  return 1;
}

/* Whether the row groups have the file's rows, and a chunk of each leaf column. */
static int groups_fit(ChunkChecks* of) {
  uint64_t left = (uint64_t)of->num_rows;
  int fits = of->num_rows >= 0;
  for (int64_t i = 0; i < of->num_groups; i++)
    if (of_group(of, i, ROWS_OF_GROUP) < 0) return is_wrong(of, FEWER_THAN_NO_ROWS, i, 0);
  for (int64_t i = 0; i < of->num_groups; i++) {
    const uint64_t rows = (uint64_t)of_group(of, i, ROWS_OF_GROUP);
    fits = fits && rows <= left;
    left -= rows;
  }
  if (!fits || left) return is_wrong(of, OTHER_ROWS, 0, 0);
  for (int64_t i = 0; i < of->num_groups; i++)
    if (of_group(of, i, CHUNKS_OF_GROUP) != of->num_leaves) return is_wrong(of, OTHER_CHUNKS, i, 0);
  return 1;
}

static int is_in_range(const ChunkChecks* of, const int64_t* chunk, int64_t leaf, int64_t range) {
  const int64_t number = chunk[of->ranges[2 * range]];
  if (number == ABSENT_NUMBER && of->ranges[2 * range + 1]) return 1;
  return number >= of->low[leaf * of->num_ranges + range] && number <= of->high[leaf * of->num_ranges + range];
}

static int64_t first_byte(const ChunkChecks* of, const int64_t* chunk) {
  const int64_t data = chunk[of->layout[DATA_PAGE_OF]], dictionary = chunk[of->layout[DICTIONARY_OF]];
  return dictionary > 0 && dictionary < data ? dictionary : data;
}

/* Overflows only where a range was not met, or the chunk does not lie before the footer. */
static int64_t end_byte(const ChunkChecks* of, const int64_t* chunk) {
  return (int64_t)((uint64_t)first_byte(of, chunk) + (uint64_t)chunk[of->layout[STORED_OF]]);
}

static int count_fits(int64_t count, int64_t level) { return count <= 0 || count - 1 == level; }

/* The first check that a chunk does not pass, -1 where it passes all. */
static int64_t wrong_with(const ChunkChecks* of, const int64_t* chunk, int64_t rows, int64_t leaf) {
  const int64_t *layout = of->layout, end = of->end, values = chunk[layout[VALUES_OF]];
  const int64_t repetition = of->levels[of->num_leaves + leaf], definition = of->levels[2 * of->num_leaves + leaf];
  for (int64_t range = 0; range < of->num_ranges; range++)
    if (!is_in_range(of, chunk, leaf, range)) return range;
  if (chunk[layout[STORED_OF]] > end || chunk[layout[DATA_PAGE_OF]] > end || chunk[layout[DICTIONARY_OF]] > end)
    return of->num_ranges + BEYOND_FOOTER;
  if (end_byte(of, chunk) > end) return of->num_ranges + ENDS_BEYOND_FOOTER;
  /* A column with a repetition level is a list, which has at least one level for each row. */
  if (values != rows && !(repetition > 0 && values > rows)) return of->num_ranges + OTHER_VALUES;
  if (chunk[layout[NULLS_OF]] > values) return of->num_ranges + MORE_NULLS;
  if (!count_fits(chunk[layout[REPETITION_COUNTS_OF]], repetition) || !count_fits(chunk[layout[DEFINITION_COUNTS_OF]], definition))
    return of->num_ranges + OTHER_COUNTS;
  return -1;
}

static int64_t bounded_count(int64_t number) { return number < MOST_COUNTED ? number : MOST_COUNTED; }

static void take_numbers(const ChunkChecks* of, const int64_t* chunk, int64_t* taken) {
  for (int i = TAKEN_CODEC; i <= TAKEN_ENCODINGS; i++) taken[i] = chunk[of->layout[CODEC_OF + i]];
  for (int i = TAKEN_VALUES; i <= TAKEN_RAW; i++) taken[i] = bounded_count(chunk[of->layout[CODEC_OF + i]]);
  taken[TAKEN_FIRST] = first_byte(of, chunk);
  taken[TAKEN_END] = end_byte(of, chunk);
}

/* Checks all chunks of row groups that fit, and takes their numbers: (num_groups, num_leaves, NUMBERS_TAKEN). 0 where one is wrong: the first check that is
   not passed, of the first chunk. */
static int check_chunks(ChunkChecks* of, int64_t* taken) {
  for (int64_t group = 0; group < of->num_groups; group++) {
    const int64_t rows = of_group(of, group, ROWS_OF_GROUP);
    for (int64_t leaf = 0; leaf < of->num_leaves; leaf++, taken += NUMBERS_TAKEN) {
      const int64_t* chunk = of->chunks + (group * of->num_leaves + leaf) * of->chunk_width;
      const int64_t found = wrong_with(of, chunk, rows, leaf);
      if (found < 0) take_numbers(of, chunk, taken);
      else if (!of->wrong || OF_CHUNK + found < of->wrong) is_wrong(of, OF_CHUNK + found, group, leaf);
    }
  }
  return !of->wrong;
}

#endif
