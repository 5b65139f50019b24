/* Messages and frames as node_agent/guests/wire.py defines them. */
#ifndef WIRE_H
#define WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_VERSION 1
#define MAGIC "G1 "
#define MAGIC_BYTES 3
#define HEADER_BYTES (MAGIC_BYTES + 9) /* the checksum and a space */
#define MAX_FRAME_BYTES 16384
#define MAX_FIELDS 512
#define MAX_TEXT_BYTES 4096 /* of a value that comes from outside: written `%XX` it fits in a frame */

/* A message under construction; `full` once something did not fit. */
struct message {
    char bytes[MAX_FRAME_BYTES];
    size_t length;
    bool full;
};

void message_begin(struct message *m, const char *kind);
void message_text(struct message *m, const char *name, const char *value, size_t length);
__attribute__((format(printf, 3, 4))) void message_field(struct message *m, const char *name, const char *format, ...);
/* The body, without a frame around it. */
const char *message_body(const struct message *m, size_t *length);
/* Put the frame around it; return its length, 0 if the message was too long. */
size_t message_frame(struct message *m);

/* A message that was read; it points into the bytes that it was read from, which are changed. */
struct field {
    const char *name;
    char *value;
    size_t length;
};
struct fields {
    const char *kind;
    size_t count;
    struct field all[MAX_FIELDS];
};

bool body_parse(char *body, size_t length, struct fields *into);
const struct field *field_of(const struct fields *fields, const char *name);
/* A non-negative integer that comes once. */
bool field_count(const struct fields *fields, const char *name, uint64_t *value);

/* A byte stream in; `frame_next` takes whole frames out of it and skips what is none. */
struct reader {
    char bytes[2 * MAX_FRAME_BYTES];
    size_t length;
    char line[MAX_FRAME_BYTES];
};

size_t reader_space(const struct reader *r);
bool frame_next(struct reader *r, struct fields *into);

#endif
