#include "wire.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static uint32_t crc32_of(const char *bytes, size_t length)
{
    static uint32_t table[256];
    if (!table[1])
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t c = i;
            for (int bit = 0; bit < 8; bit++)
                c = c & 1 ? 0xEDB88320u ^ (c >> 1) : c >> 1;
            table[i] = c;
        }
    uint32_t c = 0xFFFFFFFFu;
    for (size_t i = 0; i < length; i++)
        c = table[(c ^ (unsigned char)bytes[i]) & 255] ^ (c >> 8);
    return c ^ 0xFFFFFFFFu;
}

static void put(struct message *m, const char *bytes, size_t length)
{
    if (m->full || m->length + length >= MAX_FRAME_BYTES) { /* one byte stays for the line's end */
        m->full = true;
        return;
    }
    memcpy(m->bytes + m->length, bytes, length);
    m->length += length;
}

void message_begin(struct message *m, const char *kind)
{
    m->length = HEADER_BYTES;
    m->full = false;
    put(m, kind, strlen(kind));
}

static bool plain(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("_.-~/:,", c));
}

void message_text(struct message *m, const char *name, const char *value, size_t length)
{
    put(m, " ", 1);
    put(m, name, strlen(name));
    put(m, "=", 1);
    for (size_t i = 0; i < length; i++) {
        char escaped[4];
        /* a value that ends in G1, with the space after it, would look like the start of a frame */
        bool magic = i + 1 == length && i && !memcmp(value + i - 1, MAGIC, 2);
        snprintf(escaped, sizeof escaped, "%%%02X", (unsigned char)value[i]);
        if (plain((unsigned char)value[i]) && !magic)
            put(m, value + i, 1);
        else
            put(m, escaped, 3);
    }
}

void message_field(struct message *m, const char *name, const char *format, ...)
{
    char value[MAX_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(value, sizeof value, format, arguments);
    va_end(arguments);
    if (length < 0)
        length = 0;
    message_text(m, name, value, (size_t)length < sizeof value ? (size_t)length : sizeof value - 1);
}

const char *message_body(const struct message *m, size_t *length)
{
    *length = m->length - HEADER_BYTES;
    return m->bytes + HEADER_BYTES;
}

size_t message_frame(struct message *m)
{
    if (m->full)
        return 0;
    size_t length;
    const char *body = message_body(m, &length);
    char header[HEADER_BYTES + 1];
    snprintf(header, sizeof header, MAGIC "%08x ", (unsigned)crc32_of(body, length));
    memcpy(m->bytes, header, HEADER_BYTES);
    m->bytes[m->length] = '\n';
    return m->length + 1;
}

static int hex(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* In place; the result is never longer. What is no `%XX` stays as it is. */
static size_t unquote(char *value)
{
    size_t to = 0;
    for (size_t from = 0; value[from]; from++) {
        int high = value[from] == '%' ? hex(value[from + 1]) : -1;
        int low = high < 0 ? -1 : hex(value[from + 2]);
        if (low >= 0) {
            value[to++] = (char)(high * 16 + low);
            from += 2;
        } else {
            value[to++] = value[from];
        }
    }
    value[to] = 0;
    return to;
}

bool body_parse(char *body, size_t length, struct fields *into)
{
    if (memchr(body, 0, length))
        return false;
    body[length] = 0; /* callers keep room for it */
    into->kind = strsep(&body, " ");
    into->count = 0;
    while (body) {
        char *part = strsep(&body, " ");
        char *equals = strchr(part, '=');
        if (!equals || into->count == MAX_FIELDS)
            return false;
        *equals = 0;
        struct field *field = &into->all[into->count++];
        *field = (struct field){.name = part, .value = equals + 1, .length = unquote(equals + 1)};
    }
    return true;
}

const struct field *field_of(const struct fields *fields, const char *name)
{
    for (size_t i = 0; i < fields->count; i++)
        if (!strcmp(fields->all[i].name, name))
            return &fields->all[i];
    return NULL;
}

bool field_count(const struct fields *fields, const char *name, uint64_t *value)
{
    const struct field *field = NULL;
    for (size_t i = 0; i < fields->count; i++)
        if (!strcmp(fields->all[i].name, name)) {
            if (field)
                return false;
            field = &fields->all[i];
        }
    if (!field || !field->length || field->length > 19)
        return false;
    *value = 0;
    for (size_t i = 0; i < field->length; i++) {
        if (field->value[i] < '0' || field->value[i] > '9')
            return false;
        *value = *value * 10 + (uint64_t)(field->value[i] - '0');
    }
    return true;
}

size_t reader_space(const struct reader *r)
{
    return sizeof r->bytes - r->length;
}

static bool line_parse(char *line, size_t length, struct fields *into)
{
    if (length < HEADER_BYTES || memcmp(line, MAGIC, MAGIC_BYTES) || line[HEADER_BYTES - 1] != ' ')
        return false;
    char expected[9];
    snprintf(expected, sizeof expected, "%08x", (unsigned)crc32_of(line + HEADER_BYTES, length - HEADER_BYTES));
    return !memcmp(line + MAGIC_BYTES, expected, 8) && body_parse(line + HEADER_BYTES, length - HEADER_BYTES, into);
}

bool frame_next(struct reader *r, struct fields *into)
{
    char *newline;
    while ((newline = memchr(r->bytes, '\n', r->length))) {
        size_t length = (size_t)(newline - r->bytes), taken = length + 1, from = 0;
        bool found = false;
        if (length >= MAX_FRAME_BYTES)
            from = length - (MAX_FRAME_BYTES - 1); /* a frame in it can only be at its end */
        /* the start of a frame may have been lost in front of a whole one, or a cut one may stand before it */
        for (; !found && from + HEADER_BYTES <= length; from++)
            if (!memcmp(r->bytes + from, MAGIC, MAGIC_BYTES)) {
                memcpy(r->line, r->bytes + from, length - from);
                found = line_parse(r->line, length - from, into);
            }
        r->length -= taken;
        memmove(r->bytes, r->bytes + taken, r->length);
        if (found)
            return true;
    }
    if (r->length > MAX_FRAME_BYTES) {
        memmove(r->bytes, r->bytes + r->length - MAX_FRAME_BYTES, MAX_FRAME_BYTES);
        r->length = MAX_FRAME_BYTES;
    }
    return false;
}
