/* Rows of columns: whatever offsets, bitmaps, rows and cuts there are, what is read and written lies in what was given.

   An input begins with the kernel, widths, first bits and room. The lengths fit as `kernels.c` asks for, what is in them may be
   anything. */
#include "changing.h" /* before what includes once.h */
#include "parts.h"
#include "rows.h"

enum { KERNEL_BYTE, WIDTHS_BYTE, BIT_BYTE, VALUE_BIT_BYTE, ROOM_BYTE, NUM_BYTES };
enum { OFFSETS, VALUES, BITS, VALUE_BITS, ROWS, CUTS, STARTS, OFFSET_STARTS, NUM_PARTS };
enum { WITHOUT_NULLS, REBASE, GATHER, GATHER_LISTS, GATHER_OFFSETS, FILL, ORDER, ORDER_LISTS, PACK, RANGES, NUM_KERNELS };

static int have_bits(Part bits, int64_t first, int64_t count) { return first <= bits.size * 8 - count; }

static void without_nulls(Part* of, const uint8_t* head, int width, int offset_width, int64_t capacity, char* out) {
  const char mark[8] = {0};
  Lists lists = {of[OFFSETS].at, offset_width, of[OFFSETS].size / offset_width - 1,
                 of[BITS].size ? of[BITS].at : NULL, head[BIT_BYTE], (const char*)of[VALUES].at, of[VALUES].size / width,
                 of[VALUE_BITS].size ? of[VALUE_BITS].at : NULL, head[VALUE_BIT_BYTE]};
  if (lists.num_rows < 0 || (lists.bits && !have_bits(of[BITS], lists.first_bit, lists.num_rows))) return;
  if (lists.value_bits && !have_bits(of[VALUE_BITS], lists.first_value_bit, lists.num_values)) return;
  int64_t* offsets = malloc((size_t)(lists.num_rows + 1) * 8);
  const int64_t written = lists_without_nulls(&lists, width, mark, offsets, out, capacity);
  if (written > capacity || (written >= 0 && offsets[lists.num_rows] != written)) abort();
  for (int64_t i = 0; written >= 0 && i < lists.num_rows; i++)
    if (offsets[i] > offsets[i + 1]) abort();
  free(offsets);
}

/* The starts of parts, as far as there are some; those of others are 0. */
static int64_t* starts_of(Part part, int64_t num_parts) {
  int64_t* starts = calloc((size_t)num_parts + 1, 8);
  memcpy(starts, part.at, (size_t)(part.size < num_parts * 8 ? part.size : num_parts * 8));
  return starts;
}

/* How many lists there are with these offsets. */
static int64_t num_lists(Part offsets, int offset_width) { return offsets.size / offset_width - num_offsets(0, offset_width); }

static void gathered(Part* of, const uint8_t* head, int kernel, int width, int offset_width, char* out, int64_t out_bytes) {
  const int is_list = kernel != GATHER, other_width = head[VALUE_BIT_BYTE] & 2 ? 12 - offset_width : offset_width;
  /* Of ranges, and of ages, whose values take more bytes than what is written. */
  if (is_list && head[VALUE_BIT_BYTE] & 4) offset_width = width == AGE_BYTES && head[VALUE_BIT_BYTE] & 8 ? AGE_WIDTH : RANGE_WIDTH;
  const int64_t num_values = of[VALUES].size / (offset_width == AGE_WIDTH ? TIME_BYTES : width);
  const int64_t num_found = is_list ? num_lists(of[OFFSETS], offset_width) : num_values;
  const int64_t num_in_other = is_list ? num_lists(of[OFFSETS], other_width) : num_values / 2;
  if (num_found < 0 || num_in_other < 0) return;
  /* Two pieces: all values, and those of the first half. */
  const Piece pieces[] = {{(const char*)of[VALUES].at, num_values, of[OFFSETS].at, num_found, offset_width},
                          {(const char*)of[VALUES].at, num_values / 2, of[OFFSETS].at, num_in_other, other_width}};
  Gather gather = {.pieces = pieces, .num_pieces = 2, .rows = (const uint32_t*)of[ROWS].at, .row_bits = 4, .num_rows = of[ROWS].size / 4,
                   .cuts = (const int64_t*)of[CUTS].at, .num_parts = of[CUTS].size / 8 - 1, .ascends = head[VALUE_BIT_BYTE] & 1};
  if (gather.num_parts < 0) return;
  const int64_t num_offsets = gather.num_rows + gather.num_parts;
  int64_t *starts = starts_of(of[STARTS], gather.num_parts), *offset_starts = starts_of(of[OFFSET_STARTS], gather.num_parts);
  int64_t *offsets = calloc((size_t)num_offsets + 1, 8), *firsts = calloc((size_t)gather.num_rows + 1, 8);
  char* offsets_out = malloc((size_t)num_offsets * 8);
  const GatheredColumn column = {gather, width, is_list ? firsts : NULL, offsets, {starts, out, out_bytes},
                                 {offset_starts, offsets_out, num_offsets * 8}, 0};
  if (is_list) gather_offsets(&gather, firsts, offsets);
  if (kernel != GATHER_OFFSETS) gather_column(&column);
  free(starts);
  free(offset_starts);
  free(offsets);
  free(firsts);
  free(offsets_out);
}

