/* What every program does: read its task, fill its memory, say so, wait for `go`, work, say what came out. */
#ifndef LIFE_H
#define LIFE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum topology { LINEAR, RING, MESH, TORUS, ALL_TO_ALL, TREE };

/* As node_agent/programs/task.py has it. */
struct task {
    uint64_t job, task, work_units, units_per_iteration, seed, message_bytes;
    unsigned workers, rank, ranks;
    enum topology topology;
    double touched_frac; /* of the ballast */
    bool one_over_i; /* rank i, counted from 1, computes an i-th of what rank 1 does */
    uint64_t drift; /* after how many iterations these parts move on by a rank; 0: never */
    uint64_t pace_ns; /* an iteration takes at least as long; 0: as long as it takes */
    struct { uint64_t from, part; } phases[8]; /* from which part of the work on how much of its units, of 10,000 */
    unsigned phase_count;
};

extern struct task task;

/* `name` is what the task must name. Raises to `fail` as task.py's checks do. */
void life_read_task(const char *name);
/* Ballast, `ready`, and the wait for `go`. */
void life_prepare(void);
uint64_t life_iterations(void);
uint64_t life_share(uint64_t iteration);
/* One more iteration is done, begun, computed and ended at these times: store it where the agent looks. */
void life_step(double begin_s, double computed_s, double end_s);
void life_done(uint64_t digest, uint64_t messages);

#endif
