/* Numbers that another thread may change, read once each: what was checked is what is used. Volatile, since a compiler may else
   read them again; at any address, since foreign buffers need not be aligned. */
#ifndef FEATSTORE_ONCE_H
#define FEATSTORE_ONCE_H

#include <stdint.h>

typedef int32_t __attribute__((aligned(1), may_alias)) int32_anywhere;
typedef int64_t __attribute__((aligned(1), may_alias)) int64_anywhere;

static inline int32_t int32_at(const void* numbers, int64_t i) {
  return *(const volatile int32_anywhere*)((const char*)numbers + i * 4);
}

static inline int64_t int64_at(const void* numbers, int64_t i) {
  return *(const volatile int64_anywhere*)((const char*)numbers + i * 8);
}

#endif
