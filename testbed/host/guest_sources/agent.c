/* The agent inside a guest. `agent` finds its port, or Xen's console; `agent FD FOLDER` speaks on an open descriptor. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "pace.h"
#include "pmi.h"
#include "procs.h"
#include "told.h"
#include "waits.h"
#include "wire.h"

#define PORT_NAME "dfrs.ctl"
#define BEAT_MS 500
#define ABSENT_MS 50   /* between two looks at a port without a host: its hang-up cannot be waited for */
#define PROGRESS_MS 10 /* while a first progress is owed */
#define MAX_PROGRAMS 8
#define MAX_ANSWERS 4 /* not yet written; the host waits for each, so there is one */

struct program {
    int socket; /* -1: this place is free */
    bool ready;
};

static int port, listener, signals;
static const char *run_folder = "/run";
static char boot[17];
static bool attached; /* somebody has: from then on all is told, and told again to whoever attaches next */
static bool gone_ahead, owes_progress;
static uint64_t units_before; /* when progress was last promised */
static struct pace *pace;
static struct waits *waits; /* of the rank; all 0 without the layer that counts them */
static struct program programs[MAX_PROGRAMS];
static struct reader from_host;
static uint64_t last_id;
static char last_answer[MAX_FRAME_BYTES];
static size_t last_answer_length;
static struct {
    char bytes[MAX_FRAME_BYTES];
    size_t length;
} answers[MAX_ANSWERS];
static unsigned answer_count;
static char out[MAX_FRAME_BYTES]; /* the frame that is being written */
static size_t out_length, out_done;
static int64_t next_beat_ns;

static int64_t mono_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static const char *in_run(const char *name)
{
    static char path[2][sizeof((struct sockaddr_un *)0)->sun_path]; /* two may be in use at once */
    static unsigned turn;
    turn ^= 1;
    snprintf(path[turn], sizeof path[turn], "%s/%s", run_folder, name);
    return path[turn];
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* ---- what is told ---- */

static void fill_hello(struct message *m, const void *from)
{
    (void)from;
    struct timespec up;
    clock_gettime(CLOCK_BOOTTIME, &up);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    message_field(m, "boot", "%s", boot);
    message_field(m, "v", "%d", WIRE_VERSION);
    message_field(m, "memory_mib", "%lld", (long long)pages * page >> 20);
    message_field(m, "uptime_s", "%.2f", (double)up.tv_sec + (double)up.tv_nsec * 1e-9);
}

static void fill_said(struct message *m, const void *from)
{
    const struct fields *said = from;
    for (size_t i = 0; i < said->count; i++)
        message_text(m, said->all[i].name, said->all[i].value, said->all[i].length);
}

/* For how long the rank has waited for each rank; left out where it would not fit. */
static void fill_waits(struct message *m)
{
    static char text[WAITS_MOST_RANKS * 28];
    uint64_t ranks = pace_get(&waits->ranks);
    size_t length = 0;
    if (!ranks || ranks > WAITS_MOST_RANKS)
        return;
    for (uint64_t rank = 0; rank < ranks; rank++) {
        uint64_t us = pace_get(&waits->ns_by_rank[rank]) / 1000;
        length += (size_t)snprintf(text + length, sizeof text - length, us ? "%s%llu.%06llu" : "%s0", rank ? "," : "",
                                   (unsigned long long)(us / 1000000), (unsigned long long)(us % 1000000));
    }
    if (m->length + sizeof " waits_s=" + length < MAX_FRAME_BYTES)
        message_text(m, "waits_s", text, length);
}

static size_t momentary(const char *kind)
{
    static struct message m;
    message_begin(&m, kind);
    message_field(&m, "units", "%llu", (unsigned long long)pace_get(&pace->units));
    message_field(&m, "mono_ns", "%lld", (long long)mono_ns());
    if (pace_get(&pace->steps)) { /* else no program, or one that does not tell them */
        message_field(&m, "steps", "%llu", (unsigned long long)pace_get(&pace->steps));
        message_field(&m, "longest_s", "%.9f", (double)pace_take(&pace->longest_ns) * 1e-9);
        message_field(&m, "compute_s", "%.9f", (double)pace_get(&pace->compute_ns) * 1e-9);
        message_field(&m, "comm_s", "%.9f", (double)pace_get(&pace->comm_ns) * 1e-9);
    }
    fill_waits(&m);
    size_t length = message_frame(&m);
    memcpy(out, m.bytes, length);
    return length;
}

/* The next frame, when there is one. Beats and progress are made when the port takes them: they never pile up. */
static size_t next_frame(void)
{
    if (answer_count) {
        size_t length = answers[0].length;
        memcpy(out, answers[0].bytes, length);
        memmove(answers, answers + 1, --answer_count * sizeof *answers);
        return length;
    }
    size_t length = attached ? told_next(out) : 0;
    if (!attached || length)
        return length;
    if (owes_progress && pace_get(&pace->units) > units_before) {
        owes_progress = false;
        return momentary("progress");
    }
    if (mono_ns() >= next_beat_ns) {
        next_beat_ns = mono_ns() + BEAT_MS * 1000000LL;
        return momentary("beat");
    }
    return 0;
}

/* Write what the port takes. Return whether something waits for it. */
static bool write_port(void)
{
    for (;;) {
        if (out_done == out_length) {
            out_done = 0;
            out_length = next_frame();
            if (!out_length)
                return false;
        }
        ssize_t count = write(port, out + out_done, out_length - out_done);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return true;
        out_done += (size_t)count;
    }
}

/* ---- programs ---- */

static void send_go(struct program *p)
{
    if (send(p->socket, "go", 2, MSG_NOSIGNAL | MSG_DONTWAIT) == 2)
        p->ready = false;
}

/* Take one message; return whether there was one. */
static bool hear(struct program *p)
{
    static char body[MAX_FRAME_BYTES + 1];
    static struct fields said;
    ssize_t count = recv(p->socket, body, sizeof body - 1, MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EINTR))
        return false;
    if (count <= 0) {
        close(p->socket);
        *p = (struct program){.socket = -1};
        return false;
    }
    if (!body_parse(body, (size_t)count, &said))
        return true;
    bool ready = !strcmp(said.kind, "ready");
    if (ready || !strcmp(said.kind, "done") || !strcmp(said.kind, "error"))
        told_add(said.kind, fill_said, &said, 0);
    p->ready |= ready;
    if (ready && gone_ahead)
        send_go(p);
    return true;
}

