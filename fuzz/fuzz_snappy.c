/* Snappy: a compressed text of any bytes gives exactly as many as were asked for, or is refused; and without the first of them the
   same, or is refused. Begins with both numbers. */
#include <stdlib.h>

#include "snappy.h"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const uint8_t stop = 0;
  uint16_t wanted;
  if (size < sizeof wanted + 1) return 0;
  memcpy(&wanted, data, sizeof wanted);
  const int64_t skipped = data[sizeof wanted];
  const Bytes text = {data + sizeof wanted + 1, data + size};
  const int is_wide = (wanted & 1) && can_be_wide();
  if (skipped > wanted) return 0;
  /* Each of its own size, so that the sanitizer sees a byte beyond it. */
  uint8_t *whole = malloc(wanted), *rest = malloc((size_t)(wanted - skipped));
  const int is_read = decompress_snappy(text, 0, whole, wanted, &stop, is_wide);
  const int is_rest_read = decompress_snappy(text, skipped, rest, wanted - skipped, &stop, is_wide);
  if (is_rest_read && (!is_read || memcmp(rest, whole + skipped, (size_t)(wanted - skipped)))) abort();
  free(whole);
  free(rest);
  return 0;
}
