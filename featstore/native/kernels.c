/* The kernels as a Python module, on anything that has a buffer (numpy arrays, Arrow buffers).

   Each function of buffers checks that lengths and offsets fit, raises ValueError where they do not, and works without the
   interpreter's lock. Buffers are contiguous; those that numbers are written to are aligned to them, and overlap nothing that is
   read. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "chunk_checks.h"
#include "columns.h"
#include "distinct.h"
#include "footer.h"
#include "histories.h"
#include "marks.h"
#include "orders.h"
#include "rows.h"
#include "xxh64.h"

#define MAX_MEMBERS 64
#define MOST_SHARES 65536 /* of a mixture, since draws are uint16 */
#define MOST_TABLE_WIDTH 4096 /* of the rows of a table: few more than there are fields in Parquet's format would do */
#define FEW_BYTES 65536 /* that take less time than another thread, which must give the interpreter's lock back */

static PyObject* wrong(const char* what) {
  PyErr_SetString(PyExc_ValueError, what);
  return NULL;
}

/* Whether numbers of `width` bytes, a power of two, can be written to a buffer one by one. */
static int is_aligned(const Py_buffer* buffer, uintptr_t width) {
  return !buffer->len || !((uintptr_t)buffer->buf & (width - 1));
}

static PyObject* py_hash_texts(PyObject* self, PyObject* args) {
  Py_buffer data, offsets, hashes;
  unsigned long long seed;
  int portable;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*w*Kp:hash_texts", &data, &offsets, &hashes, &seed, &portable)) return NULL;
  int64_t num_texts = hashes.len / 8;
  int fits = hashes.len % 8 == 0 && is_aligned(&hashes, 8) && offsets.len == (num_texts + 1) * 4;
  Py_BEGIN_ALLOW_THREADS
  fits = fits && (portable ? portable_hash_texts : hash_texts)(data.buf, data.len, offsets.buf, num_texts, seed, hashes.buf);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&data);
  PyBuffer_Release(&offsets);
  PyBuffer_Release(&hashes);
  if (!fits) return wrong("expected one int32 offset more than aligned hashes, never falling and within the data");
  Py_RETURN_NONE;
}

static PyObject* py_chain_texts(PyObject* self, PyObject* args) {
  Py_buffer data, offsets, hashes;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*w*:chain_texts", &data, &offsets, &hashes)) return NULL;
  int64_t num_texts = hashes.len / 8;
  int fits = hashes.len % 8 == 0 && is_aligned(&hashes, 8) && offsets.len == (num_texts + 1) * 4;
  Py_BEGIN_ALLOW_THREADS
  fits = fits && chain_texts(data.buf, data.len, offsets.buf, num_texts, hashes.buf);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&data);
  PyBuffer_Release(&offsets);
  PyBuffer_Release(&hashes);
  if (!fits) return wrong("expected one int32 offset more than aligned hashes, never falling and within the data");
  Py_RETURN_NONE;
}

static PyObject* py_hash_decimals(PyObject* self, PyObject* args) {
  Py_buffer values, hashes, known;
  unsigned long long seed;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*w*Ky*:hash_decimals", &values, &hashes, &seed, &known)) return NULL;
  int fits = values.len == hashes.len && values.len % 8 == 0 && is_aligned(&hashes, 8);
  Py_BEGIN_ALLOW_THREADS
  if (fits) hash_decimals(values.buf, values.len / 8, seed, known.buf, (uint64_t)known.len / 8, hashes.buf);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&known);
  PyBuffer_Release(&values);
  PyBuffer_Release(&hashes);
  if (!fits) return wrong("expected as many aligned hashes as values, 8 bytes each");
  Py_RETURN_NONE;
}

/* Takes the buffers of a tuple; how many it could take, all of them of `num_bytes`. */
static Py_ssize_t take_members(PyObject* tuple, Py_ssize_t num_bytes, Py_buffer* buffers, const uint64_t** members) {
  Py_ssize_t count = PyTuple_Size(tuple), taken = 0;
  for (; taken < count && taken < MAX_MEMBERS; taken++) {
    if (PyObject_GetBuffer(PyTuple_GetItem(tuple, taken), &buffers[taken], PyBUF_SIMPLE) < 0) break;
    members[taken] = buffers[taken].buf;
    if (buffers[taken].len != num_bytes) {
      taken++;
      wrong("expected as many values of each member as signs, 8 bytes each");
      break;
    }
  }
  if (taken == MAX_MEMBERS && count > MAX_MEMBERS) wrong("expected at most 64 members");
  return taken;
}

static PyObject* py_sign_rows(PyObject* self, PyObject* args) {
  PyObject* tuple;
  Py_buffer signs, buffers[MAX_MEMBERS];
  const uint64_t* members[MAX_MEMBERS];
  unsigned long long seed;
  int portable;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!w*Kp:sign_rows", &PyTuple_Type, &tuple, &signs, &seed, &portable)) return NULL;
  Py_ssize_t taken = take_members(tuple, signs.len, buffers, members);
  if (!PyErr_Occurred() && (signs.len % 8 || !is_aligned(&signs, 8)))
    wrong("expected as many values of each member as aligned signs, 8 bytes each");
  int fits = !PyErr_Occurred();
  Py_BEGIN_ALLOW_THREADS
  if (fits) (portable ? portable_sign_rows : sign_rows)(members, taken, signs.len / 8, seed, signs.buf);
  Py_END_ALLOW_THREADS
  while (taken) PyBuffer_Release(&buffers[--taken]);
  PyBuffer_Release(&signs);
  if (!fits) return NULL;
  Py_RETURN_NONE;
}

static PyObject* py_count_marks(PyObject* self, PyObject* args) {
  Py_buffer values;
  int width;
  int64_t count = 0;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*i:count_marks", &values, &width)) return NULL;
  int fits = (width == 4 || width == 8) && values.len % width == 0;
  Py_BEGIN_ALLOW_THREADS
  if (fits) count = count_marks(values.buf, values.len / width, width);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&values);
  if (!fits) return wrong("expected whole values of 4 or 8 bytes");
  return PyLong_FromLongLong(count);
}

static int is_width(int64_t width) { return width == 4 || width == 8; }

/* Whether a bitmap holds `count` bits from `first` on; one of no bytes stands for none being null. */
static int bits_fit(const Py_buffer* bits, int64_t first, int64_t count) {
  return !bits->len || (first >= 0 && first <= (int64_t)bits->len * 8 - count);
}

static void release_all(Py_buffer* buffers, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
}

/* Where a buffer begins; one of no bytes may be nowhere. */
static void* begin_of(const Py_buffer* buffer) {
  static int64_t nothing;
  return buffer->len ? buffer->buf : &nothing;
}

/* Whether a size is so many times another: their product might not fit a number. */
static int is_times(int64_t size, int64_t count, int64_t of) { return of ? size % of == 0 && size / of == count : !size; }

/* A copy of numbers that say where memory is read or written, so that no other thread changes them; NULL with an error. */
static int64_t* copied_numbers(const Py_buffer* numbers) {
  int64_t* copy = PyMem_Malloc((size_t)numbers->len + 1);
  if (copy) memcpy(copy, begin_of(numbers), (size_t)numbers->len);
  else PyErr_NoMemory();
  return copy;
}

/* The buffers of a tuple, writable; how many could be taken, with an exception if not all. */
static Py_ssize_t take_writable(PyObject* tuple, Py_buffer* buffers) {
  const Py_ssize_t count = PyTuple_Size(tuple);
  Py_ssize_t taken = 0;
  while (taken < count && !PyObject_GetBuffer(PyTuple_GetItem(tuple, taken), &buffers[taken], PyBUF_WRITABLE)) taken++;
  return taken;
}

static PyObject* py_fill_nulls(PyObject* self, PyObject* args) {
  enum { VALUES, BITS, MARK, COUNT };
  Py_buffer of[COUNT];
  long long first_bit;
  (void)self;
  if (!PyArg_ParseTuple(args, "w*y*Ly*:fill_nulls", &of[VALUES], &of[BITS], &first_bit, &of[MARK])) return NULL;
  int width = (int)of[MARK].len;
  int fits = is_width(width) && of[VALUES].len % width == 0 && of[BITS].len;
  fits = fits && bits_fit(&of[BITS], first_bit, of[VALUES].len / width);
  Py_BEGIN_ALLOW_THREADS
  if (fits) fill_nulls(of[VALUES].buf, of[VALUES].len / width, width, of[BITS].buf, first_bit, of[MARK].buf);
  Py_END_ALLOW_THREADS
  release_all(of, COUNT);
  if (!fits) return wrong("expected whole values of the mark's 4 or 8 bytes, and a bit for each");
  Py_RETURN_NONE;
}

