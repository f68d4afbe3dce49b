/* assert.c - the hook every qr_assert ends in; an archive of its own so that pure actors link without libc's stdio. */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>

void (*qr_assert_hook)(const char *expression, const char *file, int line);

_Noreturn void qr_assert_failed(const char *expression, const char *file, int line)
{
    if (qr_assert_hook) qr_assert_hook(expression, file, line);
    fprintf(stderr, "quire: broken invariant: %s (%s:%d). This is a defect of Quire; please report it.\n", expression, file, line);
    fflush(stderr);
    abort();
}