static void ordered(Part* of, int is_list, int width) {
  const volatile uint8_t stop = 0;
  const int64_t num_values = of[VALUES].size / width, num_rows = is_list ? of[OFFSETS].size / 4 - 1 : num_values;
  const int64_t num_asked = of[ROWS].size / 4, count = num_asked < num_rows ? num_asked : num_rows;
  if (num_rows < 0) return;
  const Ordered rows = {(const uint32_t*)of[ROWS].at, count, num_rows, width, is_list ? (const int32_t*)of[OFFSETS].at : NULL,
                        (const char*)of[VALUES].at, num_values};
  int32_t* offsets = calloc((size_t)count + 1, 4);
  char* out = malloc((size_t)(num_values * width) + 1);
  const int64_t written = write_ordered(&rows, offsets, out, &stop);
  if (written > num_values || (written >= 0 && is_list && offsets[count] != written)) abort();
  if (written >= 0 && count == num_rows && written != num_values) abort();
  free(offsets);
  free(out);
}

static void rebased(Part* of, int offset_width) {
  const int64_t num_rows = of[OFFSETS].size / offset_width - 1, num_parts = of[CUTS].size / 8 - 1;
  if (num_rows < 0 || num_parts < 0) return;
  int64_t* offsets = malloc((size_t)(num_rows + num_parts) * 8);
  rebase_offsets(of[OFFSETS].at, offset_width, num_rows, (const int64_t*)of[CUTS].at, num_parts, offsets, num_rows + num_parts);
  free(offsets);
}

static void packed(Part* of, int offset_width, char* out, int64_t out_bytes) {
  const int64_t* const starts = (const int64_t*)of[STARTS].at;
  if (of[STARTS].size < 16) return;
  const PackedPart parts[] = {{(const char*)of[VALUES].at, of[VALUES].size, 0, starts[0]},
                              {(const char*)of[OFFSETS].at, of[OFFSETS].size, offset_width, starts[1]}};
  pack_parts(parts, 2, out, out_bytes);
}

static void ranges(Part* of, int width, int64_t room, char* out) {
  const int64_t num_ranges = (of[STARTS].size < of[CUTS].size ? of[STARTS].size : of[CUTS].size) / 8;
  copy_ranges((const char*)of[VALUES].at, of[VALUES].size / width, width, (const int64_t*)of[STARTS].at,
              (const int64_t*)of[CUTS].at, num_ranges, out, room);
}

static void filled(Part* of, int width, int64_t first_bit) {
  const char mark[8] = {0};
  const int64_t count = of[VALUES].size / width;
  if (of[BITS].size && have_bits(of[BITS], first_bit, count))
    fill_nulls((char*)of[VALUES].at, count, width, of[BITS].at, first_bit, mark);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Part parts[NUM_PARTS];
  if (size < NUM_BYTES) return 0;
  const int kernel = data[KERNEL_BYTE] % NUM_KERNELS;
  const int width = data[WIDTHS_BYTE] & 1 ? 8 : 4, offset_width = data[WIDTHS_BYTE] & 2 ? 8 : 4;
  const int64_t capacity = data[ROOM_BYTE];
  period = data[WIDTHS_BYTE] >> 2 & 15;
  num_read = data[BIT_BYTE];
  char* out = malloc((size_t)(capacity * width));
  take_parts(data + NUM_BYTES, size - NUM_BYTES, parts, NUM_PARTS);
  if (kernel == WITHOUT_NULLS) without_nulls(parts, data, width, offset_width, capacity, out);
  else if (kernel == REBASE) rebased(parts, offset_width);
  else if (kernel == FILL) filled(parts, width, data[BIT_BYTE]);
  else if (kernel == ORDER || kernel == ORDER_LISTS) ordered(parts, kernel == ORDER_LISTS, width);
  else if (kernel == RANGES) ranges(parts, width, capacity, out);
  else if (kernel == PACK) packed(parts, offset_width, out, capacity * width);
  else gathered(parts, data, kernel, width, offset_width, out, capacity * width);
  free_parts(parts, NUM_PARTS);
  free(out);
  return 0;
}
