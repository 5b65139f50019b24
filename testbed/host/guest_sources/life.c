#define _GNU_SOURCE
#include "life.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "ballast.h"
#include "kernel.h"
#include "pace.h"
#include "report.h"
#include "wire.h"
#include "words.h"

struct task task;
static struct pace *pace;
static uint64_t steps;
static double compute_s, comm_s;

static char *lines[64];
static size_t line_count;

static const char *value_or(const char *name, const char *other)
{
    size_t length = strlen(name);
    for (size_t i = 0; i < line_count; i++)
        if (!strncmp(lines[i], name, length) && lines[i][length] == '=')
            return lines[i] + length + 1;
    return other;
}

static const char *value_of(const char *name)
{
    const char *value = value_or(name, NULL);
    if (!value)
        fail("%s = nothing: expected a value", name);
    return value;
}

static uint64_t count_of(const char *name, uint64_t least, uint64_t most)
{
    const char *text = value_of(name);
    char *end;
    errno = 0;
    uint64_t value = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno)
        fail("%s = %s: expected a count", name, text);
    if (value < least)
        fail("%s = %s: expected at least %llu", name, text, (unsigned long long)least);
    if (value > most)
        fail("%s = %s: expected at most %llu", name, text, (unsigned long long)most);
    return value;
}

static double part_of(const char *name)
{
    const char *text = value_or(name, "1"); /* agents of earlier versions do not say it */
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= 1))
        fail("%s = %s: expected more than 0 and at most 1", name, text);
    return value;
}

/* Four decimals as a count, as testbed/bus/need_profile.py reads them. */
static uint64_t parts_of_10000(const char **text)
{
    uint64_t value = 0;
    if (**text == '1') {
        ++*text;
        return 10000;
    }
    if (strncmp(*text, "0.", 2))
        return 0;
    *text += 2;
    for (int digits = 0; digits < 4; digits++) {
        bool is_digit = **text >= '0' && **text <= '9';
        value = 10 * value + (is_digit ? (uint64_t)(**text - '0') : 0);
        *text += is_digit;
    }
    return value;
}

static void read_profile(void)
{
    const char *whole = value_or("profile", "1"), *text = whole; /* agents of earlier versions do not say it */
    const unsigned most = sizeof task.phases / sizeof *task.phases;
    for (task.phase_count = 0; task.phase_count < most; text++) {
        uint64_t part = parts_of_10000(&text), from = 0;
        if (task.phase_count && *text == '@') {
            text++;
            from = parts_of_10000(&text);
        }
        bool later = !task.phase_count || from > task.phases[task.phase_count - 1].from;
        if (!part || !later || from >= 10000 || (*text && *text != ','))
            break;
        task.phases[task.phase_count].from = from;
        task.phases[task.phase_count++].part = part;
        if (!*text)
            return;
    }
    fail("profile = %s: expected parts of the need such as 1,0.25@0.5", whole);
}

static unsigned choice_of(const char *name, const char *const *known)
{
    const char *text = value_of(name);
    for (unsigned i = 0; known[i]; i++)
        if (!strcmp(text, known[i]))
            return i;
    fail("%s = %s: expected another, such as %s", name, text, known[0]);
}

static const char *const TOPOLOGIES[] = {"linear", "ring", "mesh", "torus", "all-to-all", "tree", NULL};
static const char *const IMBALANCES[] = {"uniform", "1/i", NULL};

/* N of drift:N, 0 for another imbalance */
static uint64_t drift_of(const char *name)
{
    const char *text = value_of(name), *digits = text + strlen("drift:");
    if (strncmp(text, "drift:", strlen("drift:")))
        return 0;
    size_t length = strspn(digits, "0123456789");
    if (digits[length] || length < 1 || length > 9 || *digits == '0')
        fail("%s = %s: expected a count after drift:, such as drift:100", name, text);
    return strtoull(digits, NULL, 10);
}

