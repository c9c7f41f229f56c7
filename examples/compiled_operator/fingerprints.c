/* An operator in C: how many bits differ between two 64-bit fingerprints.

   Arrays come and go through the Arrow C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), so nothing is
   copied and no Arrow library is linked. Build it:  gcc -O2 -shared -fPIC -o libfingerprints.so fingerprints.c  */
#include <stdint.h>
#include <stdlib.h>

struct ArrowArray {
  int64_t length, null_count, offset, n_buffers, n_children;
  const void** buffers;
  struct ArrowArray** children;
  struct ArrowArray* dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

static int is_null(const struct ArrowArray* array, int64_t row) {
  const uint8_t* validity = array->buffers[0];
  int64_t bit = array->offset + row;
  return validity != NULL && !(validity[bit / 8] >> (bit % 8) & 1);
}

static void release_bits(struct ArrowArray* array) {
  free((void*)array->buffers[0]);
  free((void*)array->buffers[1]);
  free(array->buffers);
  array->release = NULL;
}

static int allocate_bits(struct ArrowArray* array, int64_t length) {
  void** buffers = malloc(2 * sizeof(void*));
  if (buffers == NULL) return 1;
  buffers[0] = calloc((size_t)(length / 8 + 1), 1);
  buffers[1] = calloc((size_t)(length + 1), sizeof(int64_t));
  *array = (struct ArrowArray){.length = length, .n_buffers = 2, .buffers = (const void**)buffers, .release = release_bits};
  if (buffers[0] != NULL && buffers[1] != NULL) return 0;
  release_bits(array);
  return 1;
}

/* int64, int64 -> int64; null where either is null. Takes over both inputs; returns 0, or 1 where memory ran out. */
int differing_bits(struct ArrowArray* left, struct ArrowArray* right, struct ArrowArray* result) {
  int failed = allocate_bits(result, left->length);
  if (!failed) {
    const int64_t* a = (const int64_t*)left->buffers[1] + left->offset;
    const int64_t* b = (const int64_t*)right->buffers[1] + right->offset;
    uint8_t* validity = (uint8_t*)result->buffers[0];
    int64_t* bits = (int64_t*)result->buffers[1];
    for (int64_t row = 0; row < left->length; row++) {
      if (is_null(left, row) || is_null(right, row)) {
        result->null_count++;
        continue;
      }
      validity[row / 8] |= (uint8_t)(1 << (row % 8));
      bits[row] = __builtin_popcountll((uint64_t)(a[row] ^ b[row]));
    }
  }
  left->release(left);
  right->release(right);
  return failed;
}
