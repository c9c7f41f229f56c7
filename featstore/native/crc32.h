/* CRC-32 as gzip, zlib and Parquet's pages have it: polynomial 0x04C11DB7, bits lowest first, inverted at both ends.

   By what the CPU has, chosen when a process first asks: on x86-64 carry-less multiplication of blocks of 16 bytes, after "Fast
   CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (V. Gopal et al., Intel, 2009); on 64-bit ARM the CRC32
   instruction; on any other CPU tables, eight bytes a step, after "A Systematic Approach to Building High Performance
   Software-based CRC Generators" (M. Kounavis and F. Berry, Intel, 2005), which also take the bytes that blocks leave over.
   Little-endian machines only. */
#ifndef FEATSTORE_CRC32_H
#define FEATSTORE_CRC32_H

#include <pthread.h>
#include <stdint.h>
#include <string.h>

#define REFLECTED_POLYNOMIAL UINT32_C(0xEDB88320) /* bit 31 - i is the coefficient of x^i, here and in remainders */

/* What a byte adds to the remainder when so many more bytes follow it. */
static uint32_t crc32_table[8][256];

static uint32_t times_x(uint32_t remainder) { return remainder >> 1 ^ (remainder & 1 ? REFLECTED_POLYNOMIAL : 0); }

static void fill_crc32_table(void) {
  for (uint32_t byte = 0; byte < 256; byte++) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; bit++) remainder = times_x(remainder);
    crc32_table[0][byte] = remainder;
  }
  for (int following = 1; following < 8; following++)
    for (int byte = 0; byte < 256; byte++) {
      uint32_t before = crc32_table[following - 1][byte];
      crc32_table[following][byte] = before >> 8 ^ crc32_table[0][before & 0xff];
    }
}

/* The remainder after `count` more bytes; like those below, without the inversions. */
static uint32_t crc32_by_tables(const uint8_t* at, int64_t count, uint32_t remainder) {
  for (; count >= 8; at += 8, count -= 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    word ^= remainder;
    remainder = 0;
    for (int i = 0; i < 8; i++) remainder ^= crc32_table[7 - i][word >> 8 * i & 0xff];
  }
  for (; count; at++, count--) remainder = remainder >> 8 ^ crc32_table[0][(remainder ^ *at) & 0xff];
  return remainder;
}

static uint32_t (*crc32_of_this_cpu)(const uint8_t* at, int64_t count, uint32_t remainder) = crc32_by_tables;

#if defined(__x86_64__) && (defined(__clang__) || __GNUC__ >= 10)
#include <immintrin.h>

/* A message is a polynomial, its first bit the highest power. A block that lies D bits before another is multiplied by x^D modulo
   the CRC's polynomial and added to it: that leaves the remainder as it was. LANES blocks at a time, as an instruction's result
   is not there at once; at the end they are added up, and the last block goes through the tables. Four blocks an instruction
   (VPCLMULQDQ) are twice as fast alone, and slow down what runs between them, on an Intel CPU by a tenth: decision 105. */
#define LANES 4
#define FOLDING __attribute__((target("pclmul,sse4.1")))

/* x^(D + 64) and x^D, for a block's first and last 8 bytes, by D. */
typedef struct {
  uint64_t first, last;
} Powers;

static Powers powers_of_128, powers_of_lanes;

/* x^power modulo the polynomial in 64 bits, the lowest power the highest bit. One power less than is asked for: a product of two
   polynomials that are written so comes out one bit lower, which is to say multiplied by x. */
static uint64_t power_of_x(int power) {
  uint32_t remainder = UINT32_C(1) << 31;
  while (--power) remainder = times_x(remainder);
  return (uint64_t)remainder << 32;
}

static Powers powers_for(int num_bits) {
  Powers powers = {power_of_x(num_bits + 64), power_of_x(num_bits)};
  return powers;
}

FOLDING static inline __m128i load(const void* at) { return _mm_loadu_si128(at); }

FOLDING static inline __m128i folded(__m128i block, __m128i powers, __m128i onto) {
  __m128i first = _mm_clmulepi64_si128(block, powers, 0x00), last = _mm_clmulepi64_si128(block, powers, 0x11);
  return _mm_xor_si128(_mm_xor_si128(first, last), onto);
}

FOLDING static uint32_t crc32_by_folding(const uint8_t* at, int64_t count, uint32_t remainder) {
  const int64_t step = 16 * LANES;
  if (count < step) return crc32_by_tables(at, count, remainder);
  const __m128i far = load(&powers_of_lanes), near = load(&powers_of_128);
  __m128i lanes[LANES];
  uint8_t left[16];
  for (int i = 0; i < LANES; i++) lanes[i] = load(at + 16 * i);
  lanes[0] = _mm_xor_si128(lanes[0], _mm_cvtsi32_si128((int)remainder));
  for (at += step, count -= step; count >= step; at += step, count -= step)
    for (int i = 0; i < LANES; i++) lanes[i] = folded(lanes[i], far, load(at + 16 * i));
  for (int i = 1; i < LANES; i++) lanes[i] = folded(lanes[i - 1], near, lanes[i]);
  _mm_storeu_si128((void*)left, lanes[LANES - 1]);
  return crc32_by_tables(at, count, crc32_by_tables(left, 16, 0));
}

static void choose_crc32(void) {
  fill_crc32_table();
  if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1")) return;
  powers_of_128 = powers_for(128);
  powers_of_lanes = powers_for(128 * LANES);
  crc32_of_this_cpu = crc32_by_folding;
}

#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

#define CRC32_IN_HWCAP (1ul << 7) /* HWCAP_CRC32 of Linux: asm/hwcap.h */

static uint32_t crc32_by_instruction(const uint8_t* at, int64_t count, uint32_t remainder) {
  for (; count >= 8; at += 8, count -= 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    __asm__(".arch_extension crc\n\tcrc32x %w0, %w0, %x1" : "+r"(remainder) : "r"(word));
  }
  return crc32_by_tables(at, count, remainder);
}

static void choose_crc32(void) {
  fill_crc32_table();
  if (getauxval(AT_HWCAP) & CRC32_IN_HWCAP) crc32_of_this_cpu = crc32_by_instruction;
}

#else
static void choose_crc32(void) { fill_crc32_table(); }
#endif

static void prepare_crc32(void) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, choose_crc32);
}

/* The CRC-32 of bytes that follow those whose CRC-32 is `before`, 0 where there are none. By any thread. */
static uint32_t crc32_of(const uint8_t* at, int64_t count, uint32_t before) {
  prepare_crc32();
  return ~crc32_of_this_cpu(at, count, ~before);
}

/* The same on any CPU. */
static uint32_t portable_crc32_of(const uint8_t* at, int64_t count, uint32_t before) {
  prepare_crc32();
  return ~crc32_by_tables(at, count, ~before);
}

#endif
