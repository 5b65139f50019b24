#define _GNU_SOURCE
#include "pmi.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "procs.h"
#include "told.h"

#define MAX_LINE_BYTES 2048 /* as node_agent/drivers/pmi/wire.py has it */
#define MAX_STATE_BYTES 64

static int rank = -1; /* the agent's end; -1: there is no rank */
static char rest[2 * MAX_LINE_BYTES];
static size_t length;
static char line[MAX_LINE_BYTES];
static size_t line_length;
static char state[MAX_STATE_BYTES] = "-";
static uint64_t number; /* of the last line that was told */
static uint64_t seq;    /* of its event; 0: it is answered */

static void hang_up(void)
{
    close(rank);
    rank = -1;
}

static void keep_state(const struct field *said)
{
    snprintf(state, sizeof state, "%s", said->value);
}

int pmi_run(const struct fields *order, char *const *arguments, char *error, size_t room)
{
    struct place place;
    int pair[2];
    const struct field *said = field_of(order, "state");
    if (!said || !field_count(order, "rank", &place.rank) || !field_count(order, "ranks", &place.ranks)) {
        snprintf(error, room, "rank, ranks, state: expected two counts and a text");
        return 0;
    }
    if (rank >= 0 || seq) {
        snprintf(error, room, "a rank runs here already");
        return 0;
    }
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) {
        snprintf(error, room, "socketpair: %s", strerror(errno));
        return 0;
    }
    rank = pair[0];
    place.manager = pair[1];
    length = 0;
    keep_state(said);
    int pid = procs_run(arguments, &place, error, room);
    close(place.manager);
    if (!pid)
        hang_up();
    return pid;
}

unsigned pmi_poll(struct pollfd *into)
{
    if (rank < 0 || seq)
        return 0; /* a rank waits for each answer, so all that it says meanwhile is nonsense and can wait */
    *into = (struct pollfd){.fd = rank, .events = POLLIN};
    return 1;
}

static void fill_line(struct message *m, const void *from)
{
    (void)from;
    message_field(m, "number", "%llu", (unsigned long long)number);
    message_field(m, "state", "%s", state);
    message_text(m, "line", line, line_length);
}

static void fill_trouble(struct message *m, const void *from)
{
    (void)from;
    message_field(m, "message", "MPI says a line of %d bytes or more", MAX_LINE_BYTES);
}

void pmi_look(void)
{
    if (rank < 0 || seq)
        return;
    char *end = memchr(rest, '\n', length);
    if (!end && length < sizeof rest) {
        ssize_t count = recv(rank, rest + length, sizeof rest - length, MSG_DONTWAIT);
        if (count < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (count <= 0) {
            hang_up(); /* its end is told by that of its process */
            return;
        }
        length += (size_t)count;
        end = memchr(rest, '\n', length);
    }
    size_t taken = end ? (size_t)(end - rest) : length;
    if (taken >= MAX_LINE_BYTES) {
        told_add("error", fill_trouble, NULL, 0);
        hang_up();
        return;
    }
    if (!end)
        return;
    memcpy(line, rest, taken);
    line_length = taken++;
    length -= taken;
    memmove(rest, rest + taken, length);
    number++;
    told_add("pmi", fill_line, NULL, 0);
    seq = told_seq();
}

void pmi_answer(const struct fields *order, char *error, size_t room)
{
    uint64_t to;
    const struct field *text = field_of(order, "text"), *said = field_of(order, "state");
    if (!text || !said || !field_count(order, "number", &to) || to > number || memchr(text->value, '\n', text->length)) {
        snprintf(error, room, "number, state, text: expected the answer to line %llu or before, in one line",
                 (unsigned long long)number);
        return;
    }
    if (to < number || !seq)
        return; /* by an earlier host: the rank has its answer */
    told_forget(seq);
    seq = 0;
    keep_state(said);
    struct iovec parts[] = {{text->value, text->length}, {"\n", 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    if (text->length && rank >= 0 && sendmsg(rank, &message, MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
        hang_up(); /* the rank has ended: one that lives takes an answer at once */
}
