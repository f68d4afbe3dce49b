/* mutant.c - which seeded defect is on: QUIRE_MUTANT=number, read before main. Linked only into builds with QR_MUTANTS. */
#include "base/mutant.h"

#include <stdlib.h>

int qr_mutant_current;

__attribute__((constructor)) static void choose(void)
{
    const char *number = getenv("QUIRE_MUTANT");
    if (number) qr_mutant_current = atoi(number);
}
