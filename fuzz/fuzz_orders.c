/* Orders of rows: whatever streams, shares, pieces and sources there are, what is read and written lies in what was given, and of what is
   written each number is one that may be.

   An input begins with the kernel, bits of a row, how much there is and room. The lengths fit as `kernels.c` asks for, what is in them
   may be anything. */
#include "changing.h" /* before what includes once.h */
#include "orders.h"
#include "parts.h"

enum { KERNEL_BYTE, PERIOD_BYTE, BITS_BYTE, COUNT_BYTE, ROOM_BYTE, NUM_BYTES };
enum { ENTROPY, NUMBERS, DRAWS, ROWS, PASSES, NUM_PARTS };
enum { PERMUTE, DRAW, PLACE, NUMBER, NUM_KERNELS };

static void permuted(const Part* of, int64_t num_rows) {
  int64_t* order = malloc((size_t)num_rows * 8);
  uint8_t* seen = calloc((size_t)num_rows + 1, 1);
  permute(of[ENTROPY].at, of[ENTROPY].size / 4, order, num_rows);
  for (int64_t i = 0; i < num_rows; i++)
    if (order[i] < 0 || order[i] >= num_rows || seen[order[i]]++) abort();
  free(order);
  free(seen);
}

static void drawn(const Part* of, int64_t num_rows, int64_t room) {
  const int64_t count = of[NUMBERS].size / (8 * NUMBERS_OF_STREAM);
  uint16_t* draws = malloc((size_t)num_rows * 2);
  int64_t* shares = calloc((size_t)room, 8 * NUMBERS_OF_SHARE);
  if (count) {
    const Drawn found = draw_rows(of[ENTROPY].at, of[ENTROPY].size / 4, (int64_t*)of[NUMBERS].at, count, draws, num_rows, shares, room, 0);
    if (found.num_rows > num_rows || found.num_shares > room || found.ended >= count) abort();
    for (int64_t i = 0; i < found.num_rows; i++)
      if (draws[i] >= found.num_shares) abort();
  }
  free(draws);
  free(shares);
}

static void placed(const Part* of, const uint8_t* head, int64_t room) {
  const int64_t num_drawn = of[DRAWS].size / 2, num_rows = of[ROWS].size / 4;
  const int row_bits = head[BITS_BYTE] & 31, share_bits = row_bits & head[COUNT_BYTE];
  const Share shares[] = {{of[ROWS].at, num_rows, of[PASSES].size >= num_rows ? of[PASSES].at : NULL, -1, share_bits, head[COUNT_BYTE]},
                          {of[ROWS].at, num_rows / 2, NULL, 1, row_bits, UINT32_MAX}};
  int64_t next[2];
  uint32_t* places = malloc((size_t)room * 4);
  int32_t* sources = malloc((size_t)num_drawn * 4);
  uint8_t* passes = malloc((size_t)num_drawn);
  const int64_t count = place_rows(of[DRAWS].at, num_drawn, shares, 2, next, of[NUMBERS].at, of[NUMBERS].size / 8, row_bits, places, room,
                                   sources, passes);
  if (count > room) abort();
  free(places);
  free(sources);
  free(passes);
}

static void numbered(const Part* of, int64_t num_sources, int64_t room) {
  const int64_t num_parts = of[NUMBERS].size / 8, num_rows = of[ROWS].size / 4;
  NumberedSources to = {malloc((size_t)room * 12), room, malloc((size_t)num_parts * 8), malloc((size_t)room * 8), room};
  SourceState* states = malloc((size_t)num_sources * sizeof *states);
  const int64_t count = number_sources((int32_t*)of[ROWS].at, of[PASSES].size >= num_rows ? of[PASSES].at : NULL, num_rows, of[NUMBERS].at,
                                       num_parts, states, num_sources, &to);
  if (count > room) abort();
  for (int64_t i = 0; i < count; i++) {
    const int32_t* const found = to.found + 3 * i;
    if (found[0] < 0 || found[0] >= num_sources || found[1] < 1 || found[2] < 0 || found[2] > found[1]) abort();
  }
  free(states);
  free(to.num_found);
  free(to.found);
  free(to.places);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Part parts[NUM_PARTS];
  if (size < NUM_BYTES) return 0;
  const int kernel = data[KERNEL_BYTE] % NUM_KERNELS;
  period = data[PERIOD_BYTE] & 15;
  num_read = data[PERIOD_BYTE] >> 4;
  take_parts(data + NUM_BYTES, size - NUM_BYTES, parts, NUM_PARTS);
  if (kernel == PERMUTE) permuted(parts, data[COUNT_BYTE] * 16 + data[ROOM_BYTE]);
  else if (kernel == DRAW) drawn(parts, data[COUNT_BYTE] * 4, data[ROOM_BYTE]);
  else if (kernel == PLACE) placed(parts, data, data[ROOM_BYTE]);
  else numbered(parts, data[COUNT_BYTE], data[ROOM_BYTE]);
  free_parts(parts, NUM_PARTS);
  return 0;
}
