/* The kernels as a Python module, on anything that has a buffer (numpy arrays, Arrow buffers).

   Each function of buffers checks that lengths and offsets fit, raises ValueError where they do not, and works without the
   interpreter's lock. Buffers are contiguous; those that numbers are written to are aligned to them, and overlap nothing that is
   read. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "chunks.h"
#include "distinct.h"
#include "footer.h"
#include "marks.h"
#include "rows.h"
#include "xxh64.h"

#define MAX_MEMBERS 64
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
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*w*K:hash_texts", &data, &offsets, &hashes, &seed)) return NULL;
  int64_t num_texts = hashes.len / 8;
  int fits = hashes.len % 8 == 0 && is_aligned(&hashes, 8) && offsets.len == (num_texts + 1) * 4;
  Py_BEGIN_ALLOW_THREADS
  fits = fits && hash_texts(data.buf, data.len, offsets.buf, num_texts, seed, hashes.buf);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&data);
  PyBuffer_Release(&offsets);
  PyBuffer_Release(&hashes);
  if (!fits) return wrong("expected one int32 offset more than aligned hashes, never falling and within the data");
  Py_RETURN_NONE;
}

static PyObject* py_hash_decimals(PyObject* self, PyObject* args) {
  Py_buffer values, hashes;
  unsigned long long seed;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*w*K:hash_decimals", &values, &hashes, &seed)) return NULL;
  int fits = values.len == hashes.len && values.len % 8 == 0 && is_aligned(&hashes, 8);
  Py_BEGIN_ALLOW_THREADS
  if (fits) hash_decimals(values.buf, values.len / 8, seed, hashes.buf);
  Py_END_ALLOW_THREADS
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

static int is_width(int width) { return width == 4 || width == 8; }

/* Whether a bitmap holds `count` bits from `first` on; one of no bytes stands for none being null. */
static int bits_fit(const Py_buffer* bits, int64_t first, int64_t count) {
  return !bits->len || (first >= 0 && first <= (int64_t)bits->len * 8 - count);
}

