/* `patterns`: one rank of a bulk-synchronous job; node_agent/programs/exchange.py says what messages hold. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdlib.h>
#include <time.h>

#include "kernel.h"
#include "life.h"
#include "naps.h"
#include "report.h"
#include "topology.h"
#include "words.h"

#define TAGS 32767 /* the least upper bound of tags that MPI promises */

enum place { FIRST, SECOND, THIRD, PLACES }; /* waits of an iteration; all topologies but the tree have one */

struct peer {
    unsigned rank;
    uint64_t *out, *in;
};

static struct peer *peers;
static unsigned peer_count;
static uint64_t *base; /* what all messages have in common */
static size_t words;   /* of one message */
static MPI_Request *requests;
static int pending;
static uint64_t digest, messages;

static void nap(struct naps *naps)
{
    struct timespec length = {.tv_nsec = (long)(next_nap_s(naps) * 1e9)};
    nanosleep(&length, NULL);
}

/* MPI's own waiting would poll at full speed and use up the guest's share of the CPU. */
static void wait_all(enum place place)
{
    static double waited_s[PLACES];
    struct naps naps = first_naps(waited_s[place]);
    int complete = 0;
    for (MPI_Testall(pending, requests, &complete, MPI_STATUSES_IGNORE); !complete;) {
        nap(&naps);
        MPI_Testall(pending, requests, &complete, MPI_STATUSES_IGNORE);
    }
    pending = 0;
    waited_s[place] = naps_waited_s(&naps);
}

static uint64_t content(size_t i, uint64_t add, const uint64_t *first)
{
    return i == 0 && first ? *first : base[i] + add;
}

static void send_to(const struct peer *peer, uint64_t iteration, const uint64_t *first)
{
    uint64_t add = seed_of4(task.seed, task.rank, peer->rank, iteration);
    for (size_t i = 0; i < words; i++)
        peer->out[i] = content(i, add, first);
    MPI_Isend(peer->out, (int)task.message_bytes, MPI_BYTE, (int)peer->rank, (int)(iteration % TAGS), MPI_COMM_WORLD,
              &requests[pending++]);
}

static void receive_from(const struct peer *peer, uint64_t iteration)
{
    MPI_Irecv(peer->in, (int)task.message_bytes, MPI_BYTE, (int)peer->rank, (int)(iteration % TAGS), MPI_COMM_WORLD,
              &requests[pending++]);
}

static void verify(const struct peer *peer, uint64_t iteration, const uint64_t *first)
{
    uint64_t add = seed_of4(task.seed, peer->rank, task.rank, iteration), all = 0;
    for (size_t i = 0; i < words; i++) {
        uint64_t differs = peer->in[i] ^ content(i, add, first);
        size_t bytes = task.message_bytes - 8 * i;
        if (bytes < 8)
            differs &= ((uint64_t)1 << (8 * bytes)) - 1; /* the last word is only partly sent */
        if (differs)
            fail("message from rank %u to %u, iteration %llu: byte %zu of %llu is not what was sent", peer->rank,
                 task.rank, (unsigned long long)iteration, 8 * i + (size_t)__builtin_ctzll(differs) / 8,
                 (unsigned long long)task.message_bytes);
        all ^= peer->in[i];
    }
    messages++;
    digest = mix64(digest ^ all);
}

static void swap_all(uint64_t iteration)
{
    for (unsigned i = 0; i < peer_count; i++)
        receive_from(&peers[i], iteration);
    for (unsigned i = 0; i < peer_count; i++)
        send_to(&peers[i], iteration, NULL);
    wait_all(FIRST);
    for (unsigned i = 0; i < peer_count; i++)
        verify(&peers[i], iteration, NULL);
}

static uint64_t subtree_sum(unsigned rank, uint64_t iteration)
{
    if (rank >= task.ranks)
        return 0;
    return seed_of3(task.seed, rank, iteration) + subtree_sum(2 * rank + 1, iteration) +
           subtree_sum(2 * rank + 2, iteration);
}

/* A sum of one word a rank goes up the tree, and the whole sum down. */
static void reduce(uint64_t iteration)
{
    unsigned below = task.rank ? 1 : 0; /* the parent is the lowest neighbour */
    for (unsigned i = below; i < peer_count; i++)
        receive_from(&peers[i], iteration);
    wait_all(FIRST);
    uint64_t total = seed_of3(task.seed, task.rank, iteration);
    for (unsigned i = below; i < peer_count; i++) {
        uint64_t expected = subtree_sum(peers[i].rank, iteration);
        verify(&peers[i], iteration, &expected);
        total += peers[i].in[0];
    }
    if (below) {
        uint64_t expected = subtree_sum(0, iteration);
        send_to(&peers[0], iteration, &total);
        receive_from(&peers[0], iteration);
        wait_all(SECOND);
        verify(&peers[0], iteration, &expected);
        total = peers[0].in[0];
    }
    for (unsigned i = below; i < peer_count; i++)
        send_to(&peers[i], iteration, &total);
    wait_all(THIRD);
}

static void abort_all(void)
{
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void *cleared(size_t count, size_t size)
{
    char *memory = calloc(count ? count : 1, size);
    if (!memory)
        fail("no memory for messages of %llu bytes", (unsigned long long)task.message_bytes);
    for (size_t i = 0; i < count * size; i += 4096)
        ((volatile char *)memory)[i] = 0; /* really there, before the ballast takes what is left */
    return memory;
}

static void join(int *count, char ***arguments)
{
    int provided, rank, size;
    MPI_Init_thread(count, arguments, MPI_THREAD_FUNNELED, &provided);
    at_failure = abort_all;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if ((unsigned)rank != task.rank || (unsigned)size != task.ranks)
        fail("rank %u of %u was placed as rank %d of %d", task.rank, task.ranks, rank, size);
    unsigned *near = cleared(task.ranks, sizeof *near);
    peer_count = neighbours(task.topology, task.rank, task.ranks, near);
    words = (task.message_bytes + 7) / 8;
    base = cleared(words, sizeof *base);
    stream(seed_of2(task.seed, 3), base, words);
    peers = cleared(peer_count, sizeof *peers);
    requests = cleared(2 * (size_t)peer_count, sizeof *requests);
    for (unsigned i = 0; i < peer_count; i++)
        peers[i] = (struct peer){near[i], cleared(words, sizeof *base), cleared(words, sizeof *base)};
    free(near);
}

static void leave(void)
{
    MPI_Request end;
    struct naps naps = first_naps(0.0);
    int complete = 0;
    MPI_Ibarrier(MPI_COMM_WORLD, &end);
    for (MPI_Test(&end, &complete, MPI_STATUS_IGNORE); !complete; MPI_Test(&end, &complete, MPI_STATUS_IGNORE))
        nap(&naps);
}

int main(int count, char **arguments)
{
    life_read_task("patterns");
    if (task.ranks > 1)
        join(&count, &arguments);
    life_prepare();
    for (uint64_t i = 0; i < life_iterations(); i++) {
        double begin_s = monotonic_s();
        kernel_run(life_share(i));
        double computed_s = monotonic_s();
        if (task.ranks > 1)
            (task.topology == TREE ? reduce : swap_all)(i);
        life_step(begin_s, computed_s, task.ranks > 1 ? monotonic_s() : computed_s);
    }
    if (task.ranks > 1)
        leave();
    life_done(digest, messages);
    if (task.ranks > 1)
        MPI_Finalize();
    return 0;
}
