/* opencl_source.c - the text of the dialect and the portable kernels, inside the program. */
#include "kernels/opencl_source.h"

/* begin, the file's bytes, and a NUL. */
#define EMBED(symbol, file)                                                                                                       \
    __asm__(".section .rodata\n.global " #symbol "\n" #symbol ":\n.incbin \"" QR_SOURCE_FOLDER "/" file "\"\n.byte 0\n.previous\n"); \
    extern const char symbol[]

EMBED(qr_source_dialect, "kernels/dialect/opencl.h");
EMBED(qr_source_common, "kernels/portable/common.k");
EMBED(qr_source_elementwise, "kernels/portable/elementwise.k");
EMBED(qr_source_product, "kernels/portable/product.k");
EMBED(qr_source_attention, "kernels/portable/attention.k");

const char *const qr_opencl_sources[QR_OPENCL_SOURCES] = {qr_source_dialect, qr_source_common, qr_source_elementwise, qr_source_product, qr_source_attention};
