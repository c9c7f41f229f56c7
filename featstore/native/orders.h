/* The order of shuffled rows: permutations of windows, draws among open splits, and where the rows that are drawn lie.

   Words are those of numpy's Philox, keyed by its SeedSequence: both are promised never to change
   (https://numpy.org/doc/stable/reference/random/compatibility.html), and states of loaders depend on them. Plain C over plain
   memory; as in rows.h, numbers that lead to an address are read once. */
#ifndef FEATSTORE_ORDERS_H
#define FEATSTORE_ORDERS_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "once.h"

#define POOL_WORDS 4
#define BLOCK_WORDS 4
#define ROUND_ROWS 256 /* in each round of this many rows every open split has its share, give or take one; a power of 2 */
#define MOST_DIGIT_BITS 11
#define GOLDEN 0x9E3779B97F4A7C15ULL /* 2^64 divided by the golden ratio */

/* The pool of a SeedSequence, and the constant with which the next word is hashed. */
typedef struct {
  uint32_t pool[POOL_WORDS], constant;
  int64_t num_words;
} Entropy;

static Entropy no_entropy(void) { return (Entropy){{0}, 0x43b0d7e5, 0}; }

static inline uint32_t hashed_word(uint32_t word, uint32_t* constant) {
  word ^= *constant;
  *constant *= 0x931e8875;
  word *= *constant;
  return word ^ word >> 16;
}

static inline uint32_t mixed_words(uint32_t one, uint32_t other) {
  const uint32_t mixed = 0xca01f9dd * one - 0x4973f715 * other;
  return mixed ^ mixed >> 16;
}

static void add_entropy(Entropy* to, uint32_t word) {
  if (to->num_words >= POOL_WORDS) {
    for (int i = 0; i < POOL_WORDS; i++) to->pool[i] = mixed_words(to->pool[i], hashed_word(word, &to->constant));
  } else {
    to->pool[to->num_words] = hashed_word(word, &to->constant);
    for (int from = 0; to->num_words == POOL_WORDS - 1 && from < POOL_WORDS; from++)
      for (int i = 0; i < POOL_WORDS; i++)
        if (i != from) to->pool[i] = mixed_words(to->pool[i], hashed_word(to->pool[from], &to->constant));
  }
  to->num_words++;
}

/* An integer that is not negative, as numpy takes it: in as few words as hold it. */
static void add_integer(Entropy* to, uint64_t number) {
  add_entropy(to, (uint32_t)number);
  if (number >> 32) add_entropy(to, (uint32_t)(number >> 32));
}

static void add_words(Entropy* to, const uint8_t* words, int64_t num_words) {
  for (int64_t i = 0; i < num_words; i++) add_entropy(to, (uint32_t)int32_at(words, i));
}

/* `SeedSequence.generate_state(count, uint64)`. */
static void seeds_of(Entropy* from, uint64_t* seeds, int count) {
  uint32_t constant = 0x8b51f9dd;
  while (from->num_words < POOL_WORDS) add_entropy(from, 0);
  for (int i = 0; i < 2 * count; i++) {
    uint32_t word = from->pool[i % POOL_WORDS] ^ constant;
    constant *= 0x58f38ded;
    word *= constant;
    word ^= word >> 16;
    seeds[i / 2] = i % 2 ? seeds[i / 2] | (uint64_t)word << 32 : word;
  }
}

/* The upper and the lower half of a product. */
static inline uint64_t multiplied(uint64_t one, uint64_t other, uint64_t* low) {
#ifdef __SIZEOF_INT128__
  const unsigned __int128 product = (unsigned __int128)one * other;
  *low = (uint64_t)product;
  return (uint64_t)(product >> 64);
#else
  const uint64_t a = one >> 32, b = (uint32_t)one, c = other >> 32, d = (uint32_t)other;
  const uint64_t middle = a * d + (b * d >> 32), rest = b * c + (uint32_t)middle;
  *low = one * other;
  return a * c + (middle >> 32) + (rest >> 32);
#endif
}

/* A block of Philox 4x64 with 10 rounds (Salmon et al., 2011, https://doi.org/10.1145/2063384.2063405). numpy's first block has the
   number 1. */
static inline void philox_block(const uint64_t* key, uint64_t number, uint64_t* words) {
  uint64_t first = key[0], second = key[1], at[BLOCK_WORDS] = {number, 0, 0, 0};
  for (int i = 0; i < 10; i++, first += GOLDEN, second += 0xBB67AE8584CAA73BULL) {
    uint64_t low, other_low;
    const uint64_t high = multiplied(0xD2E7470EE14C6C93ULL, at[0], &low);
    const uint64_t other_high = multiplied(0xCA5A826395121157ULL, at[2], &other_low);
    at[0] = other_high ^ at[1] ^ first;
    at[2] = high ^ at[3] ^ second;
    at[1] = other_low;
    at[3] = low;
  }
  memcpy(words, at, sizeof at);
}