static PyObject* py_bucket_ids(PyObject* self, PyObject* args) {
  enum { IDS, BUCKETS, COUNT };
  Py_buffer of[COUNT];
  long long num_remainders;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*Lw*:bucket_ids", &of[IDS], &num_remainders, &of[BUCKETS])) return NULL;
  int fits = of[IDS].len == of[BUCKETS].len && of[IDS].len % 8 == 0 && is_aligned(&of[BUCKETS], 8);
  fits = fits && num_remainders > 0;
  Py_BEGIN_ALLOW_THREADS
  if (fits) bucket_ids(of[IDS].buf, of[IDS].len / 8, (uint64_t)num_remainders, of[BUCKETS].buf);
  Py_END_ALLOW_THREADS
  release_all(of, COUNT);
  if (!fits) return wrong("expected as many int64 ids as buckets, and at least one remainder");
  Py_RETURN_NONE;
}

static PyObject* py_lists_without_nulls(PyObject* self, PyObject* args) {
  enum { OFFSETS, BITS, VALUES, VALUE_BITS, MARK, NEW_OFFSETS, NEW_VALUES, COUNT };
  Py_buffer of[COUNT];
  int offset_width;
  long long first_bit, first_value_bit;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*iy*Ly*y*Ly*w*w*:lists_without_nulls", &of[OFFSETS], &offset_width, &of[BITS], &first_bit,
                        &of[VALUES], &of[VALUE_BITS], &first_value_bit, &of[MARK], &of[NEW_OFFSETS], &of[NEW_VALUES]))
    return NULL;
  int width = (int)of[MARK].len;
  int64_t written = -1;
  int fits = is_width(width) && is_width(offset_width) && of[OFFSETS].len >= offset_width &&
             of[NEW_OFFSETS].len / 8 == of[OFFSETS].len / offset_width && is_aligned(&of[NEW_OFFSETS], 8);
  if (fits) {
    Lists lists = {of[OFFSETS].buf, offset_width, of[OFFSETS].len / offset_width - 1,
                   of[BITS].len ? of[BITS].buf : NULL, first_bit, of[VALUES].buf, of[VALUES].len / width,
                   of[VALUE_BITS].len ? of[VALUE_BITS].buf : NULL, first_value_bit};
    fits = bits_fit(&of[BITS], first_bit, lists.num_rows) && bits_fit(&of[VALUE_BITS], first_value_bit, lists.num_values);
    Py_BEGIN_ALLOW_THREADS
    if (fits)
      written = lists_without_nulls(&lists, width, of[MARK].buf, of[NEW_OFFSETS].buf, of[NEW_VALUES].buf,
                                    of[NEW_VALUES].len / width);
    Py_END_ALLOW_THREADS
  }
  release_all(of, COUNT);
  if (written < 0)
    return wrong("expected offsets that never fall, within the values, a bit for each, and aligned room for the result");
  return PyLong_FromLongLong(written);
}

static PyObject* py_copy_ranges(PyObject* self, PyObject* args) {
  enum { VALUES, STARTS, LENGTHS, OUT, COUNT };
  Py_buffer of[COUNT];
  int width;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*iy*y*w*:copy_ranges", &of[VALUES], &width, &of[STARTS], &of[LENGTHS], &of[OUT])) return NULL;
  int fits = width > 0 && of[STARTS].len % 8 == 0 && of[LENGTHS].len == of[STARTS].len && of[OUT].len % width == 0;
  Py_BEGIN_ALLOW_THREADS
  fits = fits && copy_ranges(begin_of(&of[VALUES]), of[VALUES].len / width, width, of[STARTS].buf, of[LENGTHS].buf,
                             of[STARTS].len / 8, begin_of(&of[OUT]), of[OUT].len / width);
  Py_END_ALLOW_THREADS
  release_all(of, COUNT);
  if (!fits) return wrong("expected a start and a length of each range, within the values, and room for just these ranges");
  Py_RETURN_NONE;
}

static PyObject* py_history_ranges(PyObject* self, PyObject* args) {
  enum { END, LENGTH, BACK, KEYS, SIZES, OFFSETS, AS_OF, AT, RANGES, COUNT };
  Py_buffer of[COUNT];
  int offset_width, wrong_with = -1;
  long long num_events, most_us, max_len;
  int64_t row = 0;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*y*y*y*y*iLy*y*LLw*:history_ranges", &of[END], &of[LENGTH], &of[BACK], &of[KEYS], &of[SIZES],
                        &of[OFFSETS], &offset_width, &num_events, &of[AS_OF], &of[AT], &most_us, &max_len, &of[RANGES]))
    return NULL;
  const int64_t num_rows = of[KEYS].len / 8;
  const int has_times = of[AS_OF].len > 0;
  int fits = is_width(offset_width) && of[KEYS].len % 8 == 0 && of[END].len == num_rows * 4 && of[LENGTH].len == of[END].len &&
             of[BACK].len == of[END].len && of[OFFSETS].len == (num_rows + 1) * offset_width && of[RANGES].len == num_rows * 16 &&
             num_events >= 0 && most_us >= 0 && max_len >= 0 && is_aligned(&of[RANGES], 8);
  if (has_times) fits = fits && of[AS_OF].len == of[KEYS].len && of[AT].len / 8 >= num_events;
  const RowRanges rows = {num_rows, num_events, of[END].buf, of[LENGTH].buf, of[BACK].buf, of[KEYS].buf, of[OFFSETS].buf, offset_width,
                          has_times ? of[AS_OF].buf : NULL, has_times ? of[AT].buf : NULL, most_us, max_len};
  Py_BEGIN_ALLOW_THREADS
  if (fits) wrong_with = ranges_of_rows(&rows, of[SIZES].buf, of[SIZES].len / 8, of[RANGES].buf, &row);
  Py_END_ALLOW_THREADS
  release_all(of, COUNT);
  if (wrong_with < 0) return wrong("expected what each row and event has, row groups of all rows, and aligned room for the ranges");
  return Py_BuildValue("iL", wrong_with, (long long)row);
}

static PyObject* py_rebase_offsets(PyObject* self, PyObject* args) {
  enum { OFFSETS, CUTS, REBASED, COUNT };
  Py_buffer of[COUNT];
  int width;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*iy*w*:rebase_offsets", &of[OFFSETS], &width, &of[CUTS], &of[REBASED])) return NULL;
  int fits = is_width(width) && of[OFFSETS].len >= width && of[CUTS].len >= 8 && is_aligned(&of[REBASED], 8);
  if (fits) {
    int64_t num_parts = of[CUTS].len / 8 - 1;
    const int64_t* cuts = of[CUTS].buf;
    Py_BEGIN_ALLOW_THREADS
    fits = rebase_offsets(of[OFFSETS].buf, width, of[OFFSETS].len / width - 1, cuts, num_parts, of[REBASED].buf,
                          of[REBASED].len / 8);
    Py_END_ALLOW_THREADS
  }
  release_all(of, COUNT);
  if (!fits) return wrong("expected rising cuts within the rows, and aligned room for an offset more than rows in each part");
  Py_RETURN_NONE;
}

