/* Ranges of histories: whatever columns, offsets and times there are, what is read and written lies in what was given, and a range that
   is found lies within the events.

   An input begins with the bytes of an offset and how numbers change, the events, and `max_len`. */
#include "changing.h" /* before what includes once.h */
#include "histories.h"
#include "parts.h"

enum { HOW_BYTE, EVENTS_BYTE, MOST_BYTE, NUM_BYTES };
enum { END, LENGTH, BACK, KEYS, SIZES, OFFSETS, AS_OF, AT, NUM_PARTS };

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Part of[NUM_PARTS];
  if (size < NUM_BYTES) return 0;
  const int width = data[HOW_BYTE] & 1 ? 8 : 4, has_times = data[HOW_BYTE] >> 1 & 1;
  const int64_t num_events = data[EVENTS_BYTE];
  period = data[HOW_BYTE] >> 2;
  num_read = 0;
  take_parts(data + NUM_BYTES, size - NUM_BYTES, of, NUM_PARTS);
  int64_t num_rows = of[KEYS].size / 8, row;
  for (int i = END; i <= BACK; i++) num_rows = of[i].size / 4 < num_rows ? of[i].size / 4 : num_rows;
  if (of[OFFSETS].size / width - 1 < num_rows) num_rows = of[OFFSETS].size / width - 1;
  if (has_times && of[AS_OF].size / 8 < num_rows) num_rows = of[AS_OF].size / 8;
  if (num_rows >= 0 && (!has_times || of[AT].size / 8 >= num_events)) {
    int64_t* ranges = malloc((size_t)num_rows * 16);
    const RowRanges rows = {num_rows, num_events, of[END].at, of[LENGTH].at, of[BACK].at, of[KEYS].at, of[OFFSETS].at, width,
                            has_times ? of[AS_OF].at : NULL, has_times ? of[AT].at : NULL, INT64_MAX, data[MOST_BYTE]};
    const int wrong = ranges_of_rows(&rows, (const int64_t*)of[SIZES].at, of[SIZES].size / 8, ranges, &row);
    for (int64_t i = 0; !wrong && i < num_rows; i++)
      if (ranges[2 * i] < 0 || ranges[2 * i] > ranges[2 * i + 1] || ranges[2 * i + 1] > num_events) abort();
    free(ranges);
  }
  free_parts(of, NUM_PARTS);
  return 0;
}
