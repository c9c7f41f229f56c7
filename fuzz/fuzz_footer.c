/* Footers: whatever the plan and the bytes are, walking reads and writes nothing but them and its rows, and ends.

   An input begins with the numbers of tables, structs and fields, and the plan, 16 bits a number; the footer follows. */
#include "footer.h"

enum { NUM_TABLES, NUM_STRUCTS, NUM_FIELDS_ALL, NUM_BYTES, MOST_WIDTH = 64 };

static int64_t* numbers_of(Bytes* bytes, int64_t count) {
  int64_t* found = malloc((size_t)count * sizeof *found + 1);
  for (int64_t i = 0; i < count; i++, bytes->at += 2) {
    int16_t number;
    memcpy(&number, bytes->at, 2);
    found[i] = number;
  }
  return found;
}

static void check_rows(const Walk* walk, int64_t num_tables, int64_t num_bytes) {
  for (int64_t i = 0; i < num_tables; i++) {
    const Table* table = &walk->tables[i];
    if (table->num_rows > num_bytes) abort();
    for (int64_t row = 0; !walk->wrong && row < table->num_rows; row++) {
      const int64_t* of = table->numbers + row * table->width;
      if (of[0] < 0 || of[0] > of[1] || of[1] > num_bytes) abort();
    }
  }
}

/* A plan may write over where a row begins and ends, which the one that featstore has does not. */
static int keeps_ends(const Walk* walk, int64_t num_structs, int64_t num_fields) {
  int keeps = 1;
  for (int64_t i = 0; i < num_fields; i++) {
    const int64_t* field = walk->fields + i * NUMBERS_OF_FIELD;
    keeps &= field[KEEP] == NOTHING || field[SLOT] > 1;
  }
  for (int64_t i = 0; i < num_structs; i++) {
    const int64_t* of = walk->structs + i * NUMBERS_OF_STRUCT;
    keeps &= !of[CUT_NUMBER] || of[CUT_SLOT] > 1;
  }
  return keeps;
}

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < NUM_BYTES || data[NUM_TABLES] > MOST_TABLES) return 0;
  int64_t num_tables = data[NUM_TABLES], num_structs = data[NUM_STRUCTS], num_fields = data[NUM_FIELDS_ALL];
  int64_t num_numbers = num_tables + num_structs * NUMBERS_OF_STRUCT + num_fields * NUMBERS_OF_FIELD;
  if ((int64_t)size < NUM_BYTES + 2 * num_numbers) return 0;
  Bytes bytes = {data + NUM_BYTES, data + size};
  int64_t *widths = numbers_of(&bytes, num_tables), *structs = numbers_of(&bytes, num_structs * NUMBERS_OF_STRUCT);
  int64_t* fields = numbers_of(&bytes, num_fields * NUMBERS_OF_FIELD);
  /* Of its own size, so that the sanitizer sees a byte beyond it. */
  int64_t num_bytes = bytes.end - bytes.at;
  uint8_t* footer = malloc((size_t)num_bytes + !num_bytes);
  memcpy(footer, bytes.at, (size_t)num_bytes);
  Walk walk = {.bytes = {footer, footer + num_bytes}, .first = footer, .structs = structs, .fields = fields};
  for (int64_t i = 0; i < num_tables; i++) walk.tables[i].width = widths[i] > MOST_WIDTH ? MOST_WIDTH : widths[i];
  if (plan_fits(&walk, num_structs, num_fields)) {
    if (walk_struct(&walk, walk.structs, -1) == (walk.wrong != 0)) abort();
    if (keeps_ends(&walk, num_structs, num_fields)) check_rows(&walk, num_tables, num_bytes);
  }
  for (int64_t i = 0; i < MOST_TABLES; i++) free(walk.tables[i].numbers);
  free(widths);
  free(structs);
  free(fields);
  free(footer);
  return 0;
}
