#define _GNU_SOURCE
#include "report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

void (*at_failure)(void);
static int agent = -1;

double monotonic_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

const char *in_run(const char *name)
{
    static char path[sizeof ((struct sockaddr_un *)0)->sun_path];
    const char *folder = getenv("DFRS_RUN"); /* another place than the guest's, for tests on a host */
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "/run", name);
    return path;
}

void report_say(const struct message *m)
{
    size_t length;
    const char *body = message_body(m, &length);
    ssize_t sent;
    do
        sent = send(agent, body, length, MSG_NOSIGNAL);
    while (sent < 0 && errno == EINTR);
}

void fail(const char *format, ...)
{
    static bool failing;
    static struct message m;
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (!failing) {
        failing = true;
        message_begin(&m, "error");
        message_field(&m, "message", "%s", text);
        if (agent >= 0)
            report_say(&m);
        fprintf(stderr, "%s\n", text);
        if (at_failure)
            at_failure();
    }
    _exit(1);
}

void report_open(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", in_run("agent.sock"));
    agent = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connect(agent, (struct sockaddr *)&address, sizeof address)) {
        int error = errno;
        close(agent);
        agent = -1;
        fail("%s: %s", address.sun_path, strerror(error));
    }
}

void report_wait_for_go(void)
{
    char order[64];
    ssize_t length;
    do
        length = recv(agent, order, sizeof order, 0);
    while (length < 0 && errno == EINTR);
    if (length != 2 || memcmp(order, "go", 2))
        fail("no go from the agent");
}