static void release_all(Py_buffer* buffers, Py_ssize_t count) {
  for (Py_ssize_t i = 0; i < count; i++) PyBuffer_Release(&buffers[i]);
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

/* The pieces of a column that is gathered, with the buffers that hold them. */
typedef struct {
  Piece* pieces;
  Py_buffer* buffers; /* of values, and after them of offsets */
  Py_ssize_t count, num_taken;
} Pieces;

static void release_pieces(Pieces* of) {
  release_all(of->buffers, of->num_taken);
  PyMem_Free(of->buffers);
  PyMem_Free(of->pieces);
}

/* Takes the pieces of a column: a tuple of buffers of values, and one of as many buffers of offsets, or NULL if no offsets are
   needed. 0 with an exception, if they cannot be taken; they have to be released in any case. */
static int take_pieces(PyObject* values, int64_t width, PyObject* offsets, int offset_width, Pieces* of) {
  const Py_ssize_t count = PyTuple_Size(values), num_offsets = offsets ? PyTuple_Size(offsets) : 0;
  of->num_taken = 0;
  of->count = count;
  of->pieces = PyMem_Calloc((size_t)count + 1, sizeof(Piece));
  of->buffers = PyMem_Calloc((size_t)(count + num_offsets) + 1, sizeof(Py_buffer));
  if (!of->pieces || !of->buffers) return PyErr_NoMemory() != NULL;
  if (!count || width <= 0 || !is_width(offset_width) || (offsets && num_offsets != count)) return wrong(NOT_GATHERED) != NULL;
  for (Py_ssize_t i = 0; i < count + num_offsets; i++, of->num_taken++) {
    PyObject* const one = i < count ? PyTuple_GetItem(values, i) : PyTuple_GetItem(offsets, i - count);
    if (PyObject_GetBuffer(one, &of->buffers[i], PyBUF_SIMPLE) < 0) return 0;
  }
  for (Py_ssize_t i = 0; i < count; i++) {
    Piece* const piece = &of->pieces[i];
    piece->values = of->buffers[i].buf;
    piece->num_rows = piece->num_values = of->buffers[i].len / width;
    if (!offsets) continue;
    piece->offsets = of->buffers[count + i].buf;
    piece->num_rows = of->buffers[count + i].len / offset_width - 1;
  }
  return 1;
}

static Gather gather_of(const Pieces* pieces, const Py_buffer* rows, int row_bits, int ascends, const Py_buffer* cuts) {
  Gather gather = {.pieces = pieces->pieces, .num_pieces = pieces->count, .rows = rows->buf, .row_bits = row_bits,
                   .num_rows = rows->len / 4, .cuts = cuts->buf, .num_parts = cuts->len / 8 - 1, .ascends = ascends};
  return gather;
}

static PyObject* py_gather_offsets(PyObject* self, PyObject* args) {
  enum { ROWS, CUTS, FIRSTS, OUT, COUNT };
  Py_buffer of[COUNT];
  PyObject *values, *offsets;
  Pieces pieces;
  long long width;
  int offset_width, row_bits, ascends;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!LO!iy*ipy*w*w*:gather_offsets", &PyTuple_Type, &values, &width, &PyTuple_Type, &offsets,
                        &offset_width, &of[ROWS], &row_bits, &ascends, &of[CUTS], &of[FIRSTS], &of[OUT]))
    return NULL;
  const int are_taken = take_pieces(values, width, offsets, offset_width, &pieces);
  int fits = are_taken && row_bits >= 0 && row_bits < 32 && of[CUTS].len >= 8 && of[OUT].len == of[ROWS].len * 2 + of[CUTS].len - 8 && is_aligned(&of[OUT], 8) &&
             of[FIRSTS].len == of[ROWS].len * 2 && is_aligned(&of[FIRSTS], 8);
  if (fits) {
    const Gather gather = gather_of(&pieces, &of[ROWS], row_bits, ascends, &of[CUTS]);
    Py_BEGIN_ALLOW_THREADS
    fits = gather_offsets(&gather, offset_width, of[FIRSTS].buf, of[OUT].buf);
    Py_END_ALLOW_THREADS
  }
  release_pieces(&pieces);
  release_all(of, COUNT);
  if (!are_taken) return NULL;
  if (!fits) return wrong(NOT_GATHERED);
  Py_RETURN_NONE;
}

enum { STARTS_OF, OUT_OF, FIRSTS_OF, OFFSETS_OF, ENDS_OF, NUM_BUFFERS_OF };

/* What is held of a column while it is gathered. */
typedef struct {
  Pieces pieces;
  Py_buffer of[NUM_BUFFERS_OF];
  Py_ssize_t num_taken;
} Held;

/* Takes a column: `(values, width, starts, out)`, and of lists also `firsts, offsets, ends`. 0 with an exception, if it cannot be taken;
   what is held has to be released in any case. */
static int take_gathered(PyObject* item, const Py_buffer* rows, int row_bits, int ascends, const Py_buffer* cuts, Held* held,
                         GatheredColumn* column) {
  PyObject *values, *objects[NUM_BUFFERS_OF] = {NULL};
  long long width;
  if (!PyTuple_Check(item)) return wrong("expected columns as tuples") != NULL;
  if (!PyArg_ParseTuple(item, "O!LOO|OOO:gather_columns", &PyTuple_Type, &values, &width, &objects[STARTS_OF], &objects[OUT_OF],
                        &objects[FIRSTS_OF], &objects[OFFSETS_OF], &objects[ENDS_OF]))
    return 0;
  const int num_buffers = objects[ENDS_OF] ? NUM_BUFFERS_OF : FIRSTS_OF;
  if (!objects[ENDS_OF] && objects[FIRSTS_OF]) return wrong(NOT_GATHERED) != NULL;
  if (!take_pieces(values, width, NULL, 8, &held->pieces)) return 0;
  for (; held->num_taken < num_buffers; held->num_taken++)
    if (PyObject_GetBuffer(objects[held->num_taken], &held->of[held->num_taken],
                           held->num_taken == OUT_OF ? PyBUF_WRITABLE : PyBUF_SIMPLE) < 0)
      return 0;
  const Py_buffer* const of = held->of;
  int fits = of[STARTS_OF].len == cuts->len - 8;
  if (objects[ENDS_OF])
    fits = fits && of[ENDS_OF].len == of[STARTS_OF].len && of[FIRSTS_OF].len == rows->len * 2 &&
           of[OFFSETS_OF].len == rows->len * 2 + cuts->len - 8;
  if (!fits) return wrong(NOT_GATHERED) != NULL;
  column->gather = gather_of(&held->pieces, rows, row_bits, ascends, cuts);
  column->width = width;
  column->starts = of[STARTS_OF].buf;
  column->out = of[OUT_OF].buf;
  column->out_bytes = of[OUT_OF].len;
  column->firsts = objects[ENDS_OF] ? of[FIRSTS_OF].buf : NULL;
  column->offsets = of[OFFSETS_OF].buf;
  column->ends = of[ENDS_OF].buf;
  return 1;
}

