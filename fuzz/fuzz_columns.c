/* Columns of a window: whatever a footer and a table of columns hold, planning reads and writes nothing but these and what was given;
   what is planned lies in the memory that it asks for, and in no other column's; and whatever numbers a column has, it is decoded only
   into its buffers.

   An input begins with how columns lie, the leaf columns of the footer, rows, and the bytes of buffers. */
#include "changing.h" /* before what includes once.h */
#include "columns.h"
#include "parts.h"

enum { HOW_BYTE, LEAVES_BYTE, ROWS_BYTE, ROWS_SHIFT_BYTE, OFFSETS_BYTE, VALUES_BYTE, NUM_BYTES };
enum { FOOTER, ROW_GROUPS, COLUMNS, TAKEN, NUM_PARTS };
#define SOMEWHERE ((uint8_t*)4096) /* where nothing is read or written: it is only where columns would lie */

static void require(int is_so) {
  if (!is_so) abort();
}

/* Whether a column can be decoded into buffers of these sizes; then it lies in them. */
static int is_taken(const int64_t* numbers, int64_t num_rows, int64_t offsets_size, int64_t values_size) {
  Column column = {.beyond_bounds = -1};
  if (!column_of(numbers, num_rows, SOMEWHERE, offsets_size, SOMEWHERE, values_size, &column)) return 0;
  const ColumnOut* const out = &column.out;
  const char* const somewhere = (const char*)SOMEWHERE;
  require(out->capacity >= 0 && out->values >= somewhere && out->values - somewhere + out->capacity * out->width <= values_size);
  if (!out->offsets) return 1;
  const char* const offsets = (const char*)out->offsets;
  require(offsets >= somewhere && offsets - somewhere + 4 * (num_rows + 1) <= offsets_size && !((uintptr_t)offsets & 3));
  return 1;
}

/* Whether what was planned is where the memory is, one column after the other. */
static void check_column(const WindowPlan* plan, const int64_t* column, const int64_t* chunks, int64_t first, int64_t end) {
  const int64_t offset_bytes = column[COLUMN_REPETITION] ? 4 * (plan->num_rows + 1) : 0;
  require(column[COLUMN_FOUND] >= NOT_DECODED && column[COLUMN_FOUND] <= INT32_MAX);
  for (int64_t i = 0; i < plan->num_row_groups; i++, chunks += NUMBERS_OF_CHUNK) {
    require(is_counted(chunks[SIZE]) && is_counted(chunks[NUM_VALUES]) && chunks[PAGE_BYTES] >= LEAST_PAGE_BYTES);
    require(column[COLUMN_FOUND] < 0 || chunks[SIZE] <= plan->room_bytes);
  }
  if (column[COLUMN_FOUND] < 0) return;
  const int64_t values_end = column[COLUMN_VALUES_AT] + column[COLUMN_FOUND] * column[COLUMN_WIDTH];
  require(column[COLUMN_OFFSETS_AT] >= first && column[COLUMN_VALUES_AT] >= column[COLUMN_OFFSETS_AT] + offset_bytes);
  require(values_end <= end && !(column[COLUMN_OFFSETS_AT] & (BLOCK - 1)) && !(column[COLUMN_VALUES_AT] & (BLOCK - 1)));
  if (plan->is_ordered) require(plan->room_bytes >= offset_bytes + values_end - column[COLUMN_VALUES_AT]);
  if (!is_taken(column, plan->num_rows, column[COLUMN_VALUES_AT], values_end)) return; /* of another width, or other levels */
  require(!column[COLUMN_FOUND] || !is_taken(column, plan->num_rows, column[COLUMN_VALUES_AT], values_end - 1));
}

static void planned(const Part* of, const uint8_t* head) {
  const int64_t num_leaves = head[LEAVES_BYTE] + 1, num_columns = of[COLUMNS].size / (NUMBERS_OF_COLUMN * 8);
  WindowPlan plan = {.footer = (const int64_t*)of[FOOTER].at, .num_leaves = num_leaves, .row_groups = (const int64_t*)of[ROW_GROUPS].at,
                     .num_row_groups = of[ROW_GROUPS].size / 8, .num_rows = (int64_t)head[ROWS_BYTE] << (head[ROWS_SHIFT_BYTE] & 15),
                     .is_together = head[HOW_BYTE] & 1, .is_ordered = head[HOW_BYTE] >> 1 & 1};
  int64_t *const columns = (int64_t*)of[COLUMNS].at, first = 0;
  const int64_t num_chunks = num_columns * plan.num_row_groups;
  int64_t* const chunks = malloc((size_t)num_chunks * NUMBERS_OF_CHUNK * 8);
  plan.num_file_groups = of[FOOTER].size / (num_leaves * NUMBERS_OF_FOOTER * 8);
  const int is_planned = plan_window(&plan, columns, num_columns, chunks);
  period = 0;
  for (int64_t i = 0; is_planned && i < num_columns; i++) {
    const int64_t* const column = columns + i * NUMBERS_OF_COLUMN;
    check_column(&plan, column, chunks + i * plan.num_row_groups * NUMBERS_OF_CHUNK, first, plan.memory_bytes);
    require(column[COLUMN_VALUES_IN] == (plan.is_together ? 0 : i) && column[COLUMN_OFFSETS_IN] == column[COLUMN_VALUES_IN]);
    if (plan.is_together && column[COLUMN_FOUND] >= 0) first = column[COLUMN_VALUES_AT] + column[COLUMN_FOUND] * column[COLUMN_WIDTH];
  }
  free(chunks);
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Part parts[NUM_PARTS];
  if (size < NUM_BYTES) return 0;
  period = data[HOW_BYTE] >> 2 & 15;
  num_read = data[HOW_BYTE] >> 6;
  take_parts(data + NUM_BYTES, size - NUM_BYTES, parts, NUM_PARTS);
  planned(parts, data);
  const int64_t num_rows = data[ROWS_BYTE], num_taken = parts[TAKEN].size / (NUMBERS_OF_COLUMN * 8);
  for (int64_t i = 0; i < num_taken; i++)
    is_taken((const int64_t*)parts[TAKEN].at + i * NUMBERS_OF_COLUMN, num_rows, data[OFFSETS_BYTE], data[VALUES_BYTE]);
  free_parts(parts, NUM_PARTS);
  return 0;
}