static PyObject* py_pack_parts(PyObject* self, PyObject* args) {
  enum { LAYOUT, OUT, COUNT };
  Py_buffer of[COUNT];
  PyObject* tuple;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!y*w*:pack_parts", &PyTuple_Type, &tuple, &of[LAYOUT], &of[OUT])) return NULL;
  const Py_ssize_t count = PyTuple_Size(tuple);
  Py_ssize_t taken = 0;
  PackedPart* parts = PyMem_Calloc((size_t)count + 1, sizeof *parts);
  Py_buffer* buffers = PyMem_Calloc((size_t)count + 1, sizeof *buffers);
  int fits = of[LAYOUT].len == count * 16 && is_aligned(&of[OUT], 8);
  if (!parts || !buffers) PyErr_NoMemory();
  for (; fits && !PyErr_Occurred() && taken < count; taken++) {
    if (PyObject_GetBuffer(PyTuple_GetItem(tuple, taken), &buffers[taken], PyBUF_SIMPLE) < 0) break;
    const int64_t width = int64_at(of[LAYOUT].buf, taken * 2 + 1);
    parts[taken] = (PackedPart){buffers[taken].buf, buffers[taken].len, (int)width, int64_at(of[LAYOUT].buf, taken * 2)};
    fits = !width || width == 4 || width == 8;
  }
  if (!PyErr_Occurred()) {
    Py_BEGIN_ALLOW_THREADS
    fits = fits && pack_parts(parts, count, of[OUT].buf, of[OUT].len);
    Py_END_ALLOW_THREADS
    if (!fits) wrong("expected a start and an offset's width, or 0, for each part, and aligned room for it");
  }
  if (buffers) release_all(buffers, taken);
  PyMem_Free(buffers);
  PyMem_Free(parts);
  release_all(of, COUNT);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

/* Ends the collector's tracking of the objects of a tuple. Those of types that it does not know are left as they are. */
static PyObject* py_untrack(PyObject* self, PyObject* objects) {
  (void)self;
  if (!PyTuple_Check(objects)) {
    PyErr_SetString(PyExc_TypeError, "expected a tuple of objects");
    return NULL;
  }
  const Py_ssize_t count = PyTuple_Size(objects);
  for (Py_ssize_t i = 0; i < count; i++) {
    PyObject* object = PyTuple_GetItem(objects, i);
    if (PyObject_GC_IsTracked(object)) PyObject_GC_UnTrack(object);
  }
  Py_RETURN_NONE;
}

static const char NOT_GATHERED[] =
    "expected rows that there are, rising cuts from 0 to all rows, and room (of offsets aligned) for each part";

/* Numbers of a column in a piece: the buffer and the byte of its values, and how many there are; those of its offsets, the bytes of
   one (0 where a row is not a list; 16 and 32 as of `Piece`), and its rows. */
enum {
  PIECE_VALUES_IN,
  PIECE_VALUES_AT,
  PIECE_NUM_VALUES,
  PIECE_OFFSETS_IN,
  PIECE_OFFSETS_AT,
  PIECE_OFFSET_WIDTH,
  PIECE_ROWS,
  NUMBERS_OF_PIECE
};
/* Numbers of a gathered column: its number in the pieces, the bytes of a value, the values of a row (0 where a row is a list), and the
   outputs of its values and of its offsets. */
enum { GATHERED_COLUMN, GATHERED_WIDTH, GATHERED_OF_ROW, GATHERED_TO, GATHERED_OFFSETS_TO, NUMBERS_OF_GATHERED };

/* The buffers of some pieces, each of which has the same columns. */
typedef struct {
  Py_ssize_t num_pieces, num_taken;
  Py_buffer* buffers; /* of all pieces, one after the other */
  Py_ssize_t* firsts; /* of each piece its first buffer, and the end */
  int64_t** numbers;  /* of each piece those of its columns, copied, so that they do not change */
  Py_ssize_t* num_columns;
} HeldPieces;

static void release_pieces(HeldPieces* held) {
  if (held->buffers) release_all(held->buffers, held->num_taken);
  for (Py_ssize_t i = 0; held->numbers && i < held->num_pieces; i++) PyMem_Free(held->numbers[i]);
  PyMem_Free(held->buffers);
  PyMem_Free(held->firsts);
  PyMem_Free(held->numbers);
  PyMem_Free(held->num_columns);
}

/* Takes pieces, each `(buffers, numbers)`; 0 with an exception. What is held has to be released in any case. */
static int take_pieces(PyObject* pieces, HeldPieces* held) {
  Py_ssize_t count = 0;
  memset(held, 0, sizeof *held);
  held->num_pieces = PyTuple_Size(pieces);
  for (Py_ssize_t i = 0; i < held->num_pieces; i++) {
    PyObject* const piece = PyTuple_GetItem(pieces, i);
    if (!PyTuple_Check(piece) || PyTuple_Size(piece) != 2 || !PyTuple_Check(PyTuple_GetItem(piece, 0)))
      return wrong("expected pieces as a tuple of buffers and numbers each") != NULL;
    count += PyTuple_Size(PyTuple_GetItem(piece, 0));
  }
  held->buffers = PyMem_Calloc((size_t)count + 1, sizeof(Py_buffer));
  held->firsts = PyMem_Calloc((size_t)held->num_pieces + 1, sizeof(Py_ssize_t));
  held->numbers = PyMem_Calloc((size_t)held->num_pieces + 1, sizeof(int64_t*));
  held->num_columns = PyMem_Calloc((size_t)held->num_pieces + 1, sizeof(Py_ssize_t));
  if (!held->buffers || !held->firsts || !held->numbers || !held->num_columns) return PyErr_NoMemory() != NULL;
  for (Py_ssize_t i = 0; i < held->num_pieces; i++) {
    PyObject *const piece = PyTuple_GetItem(pieces, i), *const buffers = PyTuple_GetItem(piece, 0);
    Py_buffer numbers;
    for (Py_ssize_t j = 0; j < PyTuple_Size(buffers); j++, held->num_taken++)
      if (PyObject_GetBuffer(PyTuple_GetItem(buffers, j), &held->buffers[held->num_taken], PyBUF_SIMPLE) < 0) return 0;
    held->firsts[i + 1] = held->num_taken;
    if (PyObject_GetBuffer(PyTuple_GetItem(piece, 1), &numbers, PyBUF_SIMPLE) < 0) return 0;
    held->num_columns[i] = numbers.len / (NUMBERS_OF_PIECE * 8);
    held->numbers[i] = copied_numbers(&numbers);
    PyBuffer_Release(&numbers);
    if (!held->numbers[i]) return 0;
  }
  return 1;
}

/* The bytes of a piece's buffer from `at` on; NULL where there are fewer than `count` numbers of `width` bytes. */
static const char* part_of(const HeldPieces* held, Py_ssize_t piece, int64_t buffer, int64_t at, int64_t count, int64_t width) {
  const Py_ssize_t num_buffers = held->firsts[piece + 1] - held->firsts[piece];
  if (buffer < 0 || buffer >= num_buffers || at < 0 || count < 0) return NULL;
  const Py_buffer* const of = &held->buffers[held->firsts[piece] + buffer];
  return at > of->len || count > (of->len - at) / width ? NULL : (const char*)begin_of(of) + at;
}

/* Whether a piece of lists, whose values have `width` bytes in the output, may have offsets as wide as these. */
static int is_list_width(int64_t offset_width, int64_t width) {
  return is_width(offset_width) || offset_width == RANGE_WIDTH || (offset_width == AGE_WIDTH && width == AGE_BYTES);
}

/* A column in each piece; 0 where it does not lie in the piece's buffers. */
static int pieces_of_column(const HeldPieces* held, const int64_t* column, Piece* pieces) {
  const int64_t width = column[GATHERED_WIDTH], of_row = column[GATHERED_OF_ROW];
  if (width < 1 || width > 8 || of_row < 0 || of_row > INT32_MAX || !held->num_pieces) return 0;
  for (Py_ssize_t i = 0; i < held->num_pieces; i++) {
    Piece* const piece = &pieces[i];
    if (column[GATHERED_COLUMN] < 0 || column[GATHERED_COLUMN] >= held->num_columns[i]) return 0;
    const int64_t* of = held->numbers[i] + column[GATHERED_COLUMN] * NUMBERS_OF_PIECE;
    piece->num_values = of[PIECE_NUM_VALUES];
    piece->num_rows = of[PIECE_ROWS];
    piece->offset_width = (int)of[PIECE_OFFSET_WIDTH];
    const int64_t stored = of_row ? width : stored_width(piece, width);
    piece->values = part_of(held, i, of[PIECE_VALUES_IN], of[PIECE_VALUES_AT], piece->num_values, stored);
    piece->offsets = NULL;
    if (!piece->values || piece->num_rows < 0) return 0;
    if (of_row && piece->num_rows > piece->num_values / of_row) return 0;
    if (of_row) {
      piece->num_values = piece->num_rows;
      continue;
    }
    if (!is_list_width(of[PIECE_OFFSET_WIDTH], width) || piece->num_rows == INT64_MAX) return 0;
    const int64_t num_entries = num_offsets(piece->num_rows, piece->offset_width);
    piece->offsets = part_of(held, i, of[PIECE_OFFSETS_IN], of[PIECE_OFFSETS_AT], num_entries, piece->offset_width);
    if (!piece->offsets) return 0;
  }
  return 1;
}

/* What is gathered, but for the pieces of a column. */
static Gather gather_of(const HeldPieces* held, const Py_buffer* rows, int row_bits, int ascends, const Py_buffer* cuts) {
  Gather gather = {.num_pieces = held->num_pieces, .rows = rows->buf, .row_bits = row_bits, .num_rows = rows->len / 4,
                   .cuts = cuts->buf, .num_parts = cuts->len / 8 - 1, .ascends = ascends};
  return gather;
}

static int can_gather(const Gather* gather, const Py_buffer* columns) {
  return gather->row_bits >= 0 && gather->row_bits < 32 && gather->num_parts >= 0 && columns->len % (NUMBERS_OF_GATHERED * 8) == 0;
}

/* How many numbers are found of the lists of one column: where they begin, and their offsets in each part. */
static int64_t num_found(const Gather* gather) { return 2 * gather->num_rows + gather->num_parts; }

static PyObject* py_gather_offsets(PyObject* self, PyObject* args) {
  enum { COLUMNS, ROWS, CUTS, FOUND, COUNT };
  Py_buffer of[COUNT];
  PyObject* tuple;
  HeldPieces held;
  int row_bits, ascends, fits = 0;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!y*y*ipy*w*:gather_offsets", &PyTuple_Type, &tuple, &of[COLUMNS], &of[ROWS], &row_bits, &ascends, &of[CUTS],
                        &of[FOUND]))
    return NULL;
  const int are_taken = take_pieces(tuple, &held);
  const int64_t count = of[COLUMNS].len / (NUMBERS_OF_GATHERED * 8);
  int64_t* columns = copied_numbers(&of[COLUMNS]);
  Piece* pieces = PyMem_Calloc((size_t)held.num_pieces + 1, sizeof(Piece));
  if (!columns || !pieces) PyErr_NoMemory();
  else if (are_taken) {
    int64_t* found = of[FOUND].buf;
    Gather gather = gather_of(&held, &of[ROWS], row_bits, ascends, &of[CUTS]);
    gather.pieces = pieces;
    fits = can_gather(&gather, &of[COLUMNS]) && is_aligned(&of[FOUND], 8) && is_times(of[FOUND].len, count, 8 * num_found(&gather));
    Py_BEGIN_ALLOW_THREADS
    for (int64_t i = 0; fits && i < count; i++, found += num_found(&gather)) {
      const int64_t* const column = columns + i * NUMBERS_OF_GATHERED;
      fits = !column[GATHERED_OF_ROW] && pieces_of_column(&held, column, pieces) && gather_offsets(&gather, found, found + gather.num_rows);
    }
    Py_END_ALLOW_THREADS
  }
  release_pieces(&held);
  PyMem_Free(columns);
  PyMem_Free(pieces);
  release_all(of, COUNT);
  if (PyErr_Occurred()) return NULL;
  if (!fits) return wrong(NOT_GATHERED);
  Py_RETURN_NONE;
}

