/* Who waits for whom: a layer between an MPI program and MPI that notes whose message ended a blocking receive.
 *
 * LD_PRELOAD puts it into any program that is linked dynamically with MPICH; the program stays as it is. The file that
 * DFRS_WAITS names has, for each rank of MPI_COMM_WORLD, how long this rank has waited for its messages.
 *
 * A call that finds its messages there is no wait. A program that polls waits from the first call that finds a receive
 * incomplete to the call that completes all; of several receives, the last to be incomplete has ended the wait.
 * Each thread has waits of its own.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <mpi.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "waits.h"

#define MOST_RECEIVES 1024 /* begun and not complete; with more, some are not looked at */
#define NOBODY (-1)

static struct {
    MPI_Request request;
    int source;
} receives[MOST_RECEIVES];
static int begun;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of both */

static struct waits *waits;
static __thread struct {
    int64_t since_ns; /* 0: nothing is waited for */
    int source;
} polled;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void open_file(void)
{
    const char *path = getenv("DFRS_WAITS");
    int ranks = 0;
    PMPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (!path || ranks > WAITS_MOST_RANKS)
        return;
    int file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0)
        return;
    void *found = MAP_FAILED;
    if (!ftruncate(file, sizeof *waits))
        found = mmap(NULL, sizeof *waits, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (found == MAP_FAILED)
        return;
    waits = found;
    waits->ranks = (uint64_t)ranks;
}

/* The rank in MPI_COMM_WORLD of a rank of a communicator. */
static int world_rank(MPI_Comm comm, int rank)
{
    int found = NOBODY, is_inter = 0;
    MPI_Group group, world;
    if (rank < 0 || comm == MPI_COMM_WORLD)
        return rank < 0 ? NOBODY : rank;
    PMPI_Comm_test_inter(comm, &is_inter);
    if (is_inter)
        PMPI_Comm_remote_group(comm, &group);
    else
        PMPI_Comm_group(comm, &group);
    PMPI_Comm_group(MPI_COMM_WORLD, &world);
    PMPI_Group_translate_ranks(group, 1, &rank, world, &found);
    PMPI_Group_free(&group);
    PMPI_Group_free(&world);
    return found == MPI_UNDEFINED ? NOBODY : found;
}

static void add_wait(int source, int64_t since_ns)
{
    if (waits && source >= 0 && (uint64_t)source < waits->ranks && since_ns)
        __atomic_fetch_add(&waits->ns_by_rank[source], (uint64_t)(now_ns() - since_ns), __ATOMIC_RELAXED);
}

/* Whether a message is there, or nobody wants to know. */
static int is_there(int source, int tag, MPI_Comm comm)
{
    int there = 1;
    if (waits)
        PMPI_Iprobe(source, tag, comm, &there, MPI_STATUS_IGNORE);
    return there;
}

/* Requests of receives. */

/* Whether a request is that of a receive, and from which rank. */
static int is_receive(MPI_Request request, int *source)
{
    int place = 0;
    if (!waits || request == MPI_REQUEST_NULL)
        return 0;
    pthread_mutex_lock(&lock);
    while (place < begun && receives[place].request != request)
        place++;
    int found = place < begun;
    if (found)
        *source = receives[place].source;
    pthread_mutex_unlock(&lock);
    return found;
}

static void remember(MPI_Request request, int source)
{
    pthread_mutex_lock(&lock);
    if (begun < MOST_RECEIVES) {
        receives[begun].request = request;
        receives[begun++].source = source;
    }
    pthread_mutex_unlock(&lock);
}

static void forget(MPI_Request request)
{
    pthread_mutex_lock(&lock);
    for (int place = 0; place < begun; place++)
        if (receives[place].request == request) {
            receives[place] = receives[--begun];
            break;
        }
    pthread_mutex_unlock(&lock);
}

/* Requests before a call, to tell which of them it has completed. */
static MPI_Request *copy_of(int count, const MPI_Request requests[])
{
    MPI_Request *copy = waits && count > 0 ? malloc((size_t)count * sizeof *copy) : NULL;
    if (copy)
        memcpy(copy, requests, (size_t)count * sizeof *copy);
    return copy;
}

static void forget_completed(int count, MPI_Request *before, const MPI_Request after[])
{
    for (int each = 0; before && each < count; each++)
        if (before[each] != after[each])
            forget(before[each]);
    free(before);
}

/* A poll has not completed all: note a receive that is still incomplete. */
static void poll_again(int count, const MPI_Request requests[])
{
    if (!waits)
        return;
    if (!polled.since_ns)
        polled.since_ns = now_ns();
    for (int each = 0; each < count; each++) {
        int source = NOBODY, done = 1;
        if (is_receive(requests[each], &source))
            PMPI_Request_get_status(requests[each], &done, MPI_STATUS_IGNORE);
        if (!done) {
            polled.source = source;
            return;
        }
    }
}

static void poll_ended(void)
{
    add_wait(polled.source, polled.since_ns);
    polled.since_ns = 0;
    polled.source = NOBODY;
}

/* MPI's own functions. */

int MPI_Init(int *argc, char ***argv)
{
    int result = PMPI_Init(argc, argv);
    open_file();
    return result;
}

int MPI_Init_thread(int *argc, char ***argv, int required, int *provided)
{
    int result = PMPI_Init_thread(argc, argv, required, provided);
    open_file();
    return result;
}

