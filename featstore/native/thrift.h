/* Thrift's compact protocol, which page headers and footers are written in: values one after the other,
   none of them read beyond its bytes. A function that meets something malformed says so (0). */
#ifndef FEATSTORE_THRIFT_H
#define FEATSTORE_THRIFT_H

#include <stdint.h>

#define MAX_DEPTH 16

enum { THRIFT_TRUE = 1, THRIFT_FALSE, THRIFT_I8, THRIFT_I16, THRIFT_I32, THRIFT_I64, THRIFT_DOUBLE, THRIFT_BINARY, THRIFT_LIST,
       THRIFT_SET, THRIFT_MAP, THRIFT_STRUCT };

typedef struct {
  const uint8_t *at, *end;
} Bytes;

static int read_varint(Bytes* bytes, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && bytes->at < bytes->end; shift += 7) {
    uint8_t byte = *bytes->at++;
    *value |= (uint64_t)(byte & 0x7f) << shift;
    if (!(byte & 0x80)) return 1;
  }
  return 0;
}

static inline int64_t zigzag_of(uint64_t value) { return (int64_t)(value >> 1) ^ -(int64_t)(value & 1); }

static int skip_bytes(Bytes* bytes, uint64_t count) {
  if (count > (uint64_t)(bytes->end - bytes->at)) return 0;
  bytes->at += count;
  return 1;
}

/* A field's type and number, type 0 at the end of its struct. */
static int read_field(Bytes* bytes, int* type, int64_t* number) {
  uint64_t zigzag;
  if (bytes->at >= bytes->end) return 0;
  uint8_t byte = *bytes->at++;
  *type = byte & 0xf;
  if (!*type) return 1;
  if (byte >> 4) {
    *number += byte >> 4;
  } else {
    if (!read_varint(bytes, &zigzag)) return 0;
    *number = zigzag_of(zigzag);
  }
  return *number >= INT16_MIN && *number <= INT16_MAX; /* what Thrift numbers fields with */
}

static int skip_value(Bytes* bytes, int type, int depth);

static int skip_struct(Bytes* bytes, int depth) {
  int type;
  int64_t number = 0;
  while (read_field(bytes, &type, &number)) {
    if (!type) return 1;
    if (!skip_value(bytes, type, depth)) return 0;
  }
  return 0;
}

static int skip_list(Bytes* bytes, int depth) {
  if (bytes->at >= bytes->end) return 0;
  uint8_t byte = *bytes->at++;
  uint64_t count = byte >> 4;
  int type = byte & 0xf;
  if (count == 15 && !read_varint(bytes, &count)) return 0;
  for (; count; count--)
    if (type <= THRIFT_FALSE ? !skip_bytes(bytes, 1) : !skip_value(bytes, type, depth)) return 0;
  return 1;
}

static int skip_value(Bytes* bytes, int type, int depth) {
  uint64_t value;
  if (depth > MAX_DEPTH) return 0;
  switch (type) {
    case THRIFT_TRUE: case THRIFT_FALSE: return 1;
    case THRIFT_I8: return skip_bytes(bytes, 1);
    case THRIFT_I16: case THRIFT_I32: case THRIFT_I64: return read_varint(bytes, &value);
    case THRIFT_DOUBLE: return skip_bytes(bytes, 8);
    case THRIFT_BINARY: return read_varint(bytes, &value) && skip_bytes(bytes, value);
    case THRIFT_LIST: case THRIFT_SET: return skip_list(bytes, depth + 1);
    case THRIFT_STRUCT: return skip_struct(bytes, depth + 1);
    default: return 0; /* neither page headers nor footers hold maps */
  }
}

#endif
