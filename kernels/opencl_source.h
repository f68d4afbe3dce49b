/* opencl_source.h - the sources the opencl device builds at open, in this order. NUL-terminated. */
#ifndef QR_OPENCL_SOURCE_H
#define QR_OPENCL_SOURCE_H

enum { QR_OPENCL_SOURCES = 5 };
extern const char *const qr_opencl_sources[QR_OPENCL_SOURCES];

#endif
