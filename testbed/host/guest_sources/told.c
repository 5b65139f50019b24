#include "told.h"

#include <stdlib.h>
#include <string.h>

struct event {
    struct event *next;
    uint64_t seq;
    size_t length, out_bytes;
    char frame[];
};

static struct event *oldest, **end = &oldest;
static uint64_t last, cursor; /* seq of the newest event, and of the last one that was told */
static size_t out_bytes, others;

static void drop(struct event **at)
{
    struct event *gone = *at;
    *at = gone->next;
    if (end == &gone->next)
        end = at;
    out_bytes -= gone->out_bytes;
    others -= !gone->out_bytes;
    free(gone);
}

static void forget(bool out)
{
    for (struct event **at = &oldest; *at; at = &(*at)->next)
        if (((*at)->out_bytes != 0) == out) {
            drop(at);
            return;
        }
}

void told_forget(uint64_t seq)
{
    for (struct event **at = &oldest; *at; at = &(*at)->next)
        if ((*at)->seq == seq) {
            drop(at);
            return;
        }
}

void told_add(const char *kind, void (*fill)(struct message *m, const void *from), const void *from, size_t bytes)
{
    static struct message m;
    message_begin(&m, kind);
    message_field(&m, "seq", "%llu", (unsigned long long)last + 1);
    fill(&m, from);
    size_t length = message_frame(&m);
    struct event *event = length ? malloc(sizeof *event + length) : NULL;
    if (!event)
        return;
    *event = (struct event){.seq = ++last, .length = length, .out_bytes = bytes};
    memcpy(event->frame, m.bytes, length);
    out_bytes += bytes;
    others += !bytes;
    *end = event;
    end = &event->next;
    while (out_bytes > RETAINED_OUT_BYTES)
        forget(true);
    while (others > RETAINED_OTHER)
        forget(false);
}

uint64_t told_seq(void)
{
    return last;
}

void told_rewind(uint64_t seq)
{
    cursor = seq;
}

size_t told_next(char *frame)
{
    for (struct event *event = oldest; event; event = event->next)
        if (event->seq > cursor) {
            cursor = event->seq;
            memcpy(frame, event->frame, event->length);
            return event->length;
        }
    return 0;
}
