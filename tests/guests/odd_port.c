/* A poll and a write for the guest's agent whose port does what virtio ports do at times, as files in its folder say:

   hangup   the port is found hung up: as long as the kernel has not heard of a host
   short    a write takes at most as many bytes as the file's number
   room     the port takes as many bytes as the file's number in all, then it refuses; the number is counted down
   untold   nobody is told that the port takes something again

   Looks at the port alone are counted in the file `looks`. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int __real_poll(struct pollfd *fds, nfds_t count, int timeout_ms);
ssize_t __real_write(int file, const void *bytes, size_t count);

static const char *path_of(const char *name)
{
    static char path[256];
    const char *folder = getenv("DFRS_TEST_FOLDER");
    if (!folder)
        abort();
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int is_port(int file)
{
    const char *port = getenv("DFRS_TEST_PORT");
    if (!port)
        abort();
    return file == atoi(port);
}

static long number_in(const char *name)
{
    long number = -1;
    FILE *file = fopen(path_of(name), "r");
    if (file && fscanf(file, "%ld", &number) != 1)
        abort();
    if (file)
        fclose(file);
    return number;
}

static void put_number(const char *name, long number)
{
    FILE *file = fopen(path_of("new"), "w");
    if (!file || fprintf(file, "%ld", number) < 0 || fclose(file))
        abort();
    char from[256];
    snprintf(from, sizeof from, "%s", path_of("new"));
    if (rename(from, path_of(name)))
        abort();
}

ssize_t __wrap_write(int file, const void *bytes, size_t count)
{
    if (!is_port(file))
        return __real_write(file, bytes, count);
    long room = number_in("room"), most = number_in("short");
    if (room == 0) {
        errno = EAGAIN;
        return -1;
    }
    if (most > 0 && count > (size_t)most)
        count = (size_t)most;
    if (room > 0 && count > (size_t)room)
        count = (size_t)room;
    ssize_t written = __real_write(file, bytes, count);
    if (room > 0 && written > 0)
        put_number("room", room - written);
    return written;
}

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout_ms)
{
    if (is_port(fds[0].fd) && (access(path_of("untold"), F_OK) == 0 || number_in("room") == 0))
        fds[0].events &= ~POLLOUT;
    int found = __real_poll(fds, count, timeout_ms);
    if (found < 0 || !is_port(fds[0].fd))
        return found;
    if (access(path_of("hangup"), F_OK) == 0) {
        found += fds[0].revents == 0;
        fds[0].revents |= POLLHUP;
    }
    if (count == 1) {
        FILE *looks = fopen(path_of("looks"), "a");
        if (!looks || fputc('.', looks) == EOF || fclose(looks))
            abort();
    }
    return found;
}
