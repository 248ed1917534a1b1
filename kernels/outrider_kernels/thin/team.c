/* A team of threads takes chunks of work from one counter. Whoever is late finds nothing left and keeps nobody waiting: a thread that lost its
   core costs its own share at most. Those that wait spin for a moment, from one operation of a step to the next, and then sleep; while they
   spin they offer their core to whoever else wants it, or a gateway beside them would wait for the end of their time slice. A team may be
   held to fewer threads for a while: the others sleep at a place of their own, where no operation wakes them. The first helper may be sent on an
   errand, work of operations of its own; then it is the team's caller, and whoever sent it joins in when he has nothing else to do. */

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "thin.h"

#define CHUNKS_A_THREAD 4
#define SPINS_BEFORE_SLEEP 20000
#define SPINS_BEFORE_YIELD 64
#define CLOSED 0xFFFFFFFFull
#define ERRANDS_OF 0 /* the helper that does them */
#define MOST_CHUNKS 0xFFFF /* of a job, more than any has */

enum { FIRST, LAST }; /* chunks that a thread begins with */

/* Of this thread where it is a team's caller: who does an errand keeps to the end that is its as a helper. */
static __thread int caller_end;

struct team {
    _Atomic uint64_t ticket; /* generation in the upper half, chunks taken in the lower; CLOSED while the job below is being changed */
    _Atomic int64_t done;
    _Atomic int sleepers;    /* those that an operation has to wake */
    _Atomic int num_active;  /* threads at work, the caller's among them: helper k is one of them while k + 1 < num_active */
    _Atomic int num_started; /* helpers that know their number */
    _Atomic int is_over;
    _Atomic(chunk_work) work;
    _Atomic(const void *) job;
    _Atomic int64_t num_chunks;
    _Atomic(errand_work) errand; /* that waits to be begun */
    _Atomic(void *) errand_of;
    int num_helpers;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    pthread_cond_t released; /* where helpers sleep that the team is to do without */
    pthread_t helpers[];
};

