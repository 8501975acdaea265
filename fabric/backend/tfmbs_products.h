/* What libggml-tfmbs.so and libtfmbs_intercept.so have in common: they compute a graph of ggml so that
 * the device has the products of weights that it has, in as few trips as possible, and somebody else
 * the rest. A product that the device fails to compute is computed in this process, slowly. */
#ifndef TFMBS_PRODUCTS_H
#define TFMBS_PRODUCTS_H

#include "tfmbs_reference.h"
#include "tfmbs_weights.h"

/* Whether this library can be used: ggml is a version that is known, and the environment is as it
 * should be. If not, it says why on standard error. */
bool configure(void);

/* Whether t is a product that the device can compute if it has the weights: MUL_MAT, or MUL_MAT_ID
 * with the matrices of chosen experts. */
bool is_device_product(const struct tensor *t);

/* Computes nodes of a graph that are no products of the device. lost says that they are products with
 * weights that the device does not have, or not any more: they are worth all threads. Returns a status
 * of ggml. */
typedef int rest_function(void *arg, void *nodes, bool lost);

/* Computes a graph: the device its products, and rest the others. Returns a status of ggml. */
int compute_graph(void *graph, rest_function *rest, void *arg);

#endif
