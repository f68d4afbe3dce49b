/* fail.h - fail-points of the store (fail.def), for tests that end the process or make one system call fail. In the room's own library
 * a point is the constant 0 and leaves no trace; qr_store_faults is the same room with QR_STORE_FAULTS.
 *
 * Armed by qr_store_fail_arm, or from outside by QUIRE_STORE_FAIL=POINT:COUNT:ACTION, read before main: when POINT is passed for the
 * COUNT-th time (from 1) the process kills itself (ACTION `kill`) or the call that follows is not made and fails with errno ACTION (a
 * number); `always-NUMBER` fails then and every later time. */
#ifndef QR_STORE_FAIL_H
#define QR_STORE_FAIL_H

#include "base/base.h"

#define POINT(name, call) QR_STORE_POINT_##name,
typedef enum qr_store_point {
#include "store/fail.def"
    QR_STORE_POINTS
} qr_store_point_t;
#undef POINT

#ifdef QR_STORE_FAULTS
enum { QR_STORE_FAIL_KILL = -1 };
/* Whether the call behind this point is to fail (errno is set). */
bool qr_store_fail_now(qr_store_point_t point);
/* count 0: nothing is armed. action: an errno, or QR_STORE_FAIL_KILL. */
void qr_store_fail_arm(qr_store_point_t point, uint32_t count, int action, bool always);
/* How often the point was passed since the last arm. */
uint32_t qr_store_fail_passed(qr_store_point_t point);
const char *qr_store_point_name(qr_store_point_t point);
/* NULL, or told of every point in the order they are passed. */
extern void (*qr_store_fail_seen)(qr_store_point_t point);
#define qr_store_fail(name) qr_store_fail_now(QR_STORE_POINT_##name)
#else
#define qr_store_fail(name) (false)
#endif

#endif
