/* Snappy: a compressed text of any bytes gives exactly as many as were asked for, or is refused. Begins with that number. */
#include <stdlib.h>

#include "snappy.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const uint8_t stop = 0;
  uint16_t wanted;
  if (size < sizeof wanted) return 0;
  memcpy(&wanted, data, sizeof wanted);
  uint8_t* out = malloc((size_t)wanted + SLOP);
  int is_read = decompress_snappy(data + sizeof wanted, data + size, out, wanted, &stop);
  volatile uint8_t last = 0;
  for (uint32_t i = 0; is_read && i < wanted; i++) last = out[i];
  (void)last;
  free(out);
  return 0;
}