/* Where the parts of an item go: `starts` of it, and an output; 0 where there is none. */
static int parts_out(const int64_t* starts, int64_t output, const Py_buffer* outs, Py_ssize_t num_outs, PartsOut* to) {
  if (output < 0 || output >= num_outs) return 0;
  to->starts = starts;
  to->out = begin_of(&outs[output]);
  to->out_bytes = outs[output].len;
  return 1;
}

/* What a gathering call is given, beside its pieces. */
typedef struct {
  Gather gather;
  const int64_t *columns, *starts, *found;
  int64_t count, num_lists;
  Py_buffer* outs;
  Py_ssize_t num_outs;
} Gathering;

/* The columns, lists first, since they take longest; 0 where something does not fit. */
static int gathered_columns(const HeldPieces* held, const Gathering* of, Piece* pieces, GatheredColumn* columns) {
  const int64_t num_parts = of->gather.num_parts;
  int64_t list = 0, next_value = of->num_lists;
  for (int64_t i = 0; i < of->count; i++, pieces += held->num_pieces) {
    const int64_t* const numbers = of->columns + i * NUMBERS_OF_GATHERED;
    const int is_list = !numbers[GATHERED_OF_ROW];
    GatheredColumn* const column = &columns[is_list ? list : next_value++];
    if (!pieces_of_column(held, numbers, pieces)) return 0;
    column->gather = of->gather;
    column->gather.pieces = pieces;
    column->width = numbers[GATHERED_WIDTH] * (is_list ? 1 : numbers[GATHERED_OF_ROW]);
    if (!parts_out(of->starts + i * num_parts, numbers[GATHERED_TO], of->outs, of->num_outs, &column->values)) return 0;
    if (!is_list) continue;
    column->firsts = of->found + list * num_found(&of->gather);
    column->offsets = column->firsts + of->gather.num_rows;
    const int64_t* const starts = of->starts + (of->count + list++) * num_parts;
    if (!parts_out(starts, numbers[GATHERED_OFFSETS_TO], of->outs, of->num_outs, &column->offsets_out)) return 0;
    if ((uintptr_t)column->offsets_out.out & 7) return 0;
  }
  return 1;
}

static PyObject* py_gather_columns(PyObject* self, PyObject* args) {
  enum { COLUMNS, ROWS, CUTS, STARTS, FOUND, COUNT };
  Py_buffer of[COUNT];
  PyObject *tuple, *outputs;
  HeldPieces held;
  int row_bits, ascends, num_threads, fits = 0;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!y*y*ipy*y*y*O!i:gather_columns", &PyTuple_Type, &tuple, &of[COLUMNS], &of[ROWS], &row_bits, &ascends, &of[CUTS],
                        &of[STARTS], &of[FOUND], &PyTuple_Type, &outputs, &num_threads))
    return NULL;
  const int are_taken = take_pieces(tuple, &held);
  const int64_t count = of[COLUMNS].len / (NUMBERS_OF_GATHERED * 8);
  int64_t* columns = copied_numbers(&of[COLUMNS]);
  Piece* pieces = PyMem_Calloc((size_t)count + 1, ((size_t)held.num_pieces + 1) * sizeof(Piece)); /* in each piece each column */
  Py_buffer* outs = PyMem_Calloc((size_t)PyTuple_Size(outputs) + 1, sizeof(Py_buffer));
  GatherWork work = {PyMem_Calloc((size_t)count + 1, sizeof(GatheredColumn)), count, 0};
  const Gather gather = gather_of(&held, &of[ROWS], row_bits, ascends, &of[CUTS]);
  Gathering gathering = {gather, columns, of[STARTS].buf, begin_of(&of[FOUND]), count, 0, outs, 0};
  if (!columns || !pieces || !outs || !work.columns) PyErr_NoMemory();
  else if (are_taken) {
    gathering.num_outs = take_writable(outputs, outs);
    fits = !PyErr_Occurred() && can_gather(&gather, &of[COLUMNS]) && num_threads >= 1 && num_threads <= MAX_THREADS;
    for (int64_t i = 0; i < count; i++) gathering.num_lists += !columns[i * NUMBERS_OF_GATHERED + GATHERED_OF_ROW];
    fits = fits && is_times(of[STARTS].len, count + gathering.num_lists, 8 * gather.num_parts);
    fits = fits && is_times(of[FOUND].len, gathering.num_lists, 8 * num_found(&gather));
    Py_BEGIN_ALLOW_THREADS
    fits = fits && gathered_columns(&held, &gathering, pieces, work.columns);
    if (fits) in_threads(gather_next, &work, num_threads);
    for (int64_t i = 0; i < count; i++) fits = fits && work.columns[i].is_gathered;
    Py_END_ALLOW_THREADS
  }
  if (outs) release_all(outs, gathering.num_outs);
  release_pieces(&held);
  PyMem_Free(outs);
  PyMem_Free(pieces);
  PyMem_Free(work.columns);
  PyMem_Free(columns);
  release_all(of, COUNT);
  if (PyErr_Occurred()) return NULL;
  if (!fits) return wrong(NOT_GATHERED);
  Py_RETURN_NONE;
}

static PyObject* py_mark_values(PyObject* self, PyObject* args) {
  Py_buffer values, bits, small;
  int width;
  long long bound;
  marked found = {0, 0};
  (void)self;
  if (!PyArg_ParseTuple(args, "y*iw*Lw*:mark_values", &values, &width, &bits, &bound, &small)) return NULL;
  int fits = (width == 4 || width == 8) && values.len % width == 0 && bits.len > 0 && (bits.len & (bits.len - 1)) == 0;
  fits = fits && small.len / 8 > values.len / width && is_aligned(&small, 8);
  Py_BEGIN_ALLOW_THREADS
  if (fits) found = mark_values(values.buf, values.len / width, width, bits.buf, (uint64_t)bits.len - 1, bound, small.buf);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&values);
  PyBuffer_Release(&bits);
  PyBuffer_Release(&small);
  if (!fits)
    return wrong("expected whole values of 4 or 8 bytes, a power of two of bits, and aligned room for one small hash "
                 "more than values");
  return Py_BuildValue("LL", (long long)found.num_missing, (long long)found.num_small);
}