INLINE void pause_briefly(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

INLINE uint32_t generation_of(uint64_t ticket) { return (uint32_t)(ticket >> 32); }

/* What is read of the job counts only if the ticket is still the same afterwards. */
static int take_chunk(team *all, uint32_t generation, int end) {
    for (;;) {
        uint64_t ticket = atomic_load(&all->ticket);
        if (generation_of(ticket) != generation || (ticket & CLOSED) == CLOSED) return 0;
        const chunk_work work = atomic_load(&all->work);
        const void *job = atomic_load(&all->job);
        const int64_t first = ticket & MOST_CHUNKS, last = ticket >> 16 & MOST_CHUNKS, num_chunks = atomic_load(&all->num_chunks);
        if (first + last >= num_chunks) return 0;
        if (!atomic_compare_exchange_strong(&all->ticket, &ticket, ticket + (end == LAST ? 1 << 16 : 1))) continue;
        work(job, end == LAST ? num_chunks - 1 - last : first);
        atomic_fetch_add(&all->done, 1);
        return 1;
    }
}

static int is_off(team *all, int helper) { return helper + 1 >= atomic_load(&all->num_active) && !atomic_load(&all->is_over); }

static int is_waiting(team *all, int helper, uint32_t seen) {
    if (helper == ERRANDS_OF && atomic_load(&all->errand)) return 0;
    return generation_of(atomic_load(&all->ticket)) == seen && !atomic_load(&all->is_over) && !is_off(all, helper);
}

static int has_done_errand(team *all, int helper) {
    const errand_work work = helper == ERRANDS_OF ? atomic_exchange(&all->errand, 0) : 0;
    if (work) work(atomic_load(&all->errand_of));
    return work != 0;
}

static void sleep_until_called(team *all, int helper, uint32_t seen) {
    thin_tiles_rest();
    pthread_mutex_lock(&all->lock);
    atomic_fetch_add(&all->sleepers, 1);
    while (is_waiting(all, helper, seen)) pthread_cond_wait(&all->wake, &all->lock);
    atomic_fetch_sub(&all->sleepers, 1);
    pthread_mutex_unlock(&all->lock);
}

static void sleep_while_off(team *all, int helper) {
    thin_tiles_rest();
    pthread_mutex_lock(&all->lock);
    while (is_off(all, helper)) pthread_cond_wait(&all->released, &all->lock);
    pthread_mutex_unlock(&all->lock);
}

static void *help(void *argument) {
    team *all = argument;
    const int helper = atomic_fetch_add(&all->num_started, 1);
    caller_end = helper % 2 ? FIRST : LAST;
    uint32_t seen = 0;
    for (;;) {
        for (int spins = 1; is_waiting(all, helper, seen) && spins < SPINS_BEFORE_SLEEP; spins++) {
            pause_briefly();
            if (spins % SPINS_BEFORE_YIELD == 0) sched_yield();
        }
        if (is_waiting(all, helper, seen)) sleep_until_called(all, helper, seen);
        if (atomic_load(&all->is_over)) return 0;
        if (has_done_errand(all, helper)) {
            seen = generation_of(atomic_load(&all->ticket));
            continue;
        }
        if (is_off(all, helper)) {
            sleep_while_off(all, helper);
            continue;
        }
        const uint64_t ticket = atomic_load(&all->ticket);
        if ((ticket & CLOSED) == CLOSED) {
            pause_briefly(); /* the job is being written */
            continue;
        }
        seen = generation_of(ticket);
        while (take_chunk(all, seen, caller_end)) {}
    }
}

static void wake_all(team *all) {
    pthread_mutex_lock(&all->lock);
    pthread_cond_broadcast(&all->wake);
    pthread_mutex_unlock(&all->lock);
}

static void wake_everybody(team *all) {
    pthread_mutex_lock(&all->lock);
    pthread_cond_broadcast(&all->wake);
    pthread_cond_broadcast(&all->released);
    pthread_mutex_unlock(&all->lock);
}

void team_hold(team *all, int num_threads) {
    const int most = all->num_helpers + 1, wanted = num_threads < 1 ? 1 : num_threads > most ? most : num_threads;
    if (atomic_exchange(&all->num_active, wanted) != wanted) wake_everybody(all);
}

/* Chunks that differ by a part keep whoever is through with his waiting for the last: where as many chunks for everybody hold as many parts each,
   there may be a few more or fewer of them. */
static int64_t even_chunks(int64_t num_parts, int64_t num_active, int64_t most) {
    for (int64_t chunks = most; chunks <= 2 * most; chunks += num_active)
        if (num_parts % chunks == 0) return chunks;
    for (int64_t chunks = most - num_active; chunks > most / 2; chunks -= num_active)
        if (num_parts % chunks == 0) return chunks;
    return most;
}

int64_t team_chunks(const team *all, int64_t num_parts) {
    const int num_active = atomic_load(&all->num_active);
    if (num_active == 1) return 1;
    const int64_t most = (int64_t)num_active * CHUNKS_A_THREAD;
    return num_parts < most ? num_parts : even_chunks(num_parts, num_active, most);
}

void team_run(team *all, chunk_work work, const void *job, int64_t num_chunks) {
    if (num_chunks <= 1 || atomic_load(&all->num_active) == 1) {
        for (int64_t chunk = 0; chunk < num_chunks; chunk++) work(job, chunk);
        return;
    }
    const uint32_t generation = generation_of(atomic_load(&all->ticket)) + 1;
    atomic_store(&all->ticket, (uint64_t)generation << 32 | CLOSED);
    atomic_store(&all->work, work);
    atomic_store(&all->job, job);
    atomic_store(&all->num_chunks, num_chunks);
    atomic_store(&all->done, 0);
    atomic_store(&all->ticket, (uint64_t)generation << 32);
    if (atomic_load(&all->sleepers)) wake_all(all);
    while (take_chunk(all, generation, caller_end)) {}
    while (atomic_load(&all->done) < num_chunks) pause_briefly();
}

int team_send(team *all, errand_work work, void *of) {
    if (!all->num_helpers || atomic_load(&all->num_active) == 1) return 0;
    atomic_store(&all->errand_of, of);
    atomic_store(&all->errand, work);
    if (atomic_load(&all->sleepers)) wake_all(all);
    return 1;
}

int team_recall(team *all) { return atomic_exchange(&all->errand, 0) != 0; }

void team_join(team *all, const _Atomic int *stage, int wanted) {
    for (int spins = 1; atomic_load(stage) < wanted; spins++) {
        const uint64_t ticket = atomic_load(&all->ticket);
        if ((ticket & CLOSED) != CLOSED)
            while (take_chunk(all, generation_of(ticket), FIRST)) {}
        pause_briefly();
        if (spins % SPINS_BEFORE_YIELD == 0) sched_yield();
    }
}

static __thread const _Atomic int *watched;

int errand_is_dropped(void) { return watched && atomic_load(watched); }

void errand_watches(const _Atomic int *dropped) { watched = dropped; }

void team_free(team *all) {
    atomic_store(&all->is_over, 1);
    wake_everybody(all);
    for (int at = 0; at < all->num_helpers; at++) pthread_join(all->helpers[at], 0);
    pthread_cond_destroy(&all->wake);
    pthread_cond_destroy(&all->released);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

/* Null when there is no memory or no room for so many threads. */
team *team_new(int num_threads) {
    thin_multiplies_tiles(); /* its threads may */
    const int wanted = num_threads > 1 ? num_threads - 1 : 0;
    team *all = calloc(1, sizeof(team) + (size_t)wanted * sizeof(pthread_t));
    if (!all) return 0;
    atomic_store(&all->ticket, CLOSED);
    pthread_mutex_init(&all->lock, 0);
    pthread_cond_init(&all->wake, 0);
    pthread_cond_init(&all->released, 0);
    atomic_store(&all->num_active, wanted + 1);
    for (; all->num_helpers < wanted; all->num_helpers++)
        if (pthread_create(&all->helpers[all->num_helpers], 0, help, all)) break;
    if (all->num_helpers == wanted) return all;
    team_free(all);
    return 0;
}
