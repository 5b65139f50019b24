/* `eatcpu`: the task of one guest alone. `eatcpu calibrate CPU_S`: how fast this core is. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel.h"
#include "life.h"
#include "report.h"

#define WINDOWS 9
#define WARM_UP_NS 50e6
#define LEAST_WINDOW_NS 20e6

static double thread_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double units_per_s(double window_ns)
{
    double begin_ns = thread_ns(), now_ns = begin_ns, units = 0;
    while (now_ns - begin_ns < window_ns) {
        kernel_run(20);
        units += 20;
        now_ns = thread_ns();
    }
    return units * 1e9 / (now_ns - begin_ns);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int calibrate(const char *text)
{
    char *end;
    double cpu_s = strtod(text, &end), rates[WINDOWS];
    if (end == text || *end || !(cpu_s > 0 && cpu_s <= 3600)) {
        fprintf(stderr, "calibrate %s: expected seconds, at most 3600\n", text);
        return 2;
    }
    double window_ns = cpu_s * 1e9 / WINDOWS;
    if (window_ns < LEAST_WINDOW_NS)
        window_ns = LEAST_WINDOW_NS;
    kernel_start(1, 0, 1);
    units_per_s(WARM_UP_NS);
    for (int i = 0; i < WINDOWS; i++)
        rates[i] = units_per_s(window_ns);
    qsort(rates, WINDOWS, sizeof *rates, ascending);
    printf("units_per_core_s=%.1f\n", rates[WINDOWS / 2]);
    return 0;
}

int main(int count, char **arguments)
{
    if (count == 3 && !strcmp(arguments[1], "calibrate"))
        return calibrate(arguments[2]);
    life_read_task("eatcpu");
    if (task.ranks > 1)
        fail("ranks = %u: expected 1, eatcpu sends no messages", task.ranks);
    life_prepare();
    for (uint64_t i = 0; i < life_iterations(); i++) {
        double begin_s = monotonic_s();
        kernel_run(life_share(i));
        double end_s = monotonic_s();
        life_step(begin_s, end_s, end_s);
    }
    life_done(0, 0);
    return 0;
}