static PyObject* py_count_ids(PyObject* self, PyObject* args) {
  enum { VALUES, WEIGHTS, TABLE, FIRSTS, COUNT };
  Py_buffer of[COUNT];
  long long num_known;
  counted found = {0, 0, 0};
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*w*Lw*:count_ids", &of[VALUES], &of[WEIGHTS], &of[TABLE], &num_known, &of[FIRSTS])) return NULL;
  const int64_t num_places = of[TABLE].len / 16, num_values = of[VALUES].len / 8;
  int fits = of[VALUES].len % 8 == 0 && (of[WEIGHTS].len == of[VALUES].len || !of[WEIGHTS].len) && of[TABLE].len % 16 == 0;
  fits = fits && num_places > 1 && (num_places & (num_places - 1)) == 0 && num_known >= 0 && num_known <= num_places;
  fits = fits && of[FIRSTS].len / 8 > num_values && is_aligned(&of[TABLE], 8) && is_aligned(&of[FIRSTS], 8);
  Py_BEGIN_ALLOW_THREADS
  if (fits)
    found = count_ids(of[VALUES].buf, of[WEIGHTS].len ? of[WEIGHTS].buf : NULL, num_values, of[TABLE].buf, (uint64_t)num_places - 1,
                      num_known, of[FIRSTS].buf);
  Py_END_ALLOW_THREADS
  release_all(of, COUNT);
  if (!fits || found.num_read < 0)
    return wrong("expected whole ids of 8 bytes, a weight for each or none, a power of two of places for an id and its count, one of "
                 "them free, and aligned room for one position more than ids");
  return Py_BuildValue("LLL", (long long)found.num_known, (long long)found.num_read, (long long)found.num_new);
}

/* How many rows there are in all, or -1. */
static int64_t num_rows_of(const int64_t* rows, int64_t count) {
  int64_t num_rows = 0;
  for (int64_t i = 0; i < count; i++) {
    if (rows[i] < 0 || rows[i] > INT32_MAX - num_rows) return -1;
    num_rows += rows[i];
  }
  return num_rows;
}

static int chunks_fit(const int64_t* chunks, int64_t count) {
  for (; count > 0; count--, chunks += NUMBERS_OF_CHUNK) {
    if (chunks[FIRST] < 0 || chunks[SIZE] < 0 || chunks[FIRST] > INT64_MAX - chunks[SIZE] || chunks[NUM_VALUES] < 0) return 0;
    if (chunks[PAGE_BYTES] < 0 || (chunks[CODEC] != UNCOMPRESSED && chunks[CODEC] != SNAPPY && chunks[CODEC] != ZSTD))
      return 0;
  }
  return 1;
}

/* By a Python function of the page and the size, which gives bytes; takes the interpreter's lock for that long. */
static int decompress_in_python(void* by, Bytes page, uint8_t* out, int64_t size) {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject* found = PyObject_CallFunction(by, "y#L", (const char*)page.at, (Py_ssize_t)(page.end - page.at), (long long)size);
  int fits = found && PyBytes_Check(found) && PyBytes_Size(found) == size;
  if (fits) memcpy(out, PyBytes_AsString(found), (size_t)size);
  Py_XDECREF(found);
  if (PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_KeyboardInterrupt)) PyErr_SetInterrupt(); /* it comes again, later */
  PyErr_Clear();
  PyGILState_Release(state);
  return fits;
}

/* The CRC-32 of bytes, so that every way to it can be tested. */
static PyObject* py_crc32(PyObject* self, PyObject* args) {
  Py_buffer data;
  unsigned int before, crc;
  int portable;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*Ip:crc32", &data, &before, &portable)) return NULL;
  Py_BEGIN_ALLOW_THREADS
  crc = portable ? portable_crc32_of(data.buf, data.len, before) : crc32_of(data.buf, data.len, before);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&data);
  return PyLong_FromUnsignedLong(crc);
}

/* Adds bytes to a CRC-32, after their kind and length; 0 where Python has failed. */
static int add_bytes(char kind, PyObject* bytes, uint32_t* crc) {
  char head[32], *data;
  Py_ssize_t size;
  if (!bytes || PyBytes_AsStringAndSize(bytes, &data, &size)) return 0;
  *crc = crc32_of((uint8_t*)head, PyOS_snprintf(head, sizeof head, "%c%lld:", kind, (long long)size), *crc);
  if (size < FEW_BYTES) {
    *crc = crc32_of((uint8_t*)data, size, *crc);
  } else {
    Py_BEGIN_ALLOW_THREADS
    *crc = crc32_of((uint8_t*)data, size, *crc);
    Py_END_ALLOW_THREADS
  }
  return 1;
}

/* Adds a value as Python writes it, and a semicolon. */
static int add_written(PyObject* value, uint32_t* crc) {
  PyObject* written = PyObject_ASCII(value);
  Py_ssize_t size;
  const char* data = written ? PyUnicode_AsUTF8AndSize(written, &size) : NULL;
  if (data) *crc = crc32_of((const uint8_t*)";", 1, crc32_of((const uint8_t*)data, size, *crc));
  Py_XDECREF(written);
  return data != NULL;
}

/* The CRC-32 of values of SQLite, each with its type. One call for all of a sample: a call for each took longer than the bytes. */
static PyObject* py_crc32_of_values(PyObject* self, PyObject* values) {
  uint32_t crc = 0;
  int fits = 1;
  (void)self;
  const Py_ssize_t count = PySequence_Size(values);
  for (Py_ssize_t i = 0; i < count && fits; i++) {
    PyObject *value = PySequence_GetItem(values, i), *encoded = NULL;
    if (value && PyBytes_CheckExact(value)) {
      fits = add_bytes('b', value, &crc);
    } else if (value && PyUnicode_CheckExact(value)) {
      encoded = PyUnicode_AsUTF8String(value); /* not kept in the text, as that of PyUnicode_AsUTF8AndSize is */
      fits = add_bytes('t', encoded, &crc);
    } else {
      fits = value && add_written(value, &crc);
    }
    Py_XDECREF(encoded);
    Py_XDECREF(value);
  }
  return count < 0 || !fits ? NULL : PyLong_FromUnsignedLong(crc);
}

static PyObject* py_first_damaged(PyObject* self, PyObject* args) {
  enum { SPANS, ROOM, COUNT };
  Py_buffer of[COUNT];
  int file, cause = 0;
  int64_t found = -1;
  (void)self;
  if (!PyArg_ParseTuple(args, "iy*w*:first_damaged", &file, &of[SPANS], &of[ROOM])) return NULL;
  const int64_t* spans = of[SPANS].buf;
  int64_t count = of[SPANS].len / 16;
  int fits = of[SPANS].len % 16 == 0 && of[ROOM].len > 0;
  Py_BEGIN_ALLOW_THREADS
  if (fits) found = first_damaged(file, spans, count, of[ROOM].buf, of[ROOM].len);
  cause = errno;
  Py_END_ALLOW_THREADS
  release_all(of, COUNT);
  errno = cause;
  if (found == -3) return PyErr_SetFromErrno(PyExc_OSError);
  if (!fits || found < -1) return wrong("expected a first byte and an end that is not before it for each chunk, and room");
  return PyLong_FromLongLong(found);
}

static PyObject* py_page_header(PyObject* self, PyObject* args) {
  Py_buffer data;
  PageHeader header;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*:page_header", &data)) return NULL;
  const uint8_t* begin = data.buf;
  Bytes bytes = {begin, begin + data.len};
  int is_read = read_page_header(&bytes, &header);
  long long num_bytes = bytes.at - begin, size = header.compressed_size, raw_size = header.uncompressed_size;
  PyBuffer_Release(&data);
  if (!is_read) Py_RETURN_NONE;
  int is_data = header.type == PAGE_DATA || header.type == PAGE_DATA_V2;
  long long num_levels = is_data && header.num_values > 0 ? header.num_values : 0;
  if (header.crc == NO_CRC) return Py_BuildValue("LLLLO", num_bytes, size, raw_size, num_levels, Py_None);
  return Py_BuildValue("LLLLI", num_bytes, size, raw_size, num_levels, (unsigned int)(uint32_t)header.crc);
}

static PyObject* py_first_beyond(PyObject* self, PyObject* args) {
  enum { CHUNKS, STOP, ROOM, COUNT };
  Py_buffer of[COUNT];
  int file;
  int64_t found = -1;
  (void)self;
  if (!PyArg_ParseTuple(args, "iy*y*w*:first_beyond", &file, &of[CHUNKS], &of[STOP], &of[ROOM])) return NULL;
  int64_t count = of[CHUNKS].len / (NUMBERS_OF_CHUNK * 8), *chunks = copied_numbers(&of[CHUNKS]);
  int fits = chunks && of[CHUNKS].len % (NUMBERS_OF_CHUNK * 8) == 0 && of[STOP].len && of[ROOM].len;
  for (int64_t i = 0; fits && i < count; i++) chunks[i * NUMBERS_OF_CHUNK + CODEC] = UNCOMPRESSED; /* any will do */
  fits = fits && chunks_fit(chunks, count);
  Py_BEGIN_ALLOW_THREADS
  if (fits) found = first_beyond(file, chunks, count, of[STOP].buf, of[ROOM].buf, of[ROOM].len);
  Py_END_ALLOW_THREADS
  PyMem_Free(chunks);
  release_all(of, COUNT);
  if (PyErr_Occurred()) return NULL;
  if (!fits) return wrong("expected five numbers of each chunk, none below 0, a byte to stop, and room");
  return PyLong_FromLongLong(found);
}

