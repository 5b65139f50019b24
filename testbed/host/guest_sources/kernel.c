#include "kernel.h"

#include <pthread.h>
#include <stdlib.h>

#include "report.h"
#include "words.h"

struct worker {
    uint64_t *words;
    uint64_t units; /* of this round */
    pthread_t thread;
};

static struct worker pool[MAX_WORKERS];
static unsigned workers;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t begin = PTHREAD_COND_INITIALIZER, end = PTHREAD_COND_INITIALIZER;
static uint64_t rounds;  /* begun so far */
static unsigned working; /* helpers of this round that have not ended it */

/* Scalar on purpose: SSE2 has no 64-bit multiplication, and emulated vector code is several times slower. */
__attribute__((optimize("no-tree-vectorize"))) static void sweep(uint64_t *words, uint64_t times)
{
    for (; times; times--) {
        for (size_t i = 0; i < ELEMENTS; i += 4) {
            words[i] = words[i] * LCG_A + LCG_C;
            words[i + 1] = words[i + 1] * LCG_A + LCG_C;
            words[i + 2] = words[i + 2] * LCG_A + LCG_C;
            words[i + 3] = words[i + 3] * LCG_A + LCG_C;
        }
        __asm__ volatile("" ::: "memory"); /* each unit is a pass of its own: the compiler must not merge two */
    }
}

static void *help(void *argument)
{
    struct worker *self = argument;
    uint64_t seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (rounds == seen)
            pthread_cond_wait(&begin, &lock);
        seen = rounds;
        pthread_mutex_unlock(&lock);
        sweep(self->words, self->units);
        pthread_mutex_lock(&lock);
        if (--working == 0)
            pthread_cond_signal(&end);
    }
    return NULL;
}

void kernel_start(uint64_t seed, uint64_t rank, unsigned count)
{
    workers = count;
    for (unsigned i = 0; i < workers; i++) {
        pool[i].words = malloc(ELEMENTS * sizeof(uint64_t));
        if (!pool[i].words)
            fail("no memory for worker %u", i);
        stream(seed_of3(seed, rank, i), pool[i].words, ELEMENTS);
    }
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (unsigned i = 1; i < workers; i++)
        if (pthread_create(&pool[i].thread, &small, help, &pool[i]))
            fail("cannot start worker %u of %u", i, workers);
    pthread_attr_destroy(&small);
}

void kernel_run(uint64_t units)
{
    uint64_t each = units / workers, more = units % workers;
    if (workers > 1) {
        pthread_mutex_lock(&lock);
        for (unsigned i = 1; i < workers; i++)
            pool[i].units = each + (i < more);
        working = workers - 1;
        rounds++;
        pthread_cond_broadcast(&begin);
        pthread_mutex_unlock(&lock);
    }
    sweep(pool[0].words, each + (more > 0));
    if (workers > 1) {
        pthread_mutex_lock(&lock);
        while (working)
            pthread_cond_wait(&end, &lock);
        pthread_mutex_unlock(&lock);
    }
}

uint64_t kernel_checksum(void)
{
    uint64_t seed = 0;
    for (unsigned i = 0; i < workers; i++)
        seed = seed_with(seed, fold(pool[i].words, ELEMENTS));
    return seed;
}
