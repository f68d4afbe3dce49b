/* doctor.h - `quire doctor`: what this machine can do for Quire, in lines a tired person can act on. */
#ifndef QR_DOCTOR_H
#define QR_DOCTOR_H

/* Prints processor, memory, devices and a self-test: a seeded tiny model on every instruction set must give the scalar kernel's bits.
 * Exit status: 0 everything needed works, 1 something does not. words: what came after `doctor`. */
int qr_doctor_main(int count, char **words);

#endif
