/* Which tensors of weights the device has, and how they come to it: this process uploads them, or,
 * with TFMBS_HANDOVER, finds those that the device holds of the model's file. */
#ifndef TFMBS_WEIGHTS_H
#define TFMBS_WEIGHTS_H

#include "tfmbs_ggml.h"
#include "tfmbs_host.h"

#include <pthread.h>
#include <time.h>

enum {
	BUCKETS = 1024,
	LAYERS = 1024,         /* that are counted */
	MAX_EXPERTS = 1 << 14, /* of a tensor */
	ASK_AGAIN_S = 2,       /* seconds until the device is asked again for what it does not hold */
};

/* A type that the device takes. */
struct kind {
	const char *name;
	uint32_t number; /* in a file */
	uint32_t block;  /* columns that share a scale in the vectors that it is multiplied with */
	bool faster;     /* than ggml's CPU code (docs/measurements/fabric.md): no profile is needed, exact */
};

/* What TFMBS_PROFILE names. */
struct profile {
	const char *name;
	uint32_t flags; /* of uploads */
	bool all;       /* all types are taken, not only those that are faster */
	/* The largest error of products, as a part of their norm: the decibels of the profile. Exact planes differ
	 * only in the order of sums: for them it is ample. */
	double error;
};
extern const struct profile *profile; /* that is used */

/* A tensor of weights: one matrix, or one for each expert, which follow each other. */
struct weight {
	struct weight *next; /* of its bucket */
	const void *data, *buffer;
	uint32_t rows, cols, count; /* count matrices */
	long layer;
	uint64_t sample; /* hash of some bytes of uploaded weights */
	/* The device has all matrices. Of held weights with several matrices it may have some, which come and go. */
	bool on_device;
	bool reported;         /* a wrong result with it was reported */
	struct timespec asked; /* when it was last looked for among held weights, */
	unsigned epoch;        /* and tfmbs_state.epoch then */
	struct file_location {
		uint64_t dev, ino, offset;
	} location; /* where a held weight lies */
	struct matrix {
		tfmbs_weight id; /* 0: the device does not have it, */
		uint32_t asked;  /* as of this value of tfmbs_held */
	} matrices[];
};

/* All that this process knows of its weights. The lock guards all but what the environment says. */
extern struct tfmbs_state {
	pthread_mutex_t lock;
	int users;  /* backends */
	int broken; /* the device is not there, or not any more */
	struct weight *buckets[BUCKETS];
	long first_layer, last_layer; /* TFMBS_LAYERS: only these are taken; last_layer < 0: all */
	bool handed_over;             /* TFMBS_HANDOVER: nothing is uploaded, the device holds weights of the file */
	bool loading_over;            /* the device has read all that it is to hold, or has taken too long */
	long layer_balance[LAYERS];   /* matrices that the device has, less a large number for each that it does not have */
	struct device *cpu_device;    /* computes small ops, or NULL */
	int on_device, elsewhere;     /* tensors of weights that the device has, and does not have */
	unsigned epoch;               /* counts backends: a new one may be of another model, at an old address */
	int idle_backends;            /* that have not computed yet */
} tfmbs_state;

/* Takes TFMBS_LAYERS, TFMBS_PROFILE and TFMBS_HANDOVER from the environment. If one of them is wrong,
 * it says so on standard error and returns false. */
bool configure_weights(void);

/* Says on standard error that something failed; e is a negated errno. */
void report_error(const char *what, int e);

/* The kind of a tensor of weights; NULL if the device does not take it. */
const struct kind *kind_of(const struct tensor *w);

/* The layer that the name of a tensor of weights tells, or -1. */
long layer_of_weight(const struct tensor *t);

/* Whether weights of this layer are taken (TFMBS_LAYERS). Weights of no layer always are. */
bool is_layer_taken(long layer);

/* What is known of a tensor of weights, or NULL. The lock is held. */
struct weight *find_weight(const struct tensor *t);

/* Adds a tensor that is not known yet, as one that the device does not have. NULL if there is no
 * memory. The lock is held. */
struct weight *add_weight(const struct tensor *t);

/* Counts w in tfmbs_state (by = 1), or takes that back (by = -1) before w changes. The lock is held. */
void count_weight(const struct weight *w, int by);

/* Releases the device's matrices of w. The lock is held. */
void release_weight(struct weight *w);

/* Removes all weights in a buffer, or all weights if buffer is NULL. The lock is held. */
void remove_weights(const void *buffer);

/* Whether the device has t, or takes it now. It takes the lock. */
bool ensure_on_device(const struct tensor *t);

/* Asks the device for matrix i of t, a held weight. 0, or a negated errno. The lock is held. */
int find_held_matrix(const struct tensor *t, struct weight *w, uint32_t i);

/* Seconds since t, a time of CLOCK_MONOTONIC. */
double seconds_since(const struct timespec *t);

#endif
