/* stop.c - see stop.h. */
#define _GNU_SOURCE
#include "transport/stop.h"

#include "base/base.h"

#include <signal.h>
#include <unistd.h>

static volatile sig_atomic_t asked;
static char last_words[QR_STOP_BYTES];

static void on_stop(int number)
{
    (void)number;
    asked = 1;
}

static void on_crash(int number)
{
    ssize_t put = write(STDERR_FILENO, last_words, strlen(last_words));
    (void)put;
    (void)raise(number); /* SA_RESETHAND: the default now */
}

static void put_in_place(const int *signals, size_t count, void (*handler)(int), int flags)
{
    struct sigaction now, action = {.sa_handler = handler, .sa_flags = flags};
    for (size_t i = 0; i < count; i++)
        if (!sigaction(signals[i], NULL, &now) && now.sa_handler == SIG_DFL) (void)sigaction(signals[i], &action, NULL);
}

void qr_stop_watch(void)
{
    static const int stops[] = {SIGINT, SIGTERM}, crashes[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    put_in_place(stops, QR_COUNT(stops), on_stop, (int)(SA_RESETHAND | SA_RESTART));
    put_in_place(crashes, QR_COUNT(crashes), on_crash, (int)(SA_RESETHAND | SA_NODEFER));
}

bool qr_stop_asked(void) { return asked; }

void qr_stop_last_words(const char *words)
{
    size_t count = qr_min_u64(strlen(words), QR_STOP_BYTES - 1);
    memcpy(last_words, words, count);
    last_words[count] = 0;
}
