/* In place of once.h: each `period`th number that is read changes at once, as if another thread had
   done it. So a kernel that reads a number again, after it was checked, uses one that was not; threads
   that race hit so short a time too rarely. A period of 0 leaves all as they are. */
#ifndef FEATSTORE_ONCE_H
#define FEATSTORE_ONCE_H

#include <stdint.h>
#include <string.h>

static uint32_t period, num_read;

/* Another number: near it, far above, or below 0. */
static int64_t other_than(int64_t number, int64_t highest) {
  const int64_t others[] = {number == highest ? 0 : number + 1, highest, -1, highest / 2};
  return others[num_read / period % 4];
}

static int is_to_change(void) { return period && ++num_read % period == 0; }

static inline int32_t int32_at(const void* numbers, int64_t i) {
  char* at = (char*)(uintptr_t)numbers + i * 4;
  int32_t found;
  memcpy(&found, at, 4);
  if (is_to_change()) memcpy(at, &(int32_t){(int32_t)other_than(found, INT32_MAX)}, 4);
  return found;
}

static inline int64_t int64_at(const void* numbers, int64_t i) {
  char* at = (char*)(uintptr_t)numbers + i * 8;
  int64_t found;
  memcpy(&found, at, 8);
  if (is_to_change()) memcpy(at, &(int64_t){other_than(found, INT64_MAX)}, 8);
  return found;
}

#endif
