/* The kernels as a Python module, on anything that has a buffer (numpy arrays, Arrow buffers).

   Each function checks that lengths and offsets fit, raises ValueError where they do not, and works without the interpreter's
   lock. Buffers are contiguous and aligned to their elements; what is written to overlaps nothing that is read. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "distinct.h"
#include "marks.h"
#include "xxh64.h"

#define MAX_MEMBERS 64

static PyObject* wrong(const char* what) {
  PyErr_SetString(PyExc_ValueError, what);
  return NULL;
}

static int offsets_fit(const int32_t* offsets, int64_t num_rows, int64_t num_bytes) {
  int fits = offsets[0] >= 0 && offsets[num_rows] <= num_bytes;
  for (int64_t i = 0; i < num_rows; i++) fits &= offsets[i] <= offsets[i + 1];
  return fits;
}

static PyObject* py_hash_texts(PyObject* self, PyObject* args) {
  Py_buffer data, offsets, hashes;
  unsigned long long seed;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*y*w*K:hash_texts", &data, &offsets, &hashes, &seed)) return NULL;
  int64_t num_texts = hashes.len / 8;
  int fits = hashes.len % 8 == 0 && offsets.len == (num_texts + 1) * 4;
  Py_BEGIN_ALLOW_THREADS
  fits = fits && offsets_fit(offsets.buf, num_texts, data.len);
  if (fits) hash_texts(data.buf, offsets.buf, num_texts, seed, hashes.buf);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&data);
  PyBuffer_Release(&offsets);
  PyBuffer_Release(&hashes);
  if (!fits) return wrong("expected one int32 offset more than hashes, never falling and within the data");
  Py_RETURN_NONE;
}

static PyObject* py_hash_decimals(PyObject* self, PyObject* args) {
  Py_buffer values, hashes;
  unsigned long long seed;
  (void)self;
  if (!PyArg_ParseTuple(args, "y*w*K:hash_decimals", &values, &hashes, &seed)) return NULL;
  int fits = values.len == hashes.len && values.len % 8 == 0;
  Py_BEGIN_ALLOW_THREADS
  if (fits) hash_decimals(values.buf, values.len / 8, seed, hashes.buf);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&values);
  PyBuffer_Release(&hashes);
  if (!fits) return wrong("expected as many hashes as values, 8 bytes each");
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
  (void)self;
  if (!PyArg_ParseTuple(args, "O!w*K:sign_rows", &PyTuple_Type, &tuple, &signs, &seed)) return NULL;
  Py_ssize_t taken = take_members(tuple, signs.len, buffers, members);
  if (!PyErr_Occurred() && signs.len % 8) wrong("expected as many values of each member as signs, 8 bytes each");
  int fits = !PyErr_Occurred();
  Py_BEGIN_ALLOW_THREADS
  if (fits) sign_rows(members, taken, signs.len / 8, seed, signs.buf);
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

static PyObject* py_mark_values(PyObject* self, PyObject* args) {
  Py_buffer values, bits, small;
  int width;
  long long bound;
  marked found = {0, 0};
  (void)self;
  if (!PyArg_ParseTuple(args, "y*iw*Lw*:mark_values", &values, &width, &bits, &bound, &small)) return NULL;
  int fits = (width == 4 || width == 8) && values.len % width == 0 && bits.len > 0 && (bits.len & (bits.len - 1)) == 0;
  fits = fits && small.len / 8 > values.len / width;
  Py_BEGIN_ALLOW_THREADS
  if (fits) found = mark_values(values.buf, values.len / width, width, bits.buf, (uint64_t)bits.len - 1, bound, small.buf);
  Py_END_ALLOW_THREADS
  PyBuffer_Release(&values);
  PyBuffer_Release(&bits);
  PyBuffer_Release(&small);
  if (!fits) return wrong("expected whole values of 4 or 8 bytes, a power of two of bits, and room for one small hash more than values");
  return Py_BuildValue("LL", (long long)found.num_missing, (long long)found.num_small);
}

static PyMethodDef functions[] = {
    {"hash_texts", py_hash_texts, METH_VARARGS, "hash_texts(data, offsets, hashes, seed): XXH64 of byte ranges."},
    {"hash_decimals", py_hash_decimals, METH_VARARGS, "hash_decimals(values, hashes, seed): XXH64 of decimal texts."},
    {"sign_rows", py_sign_rows, METH_VARARGS, "sign_rows(members, signs, seed): members chained, 63 bits, never 0."},
    {"count_marks", py_count_marks, METH_VARARGS, "count_marks(values, width): bits that the values mark."},
    {"mark_values", py_mark_values, METH_VARARGS, "mark_values(values, width, bits, bound, small): missing and small ones."},
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