static PyObject* py_gather_columns(PyObject* self, PyObject* args) {
  enum { ROWS, CUTS, COUNT };
  Py_buffer of[COUNT];
  PyObject* tuple;
  int row_bits, ascends, num_threads;
  (void)self;
  if (!PyArg_ParseTuple(args, "O!y*ipy*i:gather_columns", &PyTuple_Type, &tuple, &of[ROWS], &row_bits, &ascends, &of[CUTS], &num_threads))
    return NULL;
  const Py_ssize_t count = PyTuple_Size(tuple);
  Py_ssize_t taken = 0;
  GatherWork work = {PyMem_Calloc((size_t)count + 1, sizeof(GatheredColumn)), count, 0};
  Held* held = PyMem_Calloc((size_t)count + 1, sizeof *held);
  if (!work.columns || !held) PyErr_NoMemory();
  else if (row_bits < 0 || row_bits > 31 || of[CUTS].len < 8 || num_threads < 1 || num_threads > MAX_THREADS) wrong(NOT_GATHERED);
  while (!PyErr_Occurred() && taken < count) {
    take_gathered(PyTuple_GetItem(tuple, taken), &of[ROWS], row_bits, ascends, &of[CUTS], &held[taken], &work.columns[taken]);
    taken++; /* also what is taken of one that cannot be is released */
  }
  if (!PyErr_Occurred()) {
    Py_BEGIN_ALLOW_THREADS
    in_threads(gather_next, &work, num_threads);
    Py_END_ALLOW_THREADS
    for (Py_ssize_t i = 0; i < count && !PyErr_Occurred(); i++)
      if (!work.columns[i].is_gathered) wrong(NOT_GATHERED);
  }
  for (Py_ssize_t i = 0; i < taken; i++) {
    release_pieces(&held[i].pieces);
    release_all(held[i].of, held[i].num_taken);
  }
  PyMem_Free(held);
  PyMem_Free(work.columns);
  release_all(of, COUNT);
  if (PyErr_Occurred()) return NULL;
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

/* A column as `(mark, max_repetition, max_definition, null_below, offsets, values)`, with room for all rows. */
static int take_column(PyObject* item, int64_t num_rows, Py_buffer* buffers, Column* column) {
  enum { MARK, OFFSETS, VALUES };
  ColumnOut* out = &column->out;
  if (!PyTuple_Check(item)) {
    wrong("expected columns as tuples");
    return 0;
  }
  if (!PyArg_ParseTuple(item, "y*iiiw*w*:decode_columns", &buffers[MARK], &out->max_repetition, &out->max_definition,
                        &out->null_below, &buffers[OFFSETS], &buffers[VALUES]))
    return 0;
  int is_list = out->max_repetition == 1 && out->max_definition >= 1;
  out->mark = buffers[MARK].buf;
  out->width = (int)buffers[MARK].len;
  out->offsets = buffers[OFFSETS].buf;
  out->values = buffers[VALUES].buf;
  int fits = is_width(out->width) && (is_list || !out->max_repetition) && out->max_definition >= 0 && out->max_definition <= 3;
  fits = fits && out->null_below >= 0 && out->null_below <= 3;
  fits = fits && (is_list ? buffers[OFFSETS].len / 4 > num_rows : !buffers[OFFSETS].len) && is_aligned(&buffers[OFFSETS], 4);
  out->capacity = fits ? buffers[VALUES].len / out->width : 0;
  if (!fits || out->capacity > INT32_MAX)
    wrong("expected a mark of 4 or 8 bytes, levels of a scalar or of a list, and aligned room for its offsets");
  return 1;
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

/* How many values each column has, -1 where it is not read, or -2 - i where its chunk in row group i is beyond its bounds. */
static long long outcome_of(const Column* column) {
  if (column->is_decoded) return column->out.at;
  return column->beyond_bounds < 0 ? -1 : -2 - column->beyond_bounds;
}

static PyObject* num_values_of(const Column* columns, Py_ssize_t count) {
  PyObject* found = PyTuple_New(count);
  for (Py_ssize_t i = 0; found && i < count; i++) {
    PyObject* item = PyLong_FromLongLong(outcome_of(&columns[i]));
    if (!item || PyTuple_SetItem(found, i, item) < 0) {
      Py_DECREF(found);
      found = NULL;
    }
  }
  return found;
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

/* A copy of numbers that say where memory is read or written, so that no other thread changes them; NULL with an error. */
static int64_t* copied_numbers(const Py_buffer* numbers) {
  int64_t* copy = PyMem_Malloc((size_t)numbers->len + 1);
  if (copy) memcpy(copy, numbers->buf, (size_t)numbers->len);
  else PyErr_NoMemory();
  return copy;
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

static PyObject* py_decode_columns(PyObject* self, PyObject* args) {
  enum { CHUNKS, ROWS, ORDER, ROOM, STOP, COUNT, PER_COLUMN = 3 };
  Py_buffer of[COUNT];
  PyObject *tuple, *found = NULL;
  Work work;
  int num_threads, portable;
  (void)self;
  memset(&work, 0, sizeof work);
  PyObject* decompress;
  if (!PyArg_ParseTuple(args, "iy*y*y*O!w*iy*pOp:decode_columns", &work.file, &of[CHUNKS], &of[ROWS], &of[ORDER], &PyTuple_Type, &tuple,
                        &of[ROOM], &num_threads, &of[STOP], &work.checks, &decompress, &portable))
    return NULL;
  work.is_wide = !portable && can_be_wide();
  Py_ssize_t count = PyTuple_Size(tuple), taken = 0;
  work.columns = PyMem_Calloc((size_t)count + 1, sizeof(Column));
  Py_buffer* buffers = PyMem_Calloc((size_t)count * PER_COLUMN + 1, sizeof *buffers);
  int64_t *rows = copied_numbers(&of[ROWS]), *chunks = copied_numbers(&of[CHUNKS]);
  work.rows = rows;
  work.num_columns = count;
  work.num_row_groups = of[ROWS].len / 8;
  int64_t num_rows = rows ? num_rows_of(rows, work.num_row_groups) : -1, num_chunks = count * work.num_row_groups;
  int fits = num_rows >= 0 && of[CHUNKS].len == num_chunks * NUMBERS_OF_CHUNK * 8 && chunks && chunks_fit(chunks, num_chunks);
  fits = fits && (!of[ORDER].len || of[ORDER].len == num_rows * 4);
  work.order = of[ORDER].len ? of[ORDER].buf : NULL;
  if (!work.columns || !buffers || !rows || !chunks) PyErr_NoMemory();
  else if (!fits || !of[STOP].len || num_threads < 1 || num_threads > MAX_THREADS)
    wrong("expected rows of each row group, all of them in the order if there is one, five numbers of each column's chunk in it, a "
          "byte to stop, and 1 to 64 threads");
  for (; !PyErr_Occurred() && taken < count; taken++) {
    Column* column = &work.columns[taken];
    column->chunks = chunks + taken * work.num_row_groups * NUMBERS_OF_CHUNK;
    column->beyond_bounds = -1;
    if (!take_column(PyTuple_GetItem(tuple, taken), num_rows, buffers + taken * PER_COLUMN, column)) break;
  }
  if (!PyErr_Occurred()) {
    work.room = of[ROOM].buf;
    work.room_bytes = of[ROOM].len / num_threads;
    work.stop = of[STOP].buf;
    work.decompress = decompress_in_python;
    work.by = decompress;
    Py_BEGIN_ALLOW_THREADS
    in_threads(decode_next, &work, num_threads);
    Py_END_ALLOW_THREADS
    found = num_values_of(work.columns, count);
  }
  if (buffers) release_all(buffers, taken * PER_COLUMN);
  PyMem_Free(buffers);
  PyMem_Free(work.columns);
  PyMem_Free(rows);
  PyMem_Free(chunks);
  release_all(of, COUNT);
  return found;
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
  Py_BEGIN_ALLOW_THREADS
  if (fits) walk_struct(&walk, walk.structs, -1);
  Py_END_ALLOW_THREADS
  if (!fits) wrong("expected a plan whose structs, fields and slots are within it");
  else if (walk.wrong == NO_MEMORY) PyErr_NoMemory();
  else found = walked(&walk, num_tables);
  for (Py_ssize_t i = 0; i < MOST_TABLES; i++) free(walk.tables[i].numbers);
  release_all(of, COUNT);
  return found;
}

static PyMethodDef functions[] = {
    {"hash_texts", py_hash_texts, METH_VARARGS, "hash_texts(data, offsets, hashes, seed): XXH64 of byte ranges."},
    {"hash_decimals", py_hash_decimals, METH_VARARGS, "hash_decimals(values, hashes, seed): XXH64 of decimal texts."},
    {"sign_rows", py_sign_rows, METH_VARARGS, "sign_rows(members, signs, seed, portable): members chained, 63 bits, never 0."},
    {"count_marks", py_count_marks, METH_VARARGS, "count_marks(values, width): bits that the values mark."},
    {"count_ids", py_count_ids, METH_VARARGS, "count_ids(values, weights, table, num_known, firsts): known, read, new."},
    {"mark_values", py_mark_values, METH_VARARGS, "mark_values(values, width, bits, bound, small): missing and small ones."},
    {"fill_nulls", py_fill_nulls, METH_VARARGS, "fill_nulls(values, bits, first_bit, mark): the mark where no bit is set."},
    {"bucket_ids", py_bucket_ids, METH_VARARGS, "bucket_ids(ids, num_remainders, buckets): 0 of 0, else 1 + remainder."},
    {"lists_without_nulls", py_lists_without_nulls, METH_VARARGS, "Null elements dropped, null lists as one mark."},
    {"rebase_offsets", py_rebase_offsets, METH_VARARGS, "Offsets of consecutive parts, each from 0."},
    {"pack_parts", py_pack_parts, METH_VARARGS, "Buffers, and offsets from 0, at their places in one buffer."},
    {"gather_columns", py_gather_columns, METH_VARARGS, "Rows of columns in any order to the parts of buffers, in threads."},
    {"gather_offsets", py_gather_offsets, METH_VARARGS, "The offsets that gathered lists have in their parts."},
    {"crc32", py_crc32, METH_VARARGS, "crc32(data, before, portable): the CRC-32 that zlib gives."},
    {"crc32_of_values", py_crc32_of_values, METH_O, "The CRC-32 of texts, bytes, numbers and None, with their types."},
    {"first_damaged", py_first_damaged, METH_VARARGS, "The first column chunk with a page that is not what was written."},
    {"walk_footer", py_walk_footer, METH_VARARGS, "Structs of Thrift's compact protocol as rows of numbers."},
    {"page_header", py_page_header, METH_VARARGS, "The page header with which bytes begin."},
    {"first_beyond", py_first_beyond, METH_VARARGS, "The first column chunk whose pages claim more than they may."},
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