void life_read_task(const char *name)
{
    static char text[MAX_FRAME_BYTES];
    if (getenv("DFRS_RUN"))
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* on a host: not to outlive who started it */
    prctl(PR_SET_TIMERSLACK, 1000); /* short sleeps be short: the kernel's slack is 50 µs */
    report_open();
    const char *path = in_run("task");
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (length < 0)
        fail("%s: %s", path, strerror(errno));
    close(file);
    char *rest = text;
    while (rest && line_count < sizeof lines / sizeof *lines)
        lines[line_count++] = strsep(&rest, "\n");

    const uint64_t exact = (uint64_t)1 << 53; /* shares are computed in double precision, as the twin does */
    if (strcmp(value_of("name"), name))
        fail("name = %s: expected %s", value_of("name"), name);
    task = (struct task){
        .job = count_of("job", 0, UINT64_MAX),
        .task = count_of("task", 0, UINT64_MAX),
        .work_units = count_of("work_units", 1, exact),
        .units_per_iteration = count_of("units_per_iteration", 1, exact),
        .seed = count_of("seed", 0, UINT64_MAX),
        .workers = (unsigned)count_of("workers", 1, MAX_WORKERS),
        .ranks = (unsigned)count_of("ranks", 1, 1u << 20),
        .topology = (enum topology)choice_of("topology", TOPOLOGIES),
        .touched_frac = part_of("touched_frac"),
    };
    task.drift = drift_of("imbalance");
    task.one_over_i = task.drift || choice_of("imbalance", IMBALANCES) == 1;
    task.rank = (unsigned)count_of("rank", 0, task.ranks - 1);
    task.message_bytes = count_of("message_bytes", task.ranks == 1 ? 0 : task.topology == TREE ? 8 : 1, INT32_MAX);

    task.pace_ns = strtoull(value_or("pace_ns", "0"), NULL, 10);
    read_profile();
    if (task.drift && task.phase_count > 1)
        fail("profile = %s: expected 1 with work that drifts", value_or("profile", "1"));

    path = in_run("progress");
    file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (file < 0 || ftruncate(file, sizeof *pace))
        fail("%s: %s", path, strerror(errno));
    void *map = mmap(NULL, sizeof *pace, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        fail("%s: %s", path, strerror(errno));
    close(file);
    pace = map;
    memset(pace, 0, sizeof *pace);
    kernel_start(task.seed, task.rank, task.workers);
}

void life_prepare(void)
{
    static struct message m;
    double touch_s;
    uint64_t mib = ballast_fill(seed_of4(task.seed, task.job, task.task, 2), task.touched_frac, &touch_s);
    message_begin(&m, "ready");
    message_field(&m, "ballast_mib", "%llu", (unsigned long long)mib);
    message_field(&m, "touch_s", "%.6f", touch_s);
    report_say(&m);
    report_wait_for_go();
}

uint64_t life_iterations(void)
{
    return (task.work_units + task.units_per_iteration - 1) / task.units_per_iteration;
}

static uint64_t units_after(uint64_t iterations)
{
    return iterations >= life_iterations() ? task.work_units : iterations * task.units_per_iteration;
}

/* The part of the units of an iteration that the profile leaves; integers, as the twin has them. */
static uint64_t needed(uint64_t units, uint64_t iteration)
{
    unsigned __int128 all = life_iterations();
    unsigned phase = task.phase_count - 1;
    while (phase && iteration < (uint64_t)((task.phases[phase].from * all + 9999) / 10000))
        phase--;
    uint64_t scaled = (uint64_t)(((unsigned __int128)units * task.phases[phase].part + 5000) / 10000);
    return scaled ? scaled : 1;
}

uint64_t life_share(uint64_t iteration)
{
    uint64_t units = needed(units_after(iteration + 1) - units_after(iteration), iteration);
    unsigned moved = task.drift ? (unsigned)(iteration / task.drift % task.ranks) : 0;
    unsigned part = (task.rank + task.ranks - moved) % task.ranks + 1;
    if (!task.one_over_i || part == 1)
        return units;
    double share = nearbyint((double)units / (double)part); /* to even, as the twin rounds */
    return share < 1 ? 1 : (uint64_t)share;
}

/* Until the next iteration may begin. What is late by less than an iteration is caught up; more was held back. */
static void rest(double begin_s)
{
    static double next_s;
    const double pace_s = (double)task.pace_ns * 1e-9;
    next_s = next_s + pace_s > begin_s ? next_s + pace_s : begin_s;
    double rest_s = next_s - monotonic_s();
    if (rest_s <= 0 || rest_s > pace_s)
        return;
    struct timespec length = {.tv_sec = (time_t)rest_s};
    length.tv_nsec = (long)((rest_s - (double)length.tv_sec) * 1e9);
    nanosleep(&length, NULL);
}

void life_step(double begin_s, double computed_s, double end_s)
{
    uint64_t step_ns = (uint64_t)((end_s - begin_s) * 1e9);
    compute_s += computed_s - begin_s;
    comm_s += end_s - computed_s;
    pace_set(&pace->steps, ++steps);
    if (step_ns > pace_get(&pace->longest_ns))
        pace_set(&pace->longest_ns, step_ns);
    pace_set(&pace->compute_ns, (uint64_t)(compute_s * 1e9));
    pace_set(&pace->comm_ns, (uint64_t)(comm_s * 1e9));
    pace_set(&pace->units, units_after(steps)); /* last: the agent waits for it */
    if (task.pace_ns)
        rest(begin_s);
}

void life_done(uint64_t digest, uint64_t messages)
{
    static struct message m;
    message_begin(&m, "done");
    message_field(&m, "units", "%llu", (unsigned long long)task.work_units);
    message_field(&m, "checksum", "%016llx", (unsigned long long)seed_of2(kernel_checksum(), digest));
    message_field(&m, "messages", "%llu", (unsigned long long)messages);
    message_field(&m, "steps", "%llu", (unsigned long long)steps);
    message_field(&m, "longest_s", "%.9f", (double)pace_take(&pace->longest_ns) * 1e-9);
    message_field(&m, "compute_s", "%.6f", compute_s);
    message_field(&m, "comm_s", "%.6f", comm_s);
    report_say(&m);
}