static void hear_all(void)
{
    int one;
    while ((one = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0) {
        struct program *p = programs;
        while (p < programs + MAX_PROGRAMS && p->socket >= 0)
            p++;
        if (p < programs + MAX_PROGRAMS)
            p->socket = one;
        else
            close(one);
    }
    for (struct program *p = programs; p < programs + MAX_PROGRAMS; p++)
        while (p->socket >= 0 && hear(p))
            continue;
}

static bool working(void)
{
    for (struct program *p = programs; p < programs + MAX_PROGRAMS; p++)
        if (p->socket >= 0 && !p->ready)
            return gone_ahead;
    return false;
}

/* ---- orders ---- */

static void promise_progress(void)
{
    owes_progress = true;
    units_before = pace_get(&pace->units);
}

static bool order_task(const struct fields *order, char *error, size_t room)
{
    for (size_t i = 0; i < order->count; i++)
        if (memchr(order->all[i].value, '\n', order->all[i].length) ||
            memchr(order->all[i].value, 0, order->all[i].length)) {
            snprintf(error, room, "%s: expected a value of one line", order->all[i].name);
            return false;
        }
    FILE *file = fopen(in_run("task.new"), "we");
    for (size_t i = 0; file && i < order->count; i++)
        if (strcmp(order->all[i].name, "id"))
            fprintf(file, "%s=%s\n", order->all[i].name, order->all[i].value);
    bool failed = !file || ferror(file);
    if ((file && fclose(file)) || failed || rename(in_run("task.new"), in_run("task"))) {
        snprintf(error, room, "task: %s", strerror(errno));
        return false;
    }
    gone_ahead = owes_progress = false;
    memset(pace, 0, sizeof *pace);
    memset(waits, 0, sizeof *waits);
    units_before = 0;
    return true;
}

static int order_run(const struct fields *order, char *error, size_t room)
{
    char *arguments[MAX_FIELDS + 1];
    size_t count = 0;
    for (size_t i = 0; i < order->count; i++)
        if (!strcmp(order->all[i].name, "arg"))
            arguments[count++] = order->all[i].value;
    arguments[count] = NULL;
    if (!count || arguments[0][0] != '/') {
        snprintf(error, room, "arg = %s: expected an absolute path first", count ? arguments[0] : "nothing");
        return 0;
    }
    return strcmp(order->kind, "rank") ? procs_run(arguments, NULL, error, room)
                                       : pmi_run(order, arguments, error, room);
}

static void answer(const char *bytes, size_t length)
{
    memcpy(answers[answer_count].bytes, bytes, length);
    answers[answer_count++].length = length;
}

static void obey(const struct fields *order)
{
    static struct message m;
    char error[600] = "";
    uint64_t id, value = 0;
    int pid = 0;
    if (!field_count(order, "id", &id) || !id)
        return; /* nobody could tell what an answer belongs to */
    if (id == last_id) {
        answer(last_answer, last_answer_length);
        return;
    }
    bool attaches = !strcmp(order->kind, "attach");
    if (id < last_id) {
        snprintf(error, sizeof error, "order %llu is older than %llu", (unsigned long long)id,
                 (unsigned long long)last_id);
    } else if (attaches) {
        if (field_count(order, "after", &value)) {
            attached = true;
            told_rewind(value);
            next_beat_ns = mono_ns() + BEAT_MS * 1000000LL;
            promise_progress();
        } else {
            snprintf(error, sizeof error, "after: expected a count");
        }
    } else if (!strcmp(order->kind, "task")) {
        order_task(order, error, sizeof error);
    } else if (!strcmp(order->kind, "run") || !strcmp(order->kind, "rank")) {
        pid = order_run(order, error, sizeof error);
    } else if (!strcmp(order->kind, "pmi")) {
        pmi_answer(order, error, sizeof error);
    } else if (!strcmp(order->kind, "go")) {
        gone_ahead = true;
        promise_progress();
        for (struct program *p = programs; p < programs + MAX_PROGRAMS; p++)
            if (p->socket >= 0 && p->ready)
                send_go(p);
    } else if (!strcmp(order->kind, "kill")) {
        if (field_count(order, "signal", &value) && value > 0 && value < 65)
            procs_kill((int)value);
        else
            snprintf(error, sizeof error, "signal: expected a number from 1 to 64");
    } else {
        snprintf(error, sizeof error, "%.100s: expected attach, task, run, rank, pmi, go or kill", order->kind);
    }
    message_begin(&m, *error ? "refused" : attaches ? "attached" : "ok");
    message_field(&m, "id", "%llu", (unsigned long long)id);
    if (*error) {
        message_field(&m, "error", "%s", error);
        if (id < last_id)
            message_field(&m, "last", "%llu", (unsigned long long)last_id);
    } else if (attaches) {
        message_field(&m, "boot", "%s", boot);
        message_field(&m, "seq", "%llu", (unsigned long long)told_seq());
    } else if (pid) {
        message_field(&m, "pid", "%d", pid);
    }
    size_t length = message_frame(&m);
    if (id > last_id) {
        last_id = id;
        memcpy(last_answer, m.bytes, length);
        last_answer_length = length;
    }
    answer(m.bytes, length);
}

/* Return false when the other end is gone for good, as only that of a socket can be. */
static bool read_port(bool readable)
{
    static struct fields order;
    while (answer_count < MAX_ANSWERS && frame_next(&from_host, &order))
        obey(&order);
    if (!readable || answer_count == MAX_ANSWERS)
        return true;
    ssize_t count = read(port, from_host.bytes + from_host.length, reader_space(&from_host));
    if (count > 0)
        from_host.length += (size_t)count;
    while (answer_count < MAX_ANSWERS && frame_next(&from_host, &order))
        obey(&order);
    return count != 0;
}

/* ---- beginning ---- */

/* Under Xen the first console is the channel: what the kernel says there is no frame, so the host skips it. */
static int open_xen_console(void)
{
    FILE *text = fopen("/sys/hypervisor/type", "re");
    char type[16] = "";
    if (!text)
        return -1;
    bool xen = fgets(type, sizeof type, text) && !strcmp(type, "xen\n");
    fclose(text);
    int file = xen ? open("/dev/hvc0", O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC) : -1;
    struct termios line;
    if (file >= 0 && !tcgetattr(file, &line)) {
        cfmakeraw(&line); /* no echo of orders, no line ends of its own */
        tcsetattr(file, TCSANOW, &line);
    }
    return file;
}

static int find_port(void)
{
    for (;; usleep(20000)) { /* it appears some time after its driver */
        int console = open_xen_console();
        if (console >= 0)
            return console;
        glob_t found;
        int file = -1;
        if (!glob("/sys/class/virtio-ports/*/name", 0, NULL, &found))
            for (size_t i = 0; i < found.gl_pathc && file < 0; i++) {
                char name[64] = "", *path = found.gl_pathv[i], device[300];
                FILE *text = fopen(path, "re");
                if (!text || !fgets(name, sizeof name, text))
                    *name = 0;
                if (text)
                    fclose(text);
                name[strcspn(name, "\n")] = 0;
                if (strcmp(name, PORT_NAME))
                    continue;
                *strrchr(path, '/') = 0;
                snprintf(device, sizeof device, "/dev%s", strrchr(path, '/'));
                file = open(device, O_RDWR | O_NONBLOCK | O_CLOEXEC);
            }
        globfree(&found);
        if (file >= 0)
            return file;
    }
}

/* A file that programs write and the agent reads. */
static void *shared_file(const char *name, size_t bytes)
{
    int file = open(in_run(name), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, (off_t)bytes))
        die(name);
    void *found = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (found == MAP_FAILED)
        die(name);
    close(file);
    return found;
}