static inline int bits_of(uint64_t number) {
  int bits = 0;
  for (; number; number >>= 1) bits++;
  return bits;
}

/* Random words with their numbers in the lowest bits: `num_bits` of them, or more than the count has. */
static void numbered_words(const uint64_t* key, uint64_t first_block, uint64_t* words, int64_t count, int num_bits) {
  uint64_t last[BLOCK_WORDS] = {0};
  int64_t i = 0;
  for (; i + BLOCK_WORDS <= count; i += BLOCK_WORDS) philox_block(key, ++first_block, words + i);
  if (i < count) philox_block(key, ++first_block, last);
  memcpy(words + i, last, (size_t)(count - i) * 8);
  for (i = 0; i < count; i++) words[i] = words[i] >> num_bits << num_bits | (uint64_t)i;
}

/* Puts words in order, which are random: by some of their upper bits in two passes, after which nearly all are in their places, and
   the rest one by one. `other` has as much room. */
static void sort_words(uint64_t* words, uint64_t* other, int64_t count) {
  const int bits = bits_of((uint64_t)count) + 4, digit_bits = bits / 2 < MOST_DIGIT_BITS ? bits / 2 : MOST_DIGIT_BITS;
  const int shift = 64 - digit_bits, low_shift = shift - digit_bits;
  const uint64_t mask = ((uint64_t)1 << digit_bits) - 1;
  int64_t upper[1 << MOST_DIGIT_BITS], lower[1 << MOST_DIGIT_BITS], num_upper = 0, num_lower = 0;
  memset(upper, 0, (size_t)(mask + 1) * sizeof *upper);
  memset(lower, 0, (size_t)(mask + 1) * sizeof *lower);
  for (int64_t i = 0; i < count; i++) {
    upper[words[i] >> shift]++;
    lower[words[i] >> low_shift & mask]++;
  }
  for (uint64_t i = 0; i <= mask; i++) {
    const int64_t of_upper = upper[i], of_lower = lower[i];
    upper[i] = num_upper;
    lower[i] = num_lower;
    num_upper += of_upper;
    num_lower += of_lower;
  }
  for (int64_t i = 0; i < count; i++) other[lower[words[i] >> low_shift & mask]++] = words[i];
  for (int64_t i = 0; i < count; i++) words[upper[other[i] >> shift]++] = other[i];
  for (int64_t i = 1; i < count; i++) {
    const uint64_t word = words[i];
    int64_t at = i;
    for (; at && words[at - 1] > word; at--) words[at] = words[at - 1];
    words[at] = word;
  }
}

static uint64_t philox_word(const uint64_t* key, uint64_t number) {
  uint64_t words[BLOCK_WORDS];
  philox_block(key, number / BLOCK_WORDS + 1, words);
  return words[number % BLOCK_WORDS];
}

/* Rows in the order of as many random words, as a stable sort of them gives it; 0 if there is no memory. With the row in the lowest
   bits one sort does it where the bits above are all different; others are compared by their whole words, which are made again. */
static int permute(const uint8_t* entropy, int64_t num_words, int64_t* order, int64_t num_rows) {
  uint64_t key[2], *const words = malloc((size_t)num_rows * 16 + 1);
  Entropy mixed = no_entropy();
  const int num_bits = bits_of((uint64_t)num_rows);
  const uint64_t mask = ((uint64_t)1 << num_bits) - 1;
  if (!words) return 0;
  add_words(&mixed, entropy, num_words);
  seeds_of(&mixed, key, 2);
  numbered_words(key, 0, words, num_rows, num_bits);
  sort_words(words, words + num_rows, num_rows);
  for (int64_t i = 1; i < num_rows; i++)
    for (int64_t at = i; at && words[at - 1] >> num_bits == words[at] >> num_bits &&
                         philox_word(key, words[at - 1] & mask) > philox_word(key, words[at] & mask);
         at--) {
      const uint64_t word = words[at];
      words[at] = words[at - 1];
      words[at - 1] = word;
    }
  for (int64_t i = 0; i < num_rows; i++) order[i] = (int64_t)(words[i] & mask);
  free(words);
  return 1;
}

/* What is known of an open split for drawing its rows. */
enum { SPLIT, SPLIT_ROWS, POSITION, NUM_LEFT, SHARE, NUMBERS_OF_STREAM };
enum { STREAM_OF, ROWS_OF, NUMBERS_OF_SHARE };

typedef struct {
  uint64_t seeds[3]; /* a key, and the shift of the first round */
  const int64_t* streams;
  int64_t count;
  uint64_t num_rows; /* of all of the splits */
} Drawing;

