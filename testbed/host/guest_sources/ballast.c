#define _GNU_SOURCE
#include "ballast.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernel.h"
#include "report.h"
#include "words.h"

#define LANES 32768 /* words a block: 256 KiB */

static uint64_t available_mib(void)
{
    const char *path = getenv("DFRS_MEMINFO"); /* another machine's size, for tests on a host */
    FILE *file = fopen(path ? path : "/proc/meminfo", "re");
    char line[128];
    unsigned long long kib = 0;
    int found = 0;
    while (file && !found && fgets(line, sizeof line, file))
        found = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
    if (file)
        fclose(file);
    if (!found)
        fail("the kernel does not say how much memory is available");
    return kib / 1024;
}

uint64_t ballast_fill(uint64_t seed, double touched_frac, double *touch_s)
{
    double begin_s = monotonic_s();
    static uint64_t lanes[LANES]; /* before the look at what is available: it is part of what the program needs */
    stream(seed, lanes, LANES);
    uint64_t available = available_mib(), mib = available > RESERVE_MIB ? available - RESERVE_MIB : 0;
    if (mib) {
        size_t bytes = mib << 20;
        uint64_t *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (block == MAP_FAILED)
            fail("ballast of %llu MiB: %s", (unsigned long long)mib, strerror(errno));
        madvise(block, bytes, MADV_HUGEPAGE); /* fewer page faults */
        double blocks = nearbyint(touched_frac * (double)(bytes / (LANES * sizeof *block))); /* as the twin rounds */
        for (size_t todo = blocks < 1 ? 1 : (size_t)blocks; todo; todo--, block += LANES)
            for (size_t i = 0; i < LANES; i++) {
                lanes[i] = lanes[i] * LCG_A + LCG_C;
                block[i] = lanes[i] ^ (lanes[i] >> 32);
            }
    }
    *touch_s = monotonic_s() - begin_s;
    return mib;
}