static PyObject* py_plan_columns(PyObject* self, PyObject* args) {
  enum { FOOTER, ROW_GROUPS, ROWS, COLUMNS, CHUNKS, COUNT };
  Py_buffer of[COUNT];
  long long num_leaves;
  WindowPlan plan;
  (void)self;
  memset(&plan, 0, sizeof plan);
  if (!PyArg_ParseTuple(args, "y*Ly*y*w*w*pp:plan_columns", &of[FOOTER], &num_leaves, &of[ROW_GROUPS], &of[ROWS], &of[COLUMNS], &of[CHUNKS],
                        &plan.is_together, &plan.is_ordered))
    return NULL;
  int64_t *row_groups = copied_numbers(&of[ROW_GROUPS]), *rows = copied_numbers(&of[ROWS]);
  const int64_t num_columns = of[COLUMNS].len / (NUMBERS_OF_COLUMN * 8);
  plan.footer = of[FOOTER].buf;
  plan.num_leaves = num_leaves;
  plan.row_groups = row_groups;
  plan.num_row_groups = of[ROWS].len / 8;
  int fits = row_groups && rows && num_leaves > 0 && num_leaves <= INT32_MAX && of[ROW_GROUPS].len == of[ROWS].len;
  fits = fits && is_aligned(&of[COLUMNS], 8) && is_aligned(&of[CHUNKS], 8) && of[COLUMNS].len % (NUMBERS_OF_COLUMN * 8) == 0;
  fits = fits && is_times(of[CHUNKS].len, num_columns, plan.num_row_groups * NUMBERS_OF_CHUNK * 8);
  if (fits) {
    plan.num_file_groups = of[FOOTER].len / (num_leaves * NUMBERS_OF_FOOTER * 8);
    plan.num_rows = num_rows_of(rows, plan.num_row_groups);
    fits = plan.num_rows >= 0 && plan_window(&plan, of[COLUMNS].buf, num_columns, of[CHUNKS].buf);
  }
  PyMem_Free(row_groups);
  PyMem_Free(rows);
  release_all(of, COUNT);
  if (PyErr_Occurred()) return NULL;
  if (!fits) return wrong("expected row groups and leaf columns of the footer, and aligned room for five numbers of each chunk");
  return Py_BuildValue("LL", (long long)plan.room_bytes, (long long)plan.memory_bytes);
}

/* Takes the columns that are to be decoded, from their numbers; how many, or -1 with an exception. */
static int64_t take_columns(const int64_t* numbers, int64_t count, int64_t num_rows, const int64_t* chunks, int64_t num_row_groups,
                            const Py_buffer* buffers, Py_ssize_t num_buffers, Column* columns) {
  int64_t taken = 0;
  for (int64_t i = 0; i < count; i++, numbers += NUMBERS_OF_COLUMN, chunks += num_row_groups * NUMBERS_OF_CHUNK) {
    const int64_t offsets_in = numbers[COLUMN_OFFSETS_IN], values_in = numbers[COLUMN_VALUES_IN];
    Column* const column = &columns[taken];
    if (numbers[COLUMN_FOUND] < 0) continue;
    column->chunks = chunks;
    column->number = i;
    column->beyond_bounds = -1;
    int fits = offsets_in >= 0 && offsets_in < num_buffers && values_in >= 0 && values_in < num_buffers && chunks_fit(chunks, num_row_groups);
    fits = fits && column_of(numbers, num_rows, begin_of(&buffers[offsets_in]), buffers[offsets_in].len,
                             begin_of(&buffers[values_in]), buffers[values_in].len, column);
    if (!fits) {
      wrong("expected columns of 4 or 8 bytes, with levels of a scalar or of a list, chunks of a file, and room in the buffers (aligned for "
            "offsets)");
      return -1;
    }
    taken++;
  }
  return taken;
}

/* Whether these are runs of rows, none of them empty, each after the one before. */
static int are_runs(const int64_t* runs, int64_t num_runs, int64_t num_rows) {
  int64_t end = 0;
  for (int64_t i = 0; i < num_runs; i++, runs += 2, end = runs[-1])
    if (runs[0] < end || runs[1] <= runs[0] || runs[1] > num_rows) return 0;
  return 1;
}

static PyObject* py_decode_columns(PyObject* self, PyObject* args) {
  enum { CHUNKS, ROWS, ORDER, KEPT, COLUMNS, ROOM, STOP, COUNT };
  Py_buffer of[COUNT];
  PyObject *tuple, *decompress;
  Work work;
  int num_threads, portable;
  (void)self;
  memset(&work, 0, sizeof work);
  if (!PyArg_ParseTuple(args, "iy*y*y*y*w*O!w*iy*pOp:decode_columns", &work.file, &of[CHUNKS], &of[ROWS], &of[ORDER], &of[KEPT],
                        &of[COLUMNS], &PyTuple_Type, &tuple, &of[ROOM], &num_threads, &of[STOP], &work.checks, &decompress, &portable))
    return NULL;
  work.is_wide = !portable && can_be_wide();
  const Py_ssize_t num_buffers = PyTuple_Size(tuple);
  const int64_t count = of[COLUMNS].len / (NUMBERS_OF_COLUMN * 8);
  Py_ssize_t taken = 0;
  Py_buffer* buffers = PyMem_Calloc((size_t)num_buffers + 1, sizeof *buffers);
  work.columns = PyMem_Calloc((size_t)count + 1, sizeof(Column));
  int64_t *rows = copied_numbers(&of[ROWS]), *chunks = copied_numbers(&of[CHUNKS]), *numbers = copied_numbers(&of[COLUMNS]);
  int64_t* kept = copied_numbers(&of[KEPT]);
  work.rows = rows;
  work.num_row_groups = of[ROWS].len / 8;
  const int64_t num_rows = rows ? num_rows_of(rows, work.num_row_groups) : -1;
  int fits = num_rows >= 0 && of[COLUMNS].len % (NUMBERS_OF_COLUMN * 8) == 0 && is_aligned(&of[COLUMNS], 8);
  fits = fits && is_times(of[CHUNKS].len, count, work.num_row_groups * NUMBERS_OF_CHUNK * 8);
  fits = fits && of[ORDER].len % 4 == 0 && of[ORDER].len / 4 <= num_rows;
  work.order = of[ORDER].len ? of[ORDER].buf : NULL;
  work.num_ordered = of[ORDER].len / 4;
  work.num_kept = of[KEPT].len / 16;
  work.kept = work.num_kept ? kept : NULL;
  fits = fits && kept && of[KEPT].len % 16 == 0 && !(work.order && work.kept) && are_runs(kept, work.num_kept, num_rows);
  if (!work.columns || !buffers || !rows || !chunks || !numbers || !kept) PyErr_NoMemory();
  else if (!fits || !of[STOP].len || num_threads < 1 || num_threads > MAX_THREADS)
    wrong("expected rows of each row group, no more than those in the order, or rising runs of them, the numbers of each column and of its "
          "chunk in each row group, a byte to stop, and 1 to 64 threads");
  else taken = take_writable(tuple, buffers);
  if (!PyErr_Occurred()) work.num_columns = take_columns(numbers, count, num_rows, chunks, work.num_row_groups, buffers, num_buffers, work.columns);
  if (!PyErr_Occurred()) {
    int64_t* const found = of[COLUMNS].buf;
    qsort(work.columns, (size_t)work.num_columns, sizeof(Column), is_later);
    work.room = of[ROOM].buf;
    work.room_bytes = of[ROOM].len / num_threads;
    work.stop = of[STOP].buf;
    work.decompress = decompress_in_python;
    work.by = decompress;
    Py_BEGIN_ALLOW_THREADS
    in_threads(decode_next, &work, num_threads);
    Py_END_ALLOW_THREADS
    for (int64_t i = 0; i < work.num_columns; i++)
      found[work.columns[i].number * NUMBERS_OF_COLUMN + COLUMN_FOUND] = outcome_of(&work.columns[i]);
  }
  if (buffers) release_all(buffers, taken);
  PyMem_Free(buffers);
  PyMem_Free(work.columns);
  PyMem_Free(rows);
  PyMem_Free(chunks);
  PyMem_Free(numbers);
  PyMem_Free(kept);
  release_all(of, COUNT);
  if (PyErr_Occurred()) return NULL;
  Py_RETURN_NONE;
}