/* From which streams the rows of a round come: evenly spaced points, as many as there are rows, in random order. Multiples of the
   golden ratio shift the points from round to round, so that shares which are no whole numbers add up. */
static void draw_round(const Drawing* of, uint64_t number, uint16_t* streams) {
  const double shift = (double)((of->seeds[2] + number * GOLDEN) >> 11) * 0x1p-53, all_rows = (double)of->num_rows;
  uint64_t words[ROUND_ROWS], other[ROUND_ROWS], num_rows = (uint64_t)of->streams[SPLIT_ROWS];
  uint16_t of_points[ROUND_ROWS];
  double bound = (double)num_rows / all_rows;
  int64_t stream = 0;
  for (int i = 0; i < ROUND_ROWS; i++) {
    const double point = ((double)i + shift) / ROUND_ROWS;
    while (stream < of->count - 1 && bound <= point) {
      num_rows += (uint64_t)of->streams[++stream * NUMBERS_OF_STREAM + SPLIT_ROWS];
      bound = (double)num_rows / all_rows;
    }
    of_points[i] = (uint16_t)stream;
  }
  numbered_words(of->seeds, number * (ROUND_ROWS / BLOCK_WORDS), words, ROUND_ROWS, bits_of(ROUND_ROWS - 1));
  sort_words(words, other, ROUND_ROWS);
  for (int i = 0; i < ROUND_ROWS; i++) streams[i] = of_points[words[i] % ROUND_ROWS];
}

typedef struct {
  int64_t num_rows, num_shares, ended; /* `ended` is the stream whose window has no rows left, or -1 */
} Drawn;

/* Draws the next rows of open streams, each the next one of its window, until a window has none left: their shares of a mixture. A
   stream that has none, which is -1, gets the next one. `num_rows` is -1 if a stream has no rows, or a share that there is not. */
static Drawn draw_rows(const uint8_t* entropy, int64_t num_words, int64_t* streams, int64_t count, uint16_t* draws, int64_t num_rows,
                       int64_t* shares, int64_t room, int64_t num_shares) {
  const Drawn wrong = {-1, 0, 0};
  Drawing drawing = {{0}, streams, count, 0};
  Drawn found = {0, num_shares, -1};
  Entropy mixed = no_entropy();
  uint16_t of_round[ROUND_ROWS] = {0};
  uint64_t num_taken = 0;
  add_words(&mixed, entropy, num_words);
  for (int64_t i = 0; i < count; i++) {
    const int64_t* const stream = streams + i * NUMBERS_OF_STREAM;
    if (stream[SPLIT] < 0 || stream[SPLIT_ROWS] < 1 || stream[POSITION] < 0 || stream[POSITION] > INT64_MAX - num_rows ||
        stream[NUM_LEFT] < 1)
      return wrong;
    add_integer(&mixed, (uint64_t)stream[SPLIT]);
    drawing.num_rows += (uint64_t)stream[SPLIT_ROWS];
    num_taken += (uint64_t)stream[POSITION];
  }
  seeds_of(&mixed, drawing.seeds, 3);
  uint64_t round = num_taken / ROUND_ROWS;
  for (int64_t first = (int64_t)(num_taken % ROUND_ROWS); found.num_rows < num_rows; round++, first = 0) {
    if (count > 1) draw_round(&drawing, round, of_round);
    for (int64_t i = first; i < ROUND_ROWS && found.num_rows < num_rows; i++) {
      int64_t* const stream = streams + of_round[i] * NUMBERS_OF_STREAM;
      int64_t share = int64_at(stream, SHARE);
      if (share < 0) {
        if (found.num_shares == room) return found;
        share = stream[SHARE] = found.num_shares++;
        shares[share * NUMBERS_OF_SHARE + STREAM_OF] = of_round[i];
        shares[share * NUMBERS_OF_SHARE + ROWS_OF] = 0;
      }
      if (share >= found.num_shares) return wrong;
      draws[found.num_rows++] = (uint16_t)share;
      shares[share * NUMBERS_OF_SHARE + ROWS_OF]++;
      stream[POSITION]++;
      if (--stream[NUM_LEFT] == 0) {
        found.ended = of_round[i];
        return found;
      }
    }
  }
  return found;
}

/* Rows of a window that belong to a mixture, in the order in which they are drawn. */
typedef struct {
  const void* rows; /* uint32: the piece of the window, shifted left by `row_bits`, plus the row in the piece */
  int64_t num_rows;
  const uint8_t* passes; /* which of them are delivered; NULL: all */
  int32_t source;
  int row_bits;
  int64_t first_piece; /* of the window, among all pieces */
} Share;

/* Writes where the rows lie that are delivered: of `num_waiting` pieces all rows, and after them those that are drawn from shares,
   with the source of each row that is drawn, and whether it is delivered. How many were written; -1 if the rows that are drawn are
   not those of the shares, or there is no room. `next` is for as many numbers as there are shares. */