static void begin(void)
{
    uint64_t name;
    if (getrandom(&name, sizeof name, GRND_INSECURE) != sizeof name)
        name = (uint64_t)mono_ns() * 0x9E3779B97F4A7C15u;
    snprintf(boot, sizeof boot, "%016llx", (unsigned long long)name);

    pace = shared_file("progress", sizeof *pace);
    waits = shared_file("waits", sizeof *waits);
    setenv("DFRS_WAITS", in_run("waits"), 1); /* the layer finds it by that */

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", in_run("agent.sock"));
    unlink(address.sun_path);
    listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, MAX_PROGRAMS))
        die("agent.sock");
    for (struct program *p = programs; p < programs + MAX_PROGRAMS; p++)
        p->socket = -1;

    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, NULL);
    signals = signalfd(-1, &child, SFD_NONBLOCK | SFD_CLOEXEC);
    signal(SIGPIPE, SIG_IGN);
    procs_begin();
}

static int patience_ms(bool absent, bool waits)
{
    if (absent)
        return ABSENT_MS;
    if (waits) /* the port wakes us; should it ever not, a write is tried all the same */
        return BEAT_MS;
    if (!attached)
        return -1;
    int64_t left_ns = next_beat_ns - mono_ns();
    int patience = left_ns > 0 ? (int)((left_ns + 999999) / 1000000) : 0;
    return owes_progress && working() && patience > PROGRESS_MS ? PROGRESS_MS : patience;
}

