/* What some CPUs have beyond the portable instructions: the same source is compiled with it and without. */
#ifndef FEATSTORE_WIDE_H
#define FEATSTORE_WIDE_H

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#include <immintrin.h>
#define HAS_WIDE 1
#define WIDE __attribute__((target("avx2,popcnt,bmi,bmi2")))
#else
#define HAS_WIDE 0
#endif

#define INLINED static inline __attribute__((always_inline)) /* into the portable and the wide function */

static int can_be_wide(void) {
#if HAS_WIDE
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("bmi") &&
         __builtin_cpu_supports("bmi2");
#else
  return 0;
#endif
}

#endif
