/* An input cut into parts, each in memory of its own of exactly its size, so that the sanitizer sees a byte beyond any of them. A
   part is two bytes of length, then so many bytes, or those that are left. */
#ifndef FEATSTORE_PARTS_H
#define FEATSTORE_PARTS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PARTS 8

typedef struct {
  uint8_t* at;
  int64_t size;
} Part;

static int64_t take_parts(const uint8_t* data, size_t size, Part* parts, int count) {
  for (int i = 0; i < count; i++) {
    size_t wanted = 0;
    if (size >= 2) {
      wanted = (size_t)(data[0] | data[1] << 8);
      data += 2;
      size -= 2;
    }
    if (wanted > size) wanted = size;
    parts[i].size = (int64_t)wanted;
    parts[i].at = malloc(wanted);
    if (wanted) memcpy(parts[i].at, data, wanted);
    data += wanted;
    size -= wanted;
  }
  return (int64_t)size;
}

static void free_parts(Part* parts, int count) {
  for (int i = 0; i < count; i++) free(parts[i].at);
}

#endif