int main(int count, char **arguments)
{
    if (count == 3) {
        run_folder = arguments[2];
        port = atoi(arguments[1]);
        fcntl(port, F_SETFL, O_NONBLOCK);
        fcntl(port, F_SETFD, FD_CLOEXEC);
    } else {
        int adjust = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
        if (adjust < 0 || write(adjust, "-1000", 5) < 0)
            perror("oom_score_adj");
        close(adjust);
    }
    begin();
    if (count != 3)
        port = find_port();
    told_add("hello", fill_hello, NULL, 0);
    for (bool absent = false;;) {
        pmi_look();
        bool waits = !absent && write_port();
        struct pollfd polled[4 + MAX_PROGRAMS + MAX_PROCS] = {
            {.fd = absent ? -1 : port,
             .events = (short)((answer_count < MAX_ANSWERS ? POLLIN : 0) | (waits ? POLLOUT : 0))},
            {.fd = signals, .events = POLLIN},
            {.fd = listener, .events = POLLIN},
        };
        for (unsigned i = 0; i < MAX_PROGRAMS; i++)
            polled[3 + i] = (struct pollfd){.fd = programs[i].socket, .events = POLLIN};
        unsigned running = procs_poll(polled + 3 + MAX_PROGRAMS);
        running += pmi_poll(polled + 3 + MAX_PROGRAMS + running);
        poll(polled, 3 + MAX_PROGRAMS + running, patience_ms(absent, waits));

        struct signalfd_siginfo ignored;
        while (read(signals, &ignored, sizeof ignored) > 0)
            continue;
        hear_all();
        procs_look(hear_all);
        struct pollfd now = {.fd = port, .events = POLLIN};
        poll(&now, 1, 0);
        /* Orders overtake the news of who sent them: an attach may be read before its host's arrival is heard of, or
           even the departure of the one before. So a hang-up undoes nothing, and only keeps frames back. */
        absent = now.revents & POLLHUP;
        if (!read_port(now.revents & POLLIN) && count == 3)
            return 0;
    }
}
