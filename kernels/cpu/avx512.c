/* avx512.c - placeholder of the chooser until the vectors are in. */
#include "kernels/cpu/cpu.h"

const qr_cpu_isa_t *qr_cpu_avx512(void) { return NULL; }
