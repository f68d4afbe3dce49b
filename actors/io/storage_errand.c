/* storage_errand.c - one slow thing at a time, on a thread of its own (storage_errand.h). */
#include "actors/io/storage_errand.h"

#include "actors/actor.h"
#include "base/error.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

enum { IDLE, GIVEN, ENDED };

struct qr_errand {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int descriptor, state; /* state under lock */
    bool stop;
    void (*run)(void *);
    void *context;
};

static void *errands(void *argument)
{
    qr_errand_t *e = argument;
    (void)setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + QR_NICENESS_BEHIND);
    (void)pthread_mutex_lock(&e->lock);
    for (;;) {
        while (e->state != GIVEN && !e->stop) (void)pthread_cond_wait(&e->wake, &e->lock);
        if (e->state != GIVEN) break;
        (void)pthread_mutex_unlock(&e->lock);
        e->run(e->context);
        (void)pthread_mutex_lock(&e->lock);
        e->state = ENDED;
        uint64_t one = 1;
        ssize_t written = write(e->descriptor, &one, sizeof one); /* cannot be full: it is read once for each end */
        (void)written;
    }
    (void)pthread_mutex_unlock(&e->lock);
    return NULL;
}

int qr_errand_new(qr_errand_t **ret_errand)
{
    qr_errand_t *e = calloc(1, sizeof *e);
    if (!e) return -QR_E_MEMORY;
    e->descriptor = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (e->descriptor < 0) {
        free(e);
        return -QR_E_IO;
    }
    (void)pthread_mutex_init(&e->lock, NULL);
    (void)pthread_cond_init(&e->wake, NULL);
    if (pthread_create(&e->thread, NULL, errands, e) != 0) {
        (void)close(e->descriptor);
        free(e);
        return -QR_E_IO;
    }
    *ret_errand = e;
    return 0;
}

void qr_errand_destroy(qr_errand_t **errand)
{
    qr_errand_t *e = *errand;
    if (!e) return;
    (void)pthread_mutex_lock(&e->lock);
    e->stop = true;
    (void)pthread_cond_signal(&e->wake);
    (void)pthread_mutex_unlock(&e->lock);
    (void)pthread_join(e->thread, NULL);
    (void)pthread_cond_destroy(&e->wake);
    (void)pthread_mutex_destroy(&e->lock);
    (void)close(e->descriptor);
    free(e);
    *errand = NULL;
}

void qr_errand_give(qr_errand_t *errand, void (*run)(void *), void *context)
{
    (void)pthread_mutex_lock(&errand->lock);
    qr_assert(errand->state == IDLE);
    errand->state = GIVEN, errand->run = run, errand->context = context;
    (void)pthread_cond_signal(&errand->wake);
    (void)pthread_mutex_unlock(&errand->lock);
}

bool qr_errand_back(qr_errand_t *errand)
{
    uint64_t count;
    (void)pthread_mutex_lock(&errand->lock);
    bool ended = errand->state == ENDED;
    if (ended) errand->state = IDLE;
    (void)pthread_mutex_unlock(&errand->lock);
    if (ended && read(errand->descriptor, &count, sizeof count) < 0) return true; /* nothing to read is as good */
    return ended;
}

int qr_errand_descriptor(const qr_errand_t *errand) { return errand->descriptor; }