/* What went wrong and where, both 0 where nothing did, and the rows of each table. */
static PyObject* walked(const Walk* walk, Py_ssize_t num_tables) {
  PyObject* found = PyTuple_New(num_tables + 2);
  for (Py_ssize_t i = 0; found && i < num_tables + 2; i++) {
    const Table* table = &walk->tables[i < 2 ? 0 : i - 2];
    Py_ssize_t num_bytes = walk->wrong ? 0 : (Py_ssize_t)(table->num_rows * table->width * 8);
    PyObject* item = i < 2 ? PyLong_FromLongLong(!walk->wrong ? 0 : i ? walk->wrong_at : walk->wrong)
                           : PyBytes_FromStringAndSize((const char*)table->numbers, num_bytes);
    if (!item || PyTuple_SetItem(found, i, item) < 0) {
      Py_DECREF(found);
      found = NULL;
    }
  }
  return found;
}

static PyObject* py_walk_footer(PyObject* self, PyObject* args) {
  enum { DATA, WIDTHS, STRUCTS, FIELDS, COUNT };
  Py_buffer of[COUNT];
  PyObject* found = NULL;
  Walk walk;
  (void)self;
  memset(&walk, 0, sizeof walk);
  if (!PyArg_ParseTuple(args, "y*y*y*y*:walk_footer", &of[DATA], &of[WIDTHS], &of[STRUCTS], &of[FIELDS])) return NULL;
  const int64_t* widths = of[WIDTHS].buf;
  Py_ssize_t num_tables = of[WIDTHS].len / 8;
  int fits = num_tables <= MOST_TABLES && is_aligned(&of[WIDTHS], 8);
  fits = fits && is_aligned(&of[STRUCTS], 8) && is_aligned(&of[FIELDS], 8);
  for (Py_ssize_t i = 0; fits && i < num_tables; i++) walk.tables[i].width = widths[i];
  walk.structs = of[STRUCTS].buf;
  walk.fields = of[FIELDS].buf;
  fits = fits && plan_fits(&walk, of[STRUCTS].len / 8 / NUMBERS_OF_STRUCT, of[FIELDS].len / 8 / NUMBERS_OF_FIELD);
  walk.first = walk.bytes.at = of[DATA].buf;
  walk.bytes.end = walk.first + of[DATA].len;
  PyThreadState* const others = of[DATA].len < FEW_BYTES ? NULL : PyEval_SaveThread();
  if (fits) walk_struct(&walk, walk.structs, -1);
  if (others) PyEval_RestoreThread(others);
  if (!fits) wrong("expected a plan whose structs, fields and slots are within it");
  else if (walk.wrong == NO_MEMORY) PyErr_NoMemory();
  else found = walked(&walk, num_tables);
  for (Py_ssize_t i = 0; i < MOST_TABLES; i++) free(walk.tables[i].numbers);
  release_all(of, COUNT);
  return found;
}

static PyObject* py_permute(PyObject* self, PyObject* args) {
  enum { ENTROPY, ORDER, COUNT };
  Py_buffer of[COUNT];
  (void)self;
  if (!PyArg_ParseTuple(args, "y*w*:permute", &of[ENTROPY], &of[ORDER])) return NULL;
  const int fits = of[ENTROPY].len % 4 == 0 && of[ORDER].len % 8 == 0 && is_aligned(&of[ORDER], 8);
  int has_memory = 1;
  Py_BEGIN_ALLOW_THREADS
  if (fits) has_memory = permute(of[ENTROPY].buf, of[ENTROPY].len / 4, of[ORDER].buf, of[ORDER].len / 8);
  Py_END_ALLOW_THREADS
  release_all(of, COUNT);
  if (!fits) return wrong("expected whole words of 4 bytes, and aligned room for whole numbers of 8");
  if (!has_memory) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

static PyObject* py_draw_rows(PyObject* self, PyObject* args) {
  enum { ENTROPY, STREAMS, DRAWS, SHARES, COUNT };
  Py_buffer of[COUNT];
  long long num_shares;
  Drawn found = {-1, 0, 0};
  (void)self;
  if (!PyArg_ParseTuple(args, "y*w*w*w*L:draw_rows", &of[ENTROPY], &of[STREAMS], &of[DRAWS], &of[SHARES], &num_shares)) return NULL;
  const int64_t num_streams = of[STREAMS].len / (8 * NUMBERS_OF_STREAM);
  int64_t room = of[SHARES].len / (8 * NUMBERS_OF_SHARE);
  if (room > MOST_SHARES) room = MOST_SHARES;
  const int fits = of[ENTROPY].len % 4 == 0 && of[STREAMS].len % (8 * NUMBERS_OF_STREAM) == 0 && num_streams > 0 &&
                   num_streams <= MOST_SHARES && num_shares >= 0 && num_shares <= room && is_aligned(&of[STREAMS], 8) &&
                   is_aligned(&of[DRAWS], 2) && is_aligned(&of[SHARES], 8);
  Py_BEGIN_ALLOW_THREADS
  if (fits)
    found = draw_rows(of[ENTROPY].buf, of[ENTROPY].len / 4, of[STREAMS].buf, num_streams, of[DRAWS].buf, of[DRAWS].len / 2,
                      of[SHARES].buf, room, num_shares);
  Py_END_ALLOW_THREADS
  release_all(of, COUNT);
  if (found.num_rows < 0) return wrong("expected 1 to 65,536 streams with rows, shares that there are, and aligned room");
  return Py_BuildValue("LLL", (long long)found.num_rows, (long long)found.num_shares, (long long)found.ended);
}

/* A share as `(rows, row_bits, first_piece, passes, source)`. 0 with an exception, if it cannot be taken. */
static int take_share(PyObject* item, int row_bits, Py_buffer* of, Share* share) {
  enum { ROWS, PASSES };
  long long first_piece;
  if (!PyTuple_Check(item)) return wrong("expected shares as tuples") != NULL;
  if (!PyArg_ParseTuple(item, "y*iLy*i:place_rows", &of[ROWS], &share->row_bits, &first_piece, &of[PASSES], &share->source)) return 0;
  share->rows = of[ROWS].buf;
  share->num_rows = of[ROWS].len / 4;
  share->passes = of[PASSES].len ? of[PASSES].buf : NULL;
  share->first_piece = first_piece;
  if (share->row_bits < 0 || share->row_bits > row_bits || first_piece < 0 || first_piece > UINT32_MAX ||
      (share->passes && of[PASSES].len < share->num_rows))
    wrong("expected rows of at most as many bits, a piece, and whether each row passes");
  return 1;
}

static PyObject* py_place_rows(PyObject* self, PyObject* args) {
  enum { DRAWS, WAITING, PLACES, SOURCES, PASSES, COUNT };
  Py_buffer of[COUNT];
  PyObject* tuple;
  int row_bits;
  int64_t placed = -1;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*O!y*iw*w*w*:place_rows", &of[DRAWS], &PyTuple_Type, &tuple, &of[WAITING], &row_bits, &of[PLACES],
                        &of[SOURCES], &of[PASSES]))
    return NULL;
  const int64_t num_drawn = of[DRAWS].len / 2;
  const Py_ssize_t num_shares = PyTuple_Size(tuple);
  Share* const shares = PyMem_Calloc((size_t)num_shares + 1, sizeof(Share));
  Py_buffer* const buffers = PyMem_Calloc((size_t)num_shares + 1, 2 * sizeof(Py_buffer));
  int64_t* const next = PyMem_Calloc((size_t)num_shares + 1, sizeof(int64_t));
  Py_ssize_t num_taken = 0;
  const int fits = row_bits >= 0 && row_bits < 32 && of[SOURCES].len == num_drawn * 4 && of[PASSES].len == num_drawn &&
                   is_aligned(&of[DRAWS], 2) && is_aligned(&of[PLACES], 4) && is_aligned(&of[SOURCES], 4);
  if (!shares || !buffers || !next) PyErr_NoMemory();
  while (!PyErr_Occurred() && num_taken < num_shares &&
         take_share(PyTuple_GetItem(tuple, num_taken), row_bits, &buffers[2 * num_taken], &shares[num_taken]))
    num_taken++;
  const int are_taken = !PyErr_Occurred();
  Py_BEGIN_ALLOW_THREADS
  if (fits && are_taken)
    placed = place_rows(of[DRAWS].buf, num_drawn, shares, num_shares, next, of[WAITING].buf, of[WAITING].len / 8, row_bits,
                        of[PLACES].buf, of[PLACES].len / 4, of[SOURCES].buf, of[PASSES].buf);
  Py_END_ALLOW_THREADS
  release_all(buffers, 2 * num_taken);
  PyMem_Free(shares);
  PyMem_Free(buffers);
  PyMem_Free(next);
  release_all(of, COUNT);
  if (!are_taken) return NULL;
  if (placed < 0) return wrong("expected draws of shares, as many as each has rows, places of 32 bits, and aligned room for all of them");
  return PyLong_FromLongLong(placed);
}