/* Each function twice: with counts of type int, and with large counts (`_c`). */
#define RECEIVES(COUNT, SUFFIX)                                                                                        \
    int MPI_Irecv##SUFFIX(void *buffer, COUNT count, MPI_Datatype type, int source, int tag, MPI_Comm comm,            \
                          MPI_Request *request)                                                                        \
    {                                                                                                                  \
        int result = PMPI_Irecv##SUFFIX(buffer, count, type, source, tag, comm, request);                              \
        if (waits && result == MPI_SUCCESS)                                                                            \
            remember(*request, world_rank(comm, source));                                                              \
        return result;                                                                                                 \
    }                                                                                                                  \
                                                                                                                       \
    int MPI_Recv##SUFFIX(void *buffer, COUNT count, MPI_Datatype type, int source, int tag, MPI_Comm comm,             \
                         MPI_Status *status)                                                                           \
    {                                                                                                                  \
        MPI_Status own = {.MPI_SOURCE = NOBODY};                                                                       \
        int64_t since_ns = is_there(source, tag, comm) ? 0 : now_ns();                                                 \
        int result = PMPI_Recv##SUFFIX(buffer, count, type, source, tag, comm, &own);                                  \
        add_wait(world_rank(comm, own.MPI_SOURCE), since_ns);                                                          \
        if (status != MPI_STATUS_IGNORE)                                                                               \
            *status = own;                                                                                             \
        return result;                                                                                                 \
    }                                                                                                                  \
                                                                                                                       \
    int MPI_Sendrecv##SUFFIX(const void *out, COUNT out_count, MPI_Datatype out_type, int target, int out_tag,         \
                             void *in, COUNT in_count, MPI_Datatype in_type, int source, int in_tag, MPI_Comm comm,    \
                             MPI_Status *status)                                                                       \
    {                                                                                                                  \
        MPI_Status own = {.MPI_SOURCE = NOBODY};                                                                       \
        int64_t since_ns = is_there(source, in_tag, comm) ? 0 : now_ns();                                              \
        int result = PMPI_Sendrecv##SUFFIX(out, out_count, out_type, target, out_tag, in, in_count, in_type, source,   \
                                           in_tag, comm, &own);                                                        \
        add_wait(world_rank(comm, own.MPI_SOURCE), since_ns);                                                          \
        if (status != MPI_STATUS_IGNORE)                                                                               \
            *status = own;                                                                                             \
        return result;                                                                                                 \
    }

RECEIVES(int, )
RECEIVES(MPI_Count, _c)

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
    return MPI_Waitall(1, request, status == MPI_STATUS_IGNORE ? MPI_STATUSES_IGNORE : status);
}

/* One after the other, to see which receive is the last. */
int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
    int all = 0;
    if (!waits)
        return PMPI_Waitall(count, requests, statuses);
    int result = MPI_Testall(count, requests, &all, statuses);
    if (all || result != MPI_SUCCESS)
        return result;
    for (int each = 0; each < count; each++) {
        int done = 0;
        while (!done && requests[each] != MPI_REQUEST_NULL) {
            result = PMPI_Request_get_status(requests[each], &done, MPI_STATUS_IGNORE);
            if (result != MPI_SUCCESS)
                return PMPI_Waitall(count, requests, statuses);
            if (!done)
                poll_again(count, requests);
        }
    }
    return MPI_Testall(count, requests, &all, statuses);
}

int MPI_Waitany(int count, MPI_Request requests[], int *index, MPI_Status *status)
{
    int one = 0, result = MPI_SUCCESS;
    if (!waits)
        return PMPI_Waitany(count, requests, index, status);
    while (!one && result == MPI_SUCCESS)
        result = MPI_Testany(count, requests, index, &one, status);
    return result;
}

int MPI_Waitsome(int count, MPI_Request requests[], int *found, int indices[], MPI_Status statuses[])
{
    int result = MPI_SUCCESS;
    if (!waits)
        return PMPI_Waitsome(count, requests, found, indices, statuses);
    do
        result = MPI_Testsome(count, requests, found, indices, statuses);
    while (!*found && result == MPI_SUCCESS);
    return result;
}

int MPI_Test(MPI_Request *request, int *done, MPI_Status *status)
{
    return MPI_Testall(1, request, done, status == MPI_STATUS_IGNORE ? MPI_STATUSES_IGNORE : status);
}

int MPI_Testall(int count, MPI_Request requests[], int *all, MPI_Status statuses[])
{
    MPI_Request *before = copy_of(count, requests);
    int result = PMPI_Testall(count, requests, all, statuses);
    forget_completed(count, before, requests);
    if (*all)
        poll_ended();
    else
        poll_again(count, requests);
    return result;
}

/* The receive that it completes has ended the wait. */
int MPI_Testany(int count, MPI_Request requests[], int *index, int *one, MPI_Status *status)
{
    MPI_Request *before = copy_of(count, requests);
    int result = PMPI_Testany(count, requests, index, one, status);
    if (!*one)
        poll_again(count, requests);
    else if (before && *index != MPI_UNDEFINED && is_receive(before[*index], &polled.source))
        poll_ended();
    forget_completed(count, before, requests);
    return result;
}

int MPI_Testsome(int count, MPI_Request requests[], int *found, int indices[], MPI_Status statuses[])
{
    MPI_Request *before = copy_of(count, requests);
    int result = PMPI_Testsome(count, requests, found, indices, statuses);
    for (int each = 0; before && *found != MPI_UNDEFINED && each < *found; each++)
        is_receive(before[indices[each]], &polled.source);
    if (*found > 0)
        poll_ended();
    else if (!*found)
        poll_again(count, requests);
    forget_completed(count, before, requests);
    return result;
}
