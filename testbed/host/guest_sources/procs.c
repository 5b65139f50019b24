#define _GNU_SOURCE
#include "procs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "told.h"

#define MAX_TREE 4096 /* processes that one `kill` reaches */
#define KILL_ROUNDS 20
#define LINE_COST_BYTES 32 /* so that many empty lines are bounded, too */
#define READS_A_LOOK 64 /* of one process, so that none keeps the agent from all else */
#define LAYER "/usr/lib/waits.so"

struct proc {
    int pid; /* 0: this place is free */
    int out; /* -1: closed */
    bool ended;
    int status;
    size_t length;
    char line[MAX_TEXT_BYTES];
};

static struct proc procs[MAX_PROCS];

void procs_begin(void)
{
    prctl(PR_SET_CHILD_SUBREAPER, 1);
}

static void fill_out(struct message *m, const void *from)
{
    const struct proc *p = from;
    message_field(m, "pid", "%d", p->pid);
    message_text(m, "text", p->line, p->length);
}

static void fill_exit(struct message *m, const void *from)
{
    const struct proc *p = from;
    message_field(m, "pid", "%d", p->pid);
    message_field(m, "status", "%d", p->status);
}

static void flush(struct proc *p)
{
    told_add("out", fill_out, p, p->length + LINE_COST_BYTES);
    p->length = 0;
}

/* In the child: MPI finds its process manager by these, and the layer that counts waits goes between it and the program. */
static void take_place(const struct place *place)
{
    char text[32];
    fcntl(place->manager, F_SETFD, 0);
    snprintf(text, sizeof text, "%d", place->manager);
    setenv("PMI_FD", text, 1);
    snprintf(text, sizeof text, "%llu", (unsigned long long)place->rank);
    setenv("PMI_RANK", text, 1);
    snprintf(text, sizeof text, "%llu", (unsigned long long)place->ranks);
    setenv("PMI_SIZE", text, 1);
    const char *layer = getenv("DFRS_LAYER"); /* another place than the guest's, for tests on a host */
    if (!layer)
        layer = LAYER;
    if (!access(layer, R_OK))
        setenv("LD_PRELOAD", layer, 1);
}

int procs_run(char *const *arguments, const struct place *place, char *error, size_t room)
{
    struct proc *p = procs;
    while (p < procs + MAX_PROCS && p->pid)
        p++;
    if (p == procs + MAX_PROCS) {
        snprintf(error, room, "%d processes run already", MAX_PROCS);
        return 0;
    }
    int out[2], failure[2];
    if (pipe2(out, O_CLOEXEC)) {
        snprintf(error, room, "pipe: %s", strerror(errno));
        return 0;
    }
    if (pipe2(failure, O_CLOEXEC)) {
        snprintf(error, room, "pipe: %s", strerror(errno));
        close(out[0]);
        close(out[1]);
        return 0;
    }
    int pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        signal(SIGPIPE, SIG_DFL);
        setsid();
        int null = open("/dev/null", O_RDONLY);
        dup2(null, 0);
        dup2(out[1], 1);
        dup2(out[1], 2);
        int adjust = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC); /* programs go before the agent */
        if (adjust < 0 || write(adjust, "0", 1) < 0)
            errno = 0; /* on a host that is not allowed, nor is it needed */
        if (place)
            take_place(place);
        execv(arguments[0], arguments);
        int why = errno;
        if (write(failure[1], &why, sizeof why) < 0)
            _exit(126);
        _exit(127);
    }
    int why = pid < 0 ? errno : 0;
    close(out[1]);
    close(failure[1]);
    if (pid > 0)
        while (read(failure[0], &why, sizeof why) < 0 && errno == EINTR)
            continue;
    close(failure[0]);
    if (why) {
        snprintf(error, room, "%s: %s", arguments[0], strerror(why));
        close(out[0]); /* the child, if there is one, is reaped by the next look */
        return 0;
    }
    fcntl(out[0], F_SETFL, O_NONBLOCK);
    *p = (struct proc){.pid = pid, .out = out[0]};
    return pid;
}

/* Read what is there; at the end of the output close it. */
static void drain(struct proc *p)
{
    for (int i = 0; p->out >= 0 && i < READS_A_LOOK; i++) {
        char bytes[4096];
        ssize_t count = read(p->out, bytes, sizeof bytes);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0 && errno == EAGAIN)
            return;
        if (count <= 0) {
            if (p->length)
                flush(p);
            close(p->out);
            p->out = -1;
            return;
        }
        for (ssize_t at = 0; at < count; at++) {
            if (bytes[at] == '\n') {
                flush(p);
            } else {
                p->line[p->length++] = bytes[at];
                if (p->length == sizeof p->line)
                    flush(p);
            }
        }
    }
}

void procs_look(void (*last_words)(void))
{
    int status, pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (struct proc *p = procs; p < procs + MAX_PROCS; p++)
            if (p->pid == pid && !p->ended) {
                p->ended = true;
                p->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
                drain(p);
                if (p->length)
                    flush(p);
                last_words();
                told_add("exit", fill_exit, p, 0);
            }
    for (struct proc *p = procs; p < procs + MAX_PROCS; p++)
        if (p->pid) {
            drain(p);
            if (p->ended && p->out < 0) /* a child of it may still hold the output */
                p->pid = 0;
        }
}

unsigned procs_poll(struct pollfd *into)
{
    unsigned count = 0;
    for (struct proc *p = procs; p < procs + MAX_PROCS; p++)
        if (p->pid && p->out >= 0)
            into[count++] = (struct pollfd){.fd = p->out, .events = POLLIN};
    return count;
}

struct member {
    int pid, parent;
    bool below, told;
};

static unsigned list(struct member *into)
{
    unsigned count = 0;
    DIR *folder = opendir("/proc");
    for (struct dirent *entry; folder && count < MAX_TREE && (entry = readdir(folder));) {
        char path[300], text[512];
        int pid = atoi(entry->d_name);
        if (pid <= 0)
            continue;
        snprintf(path, sizeof path, "/proc/%d/stat", pid);
        int file = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
        if (file >= 0)
            close(file);
        if (length <= 0)
            continue;
        text[length] = 0;
        char state, *after = strrchr(text, ')'); /* a name may hold anything, also this */
        int parent;
        if (after && sscanf(after + 1, " %c %d", &state, &parent) == 2 && state != 'Z')
            into[count++] = (struct member){.pid = pid, .parent = parent};
    }
    if (folder)
        closedir(folder);
    return count;
}

/* Everything that descends from this process, in whatever session: orphans come back to it. Looks again until there is
   nobody new, because who is being told may be starting others meanwhile. */
void procs_kill(int number)
{
    static struct member all[MAX_TREE];
    static int told[MAX_TREE];
    unsigned told_count = 0, before;
    int rounds = KILL_ROUNDS;
    do {
        before = told_count;
        unsigned count = list(all);
        for (bool more = true; more;) {
            more = false;
            for (unsigned i = 0; i < count; i++)
                for (unsigned j = 0; !all[i].below && j < count; j++)
                    if (all[i].parent == getpid() || (all[j].below && all[j].pid == all[i].parent))
                        more = all[i].below = true;
        }
        for (unsigned i = 0; i < count; i++) {
            for (unsigned j = 0; j < told_count; j++)
                all[i].told |= told[j] == all[i].pid;
            if (all[i].below && !all[i].told && told_count < MAX_TREE && kill(all[i].pid, number) == 0)
                told[told_count++] = all[i].pid;
        }
    } while (told_count > before && --rounds);
}