static PyObject* py_number_sources(PyObject* self, PyObject* args) {
  enum { SOURCES, PASSES, ENDS, FOUND, NUM_FOUND, PLACES, COUNT };
  Py_buffer of[COUNT];
  long long num_sources;
  int64_t found = -1;
  (void)self;
  if (!PyArg_ParseTuple(args, "w*y*y*Lw*w*w*:number_sources", &of[SOURCES], &of[PASSES], &of[ENDS], &num_sources, &of[FOUND], &of[NUM_FOUND],
                        &of[PLACES]))
    return NULL;
  const int fits = num_sources >= 0 && num_sources <= INT32_MAX && of[NUM_FOUND].len == of[ENDS].len && is_aligned(&of[SOURCES], 4) &&
                   is_aligned(&of[FOUND], 4) && is_aligned(&of[NUM_FOUND], 8) && is_aligned(&of[PLACES], 8) &&
                   (!of[PASSES].len || of[PASSES].len == of[SOURCES].len / 4);
  SourceState* const states = PyMem_Calloc(fits ? (size_t)num_sources + 1 : 1, sizeof(SourceState));
  Py_BEGIN_ALLOW_THREADS
  if (fits && states) {
    NumberedSources to = {of[FOUND].buf, of[FOUND].len / 12, of[NUM_FOUND].buf, of[PLACES].buf, of[PLACES].len / 8};
    found = number_sources(of[SOURCES].buf, of[PASSES].len ? of[PASSES].buf : NULL, of[SOURCES].len / 4, of[ENDS].buf, of[ENDS].len / 8, states,
                           num_sources, &to);
  }
  Py_END_ALLOW_THREADS
  PyMem_Free(states);
  release_all(of, COUNT);
  if (!states) return PyErr_NoMemory();
  if (found < 0) return wrong("expected sources that there are, rising ends up to all rows, and aligned room for what is found");
  return PyLong_FromLongLong(found);
}

/* Which check is not passed, 0 where all are, and of which row group and leaf column. */
static PyObject* py_check_chunks(PyObject* self, PyObject* args) {
  enum { GROUPS, CHUNKS, LAYOUT, RANGES, LOW, HIGH, LEVELS, TAKEN, COUNT };
  Py_buffer of[COUNT];
  long long group_width, chunk_width, num_rows, end;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*LLy*y*y*y*y*LLw*:check_chunks", &of[GROUPS], &of[CHUNKS], &group_width, &chunk_width, &of[LAYOUT],
                        &of[RANGES], &of[LOW], &of[HIGH], &of[LEVELS], &num_rows, &end, &of[TAKEN]))
    return NULL;
  int64_t *layout = copied_numbers(&of[LAYOUT]), *ranges = copied_numbers(&of[RANGES]);
  int fits = layout && ranges && group_width > 0 && group_width <= MOST_TABLE_WIDTH && chunk_width > 0 && chunk_width <= MOST_TABLE_WIDTH &&
             of[GROUPS].len % (group_width * 8) == 0 && of[LAYOUT].len == NUMBERS_OF_LAYOUT * 8 && of[RANGES].len % 16 == 0 &&
             of[LEVELS].len % 24 == 0 && end >= 0 && is_aligned(&of[TAKEN], 8);
  ChunkChecks checks;
  memset(&checks, 0, sizeof checks);
  if (fits) {
    ChunkChecks found = {of[GROUPS].buf, of[CHUNKS].buf, of[GROUPS].len / 8 / group_width, group_width, of[LEVELS].len / 24, chunk_width,
                         layout, ranges, of[RANGES].len / 16, of[LOW].buf, of[HIGH].buf, of[LEVELS].buf, num_rows, end, 0, 0, 0};
    checks = found;
    const int64_t num_chunks = of[TAKEN].len / 8 / NUMBERS_TAKEN;
    fits = layout_fits(&checks) && of[LOW].len == of[HIGH].len && of[LOW].len == checks.num_leaves * checks.num_ranges * 8;
    /* Few chunks take less time than to get the interpreter's lock back. */
    PyThreadState* const others = of[CHUNKS].len < FEW_BYTES ? NULL : PyEval_SaveThread();
    if (fits && groups_fit(&checks)) {
      fits = of[CHUNKS].len == num_chunks * chunk_width * 8 && of[TAKEN].len == num_chunks * NUMBERS_TAKEN * 8 &&
             (checks.num_leaves ? num_chunks % checks.num_leaves == 0 && num_chunks / checks.num_leaves == checks.num_groups
                                : num_chunks == 0);
      if (fits) check_chunks(&checks, of[TAKEN].buf);
    }
    if (others) PyEval_RestoreThread(others);
  }
  PyMem_Free(layout);
  PyMem_Free(ranges);
  release_all(of, COUNT);
  if (PyErr_Occurred()) return NULL;
  if (!fits) return wrong("expected a layout within the rows of the tables, bounds of each range and leaf column, and aligned room");
  return Py_BuildValue("LLL", (long long)checks.wrong, (long long)checks.group, (long long)checks.leaf);
}

static PyMethodDef functions[] = {
    {"hash_texts", py_hash_texts, METH_VARARGS, "hash_texts(data, offsets, hashes, seed, portable): XXH64 of byte ranges."},
    {"chain_texts", py_chain_texts, METH_VARARGS, "chain_texts(data, offsets, hashes): XXH64 of byte ranges, with a seed each."},
    {"hash_decimals", py_hash_decimals, METH_VARARGS, "hash_decimals(values, hashes, seed, known): XXH64 of decimal texts."},
    {"sign_rows", py_sign_rows, METH_VARARGS, "sign_rows(members, signs, seed, portable): members chained, 63 bits, never 0."},
    {"count_marks", py_count_marks, METH_VARARGS, "count_marks(values, width): bits that the values mark."},
    {"count_ids", py_count_ids, METH_VARARGS, "count_ids(values, weights, table, num_known, firsts): known, read, new."},
    {"mark_values", py_mark_values, METH_VARARGS, "mark_values(values, width, bits, bound, small): missing and small ones."},
    {"fill_nulls", py_fill_nulls, METH_VARARGS, "fill_nulls(values, bits, first_bit, mark): the mark where no bit is set."},
    {"bucket_ids", py_bucket_ids, METH_VARARGS, "bucket_ids(ids, num_remainders, buckets): 0 of 0, else 1 + remainder."},
    {"lists_without_nulls", py_lists_without_nulls, METH_VARARGS, "Null elements dropped, null lists as one mark."},
    {"copy_ranges", py_copy_ranges, METH_VARARGS, "copy_ranges(values, width, starts, lengths, out): ranges of values, joined."},
    {"history_ranges", py_history_ranges, METH_VARARGS, "The checked ranges of rows in the lists of their holders."},
    {"rebase_offsets", py_rebase_offsets, METH_VARARGS, "Offsets of consecutive parts, each from 0."},
    {"pack_parts", py_pack_parts, METH_VARARGS, "Buffers, and offsets from 0, at their places in one buffer."},
    {"gather_columns", py_gather_columns, METH_VARARGS, "Rows of columns in any order to the parts of buffers, in threads."},
    {"gather_offsets", py_gather_offsets, METH_VARARGS, "The offsets that gathered lists have in their parts."},
    {"permute", py_permute, METH_VARARGS, "permute(entropy, order): a seeded order of rows."},
    {"draw_rows", py_draw_rows, METH_VARARGS, "The next rows of open streams, until a window has none left."},
    {"place_rows", py_place_rows, METH_VARARGS, "Where drawn rows lie, and their sources."},
    {"number_sources", py_number_sources, METH_VARARGS, "The sources of the rows of each part, numbered anew."},
    {"crc32", py_crc32, METH_VARARGS, "crc32(data, before, portable): the CRC-32 that zlib gives."},
    {"crc32_of_values", py_crc32_of_values, METH_O, "The CRC-32 of texts, bytes, numbers and None, with their types."},
    {"first_damaged", py_first_damaged, METH_VARARGS, "The first column chunk with a page that is not what was written."},
    {"walk_footer", py_walk_footer, METH_VARARGS, "Structs of Thrift's compact protocol as rows of numbers."},
    {"check_chunks", py_check_chunks, METH_VARARGS, "Checks of a footer's column chunks, and the numbers that readers need."},
    {"page_header", py_page_header, METH_VARARGS, "The page header with which bytes begin."},
    {"first_beyond", py_first_beyond, METH_VARARGS, "The first column chunk whose pages claim more than they may."},
    {"plan_columns", py_plan_columns, METH_VARARGS, "The chunks of columns, where they go, and what memory that takes."},
    {"decode_columns", py_decode_columns, METH_VARARGS, "Values and list offsets of the column chunks of a file."},
    {"untrack", py_untrack, METH_O, "Objects of a tuple that the collector need not look at."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "kernels",
    .m_doc = "Kernels over buffers; see the headers of the same folder.",
    .m_size = 0,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit_kernels(void) { return PyModuleDef_Init(&module); }
