/* reference.c - the judge of values (reference.h). */
#include "kernels/reference/reference.h"

#include <math.h>
#include <stdlib.h>

#include "base/error.h"

int qr_reference_product(uint32_t format, const void *weight, uint32_t outputs, uint32_t columns, const double *x, double *y)
{
    float *row = malloc(columns * sizeof *row);
    if (!row) return -QR_E_MEMORY;
    for (uint32_t o = 0; o < outputs; o++) {
        qr_format_row_decode(format, (const uint8_t *)weight + o * qr_format_row_bytes(format, columns), columns, row);
        double sum = 0;
        for (uint32_t i = 0; i < columns; i++) sum += (double)row[i] * x[i];
        y[o] = sum;
    }
    free(row);
    return 0;
}

void qr_reference_norm(const double *x, const float *weight, uint32_t n, double eps, double *y)
{
    double sum = 0;
    for (uint32_t i = 0; i < n; i++) sum += x[i] * x[i];
    double r = 1 / sqrt(sum / n + eps);
    for (uint32_t i = 0; i < n; i++) y[i] = x[i] * r * (double)weight[i];
}

void qr_reference_rope(double *head, uint32_t dim, uint32_t pairing, double position, double theta, double scale)
{
    for (uint32_t i = 0; i < dim / 2; i++) {
        double angle = position / scale * pow(theta, -2.0 * i / dim), c = cos(angle), s = sin(angle);
        double *a = head + (pairing ? i : 2 * i), *b = head + (pairing ? i + dim / 2 : 2 * i + 1), x = *a, y = *b;
        *a = x * c - y * s;
        *b = x * s + y * c;
    }
}

int qr_reference_attention(const double *q, uint32_t dim, uint32_t keys, const double *k, const double *v, uint64_t stride, double scale,
                           double *out)
{
    double *p = malloc((keys + 1ull) * sizeof *p), most = -INFINITY, total = 0;
    if (!p) return -QR_E_MEMORY;
    for (uint32_t t = 0; t < keys; t++) {
        p[t] = 0;
        for (uint32_t d = 0; d < dim; d++) p[t] += q[d] * k[t * stride + d];
        p[t] *= scale;
        if (p[t] > most) most = p[t];
    }
    memset(out, 0, dim * sizeof *out);
    for (uint32_t t = 0; t < keys; t++) {
        p[t] = exp(p[t] - most);
        total += p[t];
    }
    for (uint32_t t = 0; t < keys; t++)
        for (uint32_t d = 0; d < dim; d++) out[d] += p[t] / total * v[t * stride + d];
    free(p);
    return 0;
}

void qr_reference_gate(const double *gate, const double *up, uint32_t n, double *y)
{
    for (uint32_t i = 0; i < n; i++) y[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
}
