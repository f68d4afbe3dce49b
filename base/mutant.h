/* mutant.h - switches for seeded defects. A build with QR_MUTANTS runs with at most one of them on (tests/mutants); in every
 * other build QR_MUTANT(n) is the constant 0 and leaves no trace. */
#ifndef QR_MUTANT_H
#define QR_MUTANT_H

#ifdef QR_MUTANTS
extern int qr_mutant_current;
#define QR_MUTANT(n) (qr_mutant_current == (n))
#else
#define QR_MUTANT(n) 0
#endif

#endif
