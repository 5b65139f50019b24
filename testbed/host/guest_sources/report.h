/* What a program says to the agent of its guest, and what it hears. */
#ifndef REPORT_H
#define REPORT_H

#include "wire.h"

/* The path of a file in the folder that programs and agent share until the next call. */
const char *in_run(const char *name);

/* Connect to the agent, or `fail`. */
void report_open(void);
void report_say(const struct message *m);
void report_wait_for_go(void);

/* Tell the agent, or who reads the output if there is none, and end with exit code 1. */
__attribute__((noreturn, format(printf, 1, 2))) void fail(const char *format, ...);
extern void (*at_failure)(void); /* called before the end */

double monotonic_s(void);

#endif