static int64_t place_rows(const void* draws, int64_t num_drawn, const Share* shares, int64_t num_shares, int64_t* next,
                          const void* waiting, int64_t num_waiting, int row_bits, uint32_t* places, int64_t room, int32_t* sources,
                          uint8_t* passes) {
  int64_t count = 0;
  for (int64_t piece = 0; piece < num_waiting; piece++) {
    const int64_t num_rows = int64_at(waiting, piece);
    if (num_rows < 0 || num_rows > room - count || num_rows > (int64_t)1 << row_bits || piece >> (32 - row_bits)) return -1;
    for (int64_t row = 0; row < num_rows; row++) places[count++] = (uint32_t)((uint64_t)piece << row_bits | (uint64_t)row);
  }
  if (num_drawn > room - count) return -1;
  memset(next, 0, (size_t)num_shares * 8);
  for (int64_t i = 0; i < num_drawn; i++) {
    const uint16_t number = ((const volatile uint16_t*)draws)[i];
    if (number >= num_shares || next[number] >= shares[number].num_rows) return -1;
    const Share* const share = &shares[number];
    const int64_t at = next[number]++;
    const uint32_t row = (uint32_t)int32_at(share->rows, at);
    sources[i] = share->source;
    const int is_delivered = !share->passes || share->passes[at];
    passes[i] = (uint8_t)is_delivered;
    const uint64_t piece = (uint64_t)share->first_piece + (row >> share->row_bits);
    if (piece >> (32 - row_bits)) return -1;
    places[count] = (uint32_t)(piece << row_bits) | (row & (((uint32_t)1 << share->row_bits) - 1));
    count += is_delivered;
  }
  return count;
}

/* What is known of a source while its rows are numbered: which of those that were found it is, or -1; and, of one that was found, how
   many of its rows in the part have come, and where the next of its places goes. */
typedef struct {
  int64_t last, num_rows, next;
} SourceState;

/* Where it is written which sources were found, and where their rows lie. */
typedef struct {
  int32_t* found; /* of each part each source, how many rows it has there, and how many of them are delivered */
  int64_t room;
  int64_t* num_found; /* of each part */
  int64_t* places;    /* of each of `found` those of its rows that are delivered, counted among its rows in the part */
  int64_t num_places;
} NumberedSources;

/* Where the rows of a part are that are delivered, of `count` sources whose numbers the rows have. 0 if there is no room. */
static int place_delivered(const int32_t* sources, const uint8_t* passes, int64_t num_rows, SourceState* states, int64_t count,
                           const NumberedSources* to) {
  for (int64_t row = 0; row < num_rows; row++) {
    const int32_t source = int32_at(sources, row);
    if (source < 0) continue;
    if (source >= count) return 0;
    SourceState* const state = &states[source];
    if (passes[row]) {
      if (state->next < 0 || state->next >= to->num_places) return 0;
      to->places[state->next++] = state->num_rows;
    }
    state->num_rows++;
  }
  return 1;
}

/* Numbers the sources of the rows of each part anew, in the order in which they come, and writes each with its rows to `found`. A
   source of -1 is none. The number of sources that were found; -1 if a part or a source is not there, or there is no room. `passes`
   says which rows are delivered; NULL: all. `states` is for as many as there are sources. */
static int64_t number_sources(int32_t* sources, const uint8_t* passes, int64_t num_rows, const void* ends, int64_t num_parts,
                              SourceState* states, int64_t num_sources, const NumberedSources* to) {
  int64_t count = 0, row = 0, place = 0;
  for (int64_t i = 0; i < num_sources; i++) states[i].last = -1;
  for (int64_t part = 0; part < num_parts; part++) {
    const int64_t end = int64_at(ends, part), first = count, first_row = row;
    if (end < row || end > num_rows) return -1;
    for (; row < end; row++) {
      const int32_t source = int32_at(sources, row);
      if (source == -1) continue;
      if (source < 0 || source >= num_sources) return -1;
      int64_t* const last = &states[source].last;
      if (*last < first) {
        if (count == to->room) return -1;
        *last = count;
        to->found[3 * count] = source;
        to->found[3 * count + 1] = to->found[3 * count + 2] = 0;
        count++;
      }
      to->found[3 * *last + 1]++;
      to->found[3 * *last + 2] += !passes || passes[row];
      sources[row] = (int32_t)(*last - first);
    }
    to->num_found[part] = count - first;
    for (int64_t i = first; passes && i < count; i++) {
      states[i - first].num_rows = 0;
      states[i - first].next = place;
      place += to->found[3 * i + 2];
    }
    if (passes && !place_delivered(sources + first_row, passes + first_row, row - first_row, states, count - first, to)) return -1;
  }
  return row == num_rows ? count : -1;
}

#endif
