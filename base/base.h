/* base.h - included first by every file of Quire: sized integers, assertions, small helpers.
 * Rooms above may rely on what is included here and on nothing else from libc by accident. */
#ifndef QR_BASE_H
#define QR_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Reports a broken invariant of ours and ends the process. Lives in an archive of its own (base/assert.c), so that an
 * actor's object shows it as its only way out. Never reached because of bytes from outside. */
_Noreturn void qr_assert_failed(const char *expression, const char *file, int line);
/* NULL, or told first; a simulated world leaves by longjmp and goes on with the next one. Only for a process with one thread. */
extern void (*qr_assert_hook)(const char *expression, const char *file, int line);

/* On in every build. For our own mistakes only; bytes from outside are checked, counted and refused. */
#define qr_assert(x) ((x) ? (void)0 : qr_assert_failed(#x, __FILE__, __LINE__))
#define qr_unreachable(why) qr_assert_failed("unreachable: " why, __FILE__, __LINE__)

#define QR_COUNT(a) (sizeof(a) / sizeof((a)[0]))

static inline uint64_t qr_min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t qr_max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }
static inline uint32_t qr_min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t qr_max_u32(uint32_t a, uint32_t b) { return a > b ? a : b; }
/* Smallest q with q * b >= a; b > 0. */
static inline uint64_t qr_div_up(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }
static inline uint64_t qr_round_up(uint64_t a, uint64_t b) { return qr_div_up(a, b) * b; }

/* A handle {index, generation}: u64 = generation << 32 | index. 0 is never valid: generations start at 1. */
static inline uint64_t qr_handle(uint32_t index, uint32_t generation) { return (uint64_t)generation << 32 | index; }
static inline uint32_t qr_handle_index(uint64_t handle) { return (uint32_t)handle; }
static inline uint32_t qr_handle_generation(uint64_t handle) { return (uint32_t)(handle >> 32); }

/* memcpy that accepts an empty column (NULL, 0). */
static inline void qr_copy(void *to, const void *from, size_t bytes)
{
    if (bytes) memcpy(to, from, bytes);
}

#endif
