/* transfer_digest.c - the digest beside transfer (TD1-TD4). */
#include "actors/io/transfer_digest.h"

#include "base/mutant.h"

#include <openssl/evp.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

enum { BUFFERS = QR_DIGEST_BUFFERS };

struct qr_digest {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, less; /* a piece was added, or stop; one was digested */
    size_t piece_bytes;
    uint8_t *memory; /* [BUFFERS][piece_bytes] */
    EVP_MD_CTX *sha; /* of whoever has set `busy`; nobody's while there are no pieces */
    /* Under lock. Piece k lies in buffer k % BUFFERS; pieces [digested, added) wait, of which the first one is in hand while busy. */
    uint64_t added, digested, offered, worked_us;
    uint64_t below; /* the owner sleeps until fewer wait than this; 0: it does not */
    size_t counts[BUFFERS];
    bool busy, failed, stop;
};

static uint64_t worked_us(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

/* Digests the first waiting piece. Under lock, which is open meanwhile. */
static void take(qr_digest_t *d)
{
    uint32_t buffer = (uint32_t)(d->digested % BUFFERS);
    size_t count = d->counts[buffer];
    d->busy = true;
    (void)pthread_mutex_unlock(&d->lock);
    bool fine = EVP_DigestUpdate(d->sha, d->memory + buffer * d->piece_bytes, count) == 1;
    (void)pthread_mutex_lock(&d->lock);
    d->busy = false, d->failed |= !fine;
    d->digested++;
    if (d->added - d->digested < d->below) (void)pthread_cond_signal(&d->less);
}

static void *helper(void *argument)
{
    qr_digest_t *d = argument;
    (void)pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        if (d->busy || d->digested == d->added) {
            (void)pthread_cond_wait(&d->more, &d->lock);
            continue;
        }
        uint64_t began_us = worked_us();
        take(d);
        d->worked_us += worked_us() - began_us;
    }
    (void)pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* Until the helper has digested a piece and fewer than `below` wait. Under lock. */
static void sleep_until_below(qr_digest_t *d, uint64_t below)
{
    d->below = below;
    (void)pthread_cond_wait(&d->less, &d->lock);
    d->below = 0;
}

/* Until fewer than `most` pieces wait: takes what nobody has in hand. Under lock. */
static void wait_below(qr_digest_t *d, uint64_t most)
{
    while (d->added - d->digested >= most) {
        if (d->busy) {
            sleep_until_below(d, most);
            continue;
        }
        take(d);
        if (d->digested < d->added) (void)pthread_cond_signal(&d->more); /* the helper may have seen us busy and gone to sleep */
    }
}

qr_digest_t *qr_digest_new(size_t piece_bytes)
{
    qr_digest_t *d = calloc(1, sizeof *d);
    if (!d) return NULL;
    d->piece_bytes = (size_t)qr_round_up(piece_bytes, 4096);
    d->memory = aligned_alloc(4096, BUFFERS * d->piece_bytes);
    d->sha = EVP_MD_CTX_new();
    (void)pthread_mutex_init(&d->lock, NULL);
    (void)pthread_cond_init(&d->more, NULL);
    (void)pthread_cond_init(&d->less, NULL);
    if (d->memory && d->sha && pthread_create(&d->thread, NULL, helper, d) == 0) return d;
    EVP_MD_CTX_free(d->sha);
    free(d->memory);
    free(d);
    return NULL;
}

void qr_digest_destroy(qr_digest_t **digest)
{
    qr_digest_t *d = *digest;
    if (!d) return;
    (void)pthread_mutex_lock(&d->lock);
    d->stop = true;
    (void)pthread_cond_signal(&d->more);
    (void)pthread_mutex_unlock(&d->lock);
    (void)pthread_join(d->thread, NULL);
    (void)pthread_cond_destroy(&d->more);
    (void)pthread_cond_destroy(&d->less);
    (void)pthread_mutex_destroy(&d->lock);
    EVP_MD_CTX_free(d->sha);
    free(d->memory);
    free(d);
    *digest = NULL;
}

void qr_digest_drop(qr_digest_t *d)
{
    (void)pthread_mutex_lock(&d->lock);
    if (!QR_MUTANT(775)) d->added = d->digested + d->busy;
    while (d->busy && !QR_MUTANT(776)) sleep_until_below(d, BUFFERS + 1);
    (void)pthread_mutex_unlock(&d->lock);
}

bool qr_digest_begin(qr_digest_t *d)
{
    qr_digest_drop(d);
    d->failed = false;
    return EVP_DigestInit_ex(d->sha, EVP_sha256(), NULL) == 1;
}

void qr_digest_head(qr_digest_t *d, const void *bytes, size_t count)
{
    (void)pthread_mutex_lock(&d->lock);
    wait_below(d, 1);
    (void)pthread_mutex_unlock(&d->lock);
    if (EVP_DigestUpdate(d->sha, bytes, count) != 1) d->failed = true;
}

uint8_t *qr_digest_buffer(qr_digest_t *d)
{
    (void)pthread_mutex_lock(&d->lock);
    if (d->added - d->digested == BUFFERS && !QR_MUTANT(777)) wait_below(d, BUFFERS / 2 + 1); /* not woken for every piece */
    if (d->digested == d->added) d->digested = d->added = 0; /* the same buffer again, which is in the cache, while nobody lags behind */
    uint8_t *buffer = d->memory + d->added % BUFFERS * d->piece_bytes;
    (void)pthread_mutex_unlock(&d->lock);
    return buffer;
}

void qr_digest_add(qr_digest_t *d, size_t count, bool beside)
{
    qr_assert(count <= d->piece_bytes);
    (void)pthread_mutex_lock(&d->lock);
    d->counts[d->added++ % BUFFERS] = count;
    if (!beside)
        wait_below(d, 1);
    else
        d->offered++, (void)pthread_cond_signal(&d->more);
    (void)pthread_mutex_unlock(&d->lock);
}

bool qr_digest_end(qr_digest_t *d, uint8_t ret_id[32])
{
    (void)pthread_mutex_lock(&d->lock);
    if (!QR_MUTANT(778)) wait_below(d, 1);
    bool fine = !d->failed && EVP_DigestFinal_ex(d->sha, ret_id, NULL) == 1;
    (void)pthread_mutex_unlock(&d->lock);
    return fine;
}

uint64_t qr_digest_worked_us(qr_digest_t *d)
{
    (void)pthread_mutex_lock(&d->lock);
    uint64_t worked = d->worked_us;
    d->worked_us = 0;
    (void)pthread_mutex_unlock(&d->lock);
    return worked;
}

uint64_t qr_digest_offered(qr_digest_t *d)
{
    (void)pthread_mutex_lock(&d->lock);
    uint64_t offered = d->offered;
    (void)pthread_mutex_unlock(&d->lock);
    return offered;
}
