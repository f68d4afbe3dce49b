/* fail.c - which fail-point is armed (fail.h). Empty outside of tests. */
#include "store/fail.h"

#ifdef QR_STORE_FAULTS
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

static struct {
    qr_store_point_t point;
    uint32_t count; /* 0 = off */
    int action;
    bool always;
    uint32_t passed[QR_STORE_POINTS];
} fail;
void (*qr_store_fail_seen)(qr_store_point_t point);

#define POINT(name, call) #name,
static const char *const names[] = {
#include "store/fail.def"
};
#undef POINT
const char *qr_store_point_name(qr_store_point_t point) { return point < QR_STORE_POINTS ? names[point] : "?"; }

void qr_store_fail_arm(qr_store_point_t point, uint32_t count, int action, bool always)
{
    memset(&fail, 0, sizeof fail);
    fail.point = point, fail.count = count, fail.action = action, fail.always = always;
}
uint32_t qr_store_fail_passed(qr_store_point_t point) { return fail.passed[point]; }

bool qr_store_fail_now(qr_store_point_t point)
{
    uint32_t passed = ++fail.passed[point];
    if (qr_store_fail_seen) qr_store_fail_seen(point);
    if (!fail.count || point != fail.point || (fail.always ? passed < fail.count : passed != fail.count)) return false;
    if (fail.action == QR_STORE_FAIL_KILL) (void)kill(getpid(), SIGKILL);
    errno = fail.action;
    return true;
}

/* POINT:COUNT:ACTION of the environment; anything else ends the process: a test that arms nothing would prove nothing. */
__attribute__((constructor)) static void arm_from_environment(void)
{
    const char *words = getenv("QUIRE_STORE_FAIL"), *colon = words ? strchr(words, ':') : NULL;
    if (!words) return;
    char *end = NULL;
    unsigned long count = colon ? strtoul(colon + 1, &end, 10) : 0;
    for (uint32_t point = 0; count && *end == ':' && point < QR_STORE_POINTS; point++) {
        if (strlen(names[point]) != (size_t)(colon - words) || memcmp(names[point], words, (size_t)(colon - words)) != 0) continue;
        const char *action = end + 1;
        bool always = strncmp(action, "always-", 7) == 0;
        int number = strcmp(action, "kill") == 0 ? QR_STORE_FAIL_KILL : atoi(always ? action + 7 : action);
        if (!number) break;
        qr_store_fail_arm((qr_store_point_t)point, (uint32_t)count, number, always);
        return;
    }
    static const char complaint[] = "QUIRE_STORE_FAIL: not POINT:COUNT:ACTION\n";
    (void)!write(2, complaint, sizeof complaint - 1);
    _exit(2);
}
#endif
