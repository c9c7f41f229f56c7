/* A fuzzer's driver for compilers that have none, with the options of libFuzzer that `run.py` gives: changed inputs of the corpus
   for so many seconds, kept where they reach code that none before reached.

   Targets are compiled with -fsanitize-coverage=trace-pc, which calls `__sanitizer_cov_trace_pc` at each edge; this file is not.
   The input under test is in a file that is mapped into memory, so that it is there after a crash. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define MOST_BYTES 4096
#define MAX_POOL 20000
#define EDGES (1 << 16)

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

typedef struct {
  uint8_t* bytes;
  size_t size;
} Input;

static uint8_t edges[EDGES];
static int num_new;
static Input pool[MAX_POOL];
static size_t num_in_pool;
static uint64_t state = 1;

void __sanitizer_cov_trace_pc(void) {
  uintptr_t at = (uintptr_t)__builtin_return_address(0);
  uint8_t* edge = &edges[(at ^ at >> 16) & (EDGES - 1)];
  if (!*edge) {
    *edge = 1;
    num_new++;
  }
}

static uint64_t drawn(uint64_t below) { /* xorshift64* (S. Vigna, 2016) */
  state ^= state >> 12;
  state ^= state << 25;
  state ^= state >> 27;
  return (state * UINT64_C(0x2545F4914F6CDD1D) >> 32) % below;
}

static void add_to_pool(const uint8_t* bytes, size_t size) {
  if (num_in_pool == MAX_POOL) return;
  Input* added = &pool[num_in_pool++];
  added->bytes = malloc(size + 1);
  added->size = size;
  memcpy(added->bytes, bytes, size);
}

static size_t read_input(const char* path, uint8_t* bytes) {
  FILE* file = fopen(path, "rb");
  size_t size = file ? fread(bytes, 1, MOST_BYTES, file) : 0;
  if (file) fclose(file);
  return size;
}

/* One change: a bit, a byte, an extreme byte, bytes inserted, removed, copied within, or taken from another input. */
static size_t change(uint8_t* bytes, size_t size) {
  size_t at = size ? drawn(size) : 0, count = 1 + drawn(8);
  switch (size ? drawn(7) : 3) {
    case 0: bytes[at] ^= (uint8_t)(1 << drawn(8)); return size;
    case 1: bytes[at] = (uint8_t)drawn(256); return size;
    case 2: bytes[at] = drawn(2) ? 0xff : drawn(2) ? 0x80 : 0; return size;
    case 3:
      if (size + count > MOST_BYTES) return size;
      memmove(bytes + at + count, bytes + at, size - at);
      for (size_t i = 0; i < count; i++) bytes[at + i] = (uint8_t)drawn(256);
      return size + count;
    case 4:
      if (count > size - at) count = size - at;
      memmove(bytes + at, bytes + at + count, size - at - count);
      return size - count;
    case 5: {
      size_t from = drawn(size);
      if (count > size - at) count = size - at;
      if (count > size - from) count = size - from;
      memmove(bytes + at, bytes + from, count);
      return size;
    }
    default: {
      const Input* other = &pool[drawn(num_in_pool)];
      size_t rest = other->size < size ? other->size : size;
      if (at < rest) memcpy(bytes + at, other->bytes + at, rest - at);
      return size;
    }
  }
}

static const char* option(int count, char** of, const char* name, const char* otherwise) {
  for (int i = 1; i < count; i++)
    if (!strncmp(of[i], name, strlen(name)) && of[i][strlen(name)] == '=') return of[i] + strlen(name) + 1;
  return otherwise;
}

static void read_pool(const char* path, uint8_t* bytes) {
  char name[4096];
  DIR* folder = opendir(path);
  for (struct dirent* entry; folder && (entry = readdir(folder));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    add_to_pool(bytes, read_input(name, bytes));
  }
  if (folder) closedir(folder);
  if (!folder) add_to_pool(bytes, read_input(path, bytes));
}

/* Ends the process by SIGPROF once it has used so many seconds, none for 0. Of its own time, not the
   clock's: on a busy machine a process may wait for seconds, or be stopped, within any input. */
static void limit_time(long seconds) {
  const struct itimerval limit = {{0, 0}, {seconds, 0}};
  setitimer(ITIMER_PROF, &limit, NULL);
}

int main(int count, char** of) {
  const char* kept = option(count, of, "-artifact_prefix", "./");
  long seconds = atol(option(count, of, "-max_total_time", "0")), limit_s = atol(option(count, of, "-timeout", "2"));
  state = strtoull(option(count, of, "-seed", "1"), NULL, 10) * 2 + 1;
  char path[4096];
  snprintf(path, sizeof path, "%scurrent", kept);
  int file = open(path, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ftruncate(file, MOST_BYTES + 8)) return 2;
  uint8_t* shared = mmap(NULL, MOST_BYTES + 8, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (shared == MAP_FAILED) return 2;
  uint8_t* bytes = shared + 8; /* after their number */
  for (int i = 1; i < count; i++)
    if (of[i][0] != '-') read_pool(of[i], bytes);
  if (!num_in_pool) add_to_pool(bytes, 0);
  long num_tried = 0;
  for (time_t end = time(NULL) + seconds; seconds ? time(NULL) < end : num_tried < (long)num_in_pool; num_tried++) {
    const Input* from = &pool[seconds ? drawn(num_in_pool) : (uint64_t)num_tried];
    uint64_t size = from->size;
    memcpy(bytes, from->bytes, size);
    for (uint64_t changes = seconds && num_tried ? 1 + drawn(6) : 0; changes; changes--) size = change(bytes, size);
    memcpy(shared, &size, 8);
    uint8_t* own = malloc(size ? size : 1); /* exactly as long, so that reading further is seen */
    memcpy(own, bytes, size);
    num_new = 0;
    limit_time(limit_s);
    LLVMFuzzerTestOneInput(own, size);
    limit_time(0);
    free(own);
    if (num_new && seconds) add_to_pool(bytes, size);
  }
  unlink(path);
  fprintf(stderr, "%ld inputs, %zu in the pool\n", num_tried, num_in_pool);
  return 0;
}
