// Package prefetch keeps the right bytes of a model file in memory for a llama.cpp that does not know of it.
//
// Decoding is a cyclic scan: every token reads the same weights in the same order. A cache that is smaller than the
// cycle and evicts what was used least recently keeps nothing that is needed next. So a share of the weights is pinned
// (mlock in this process's own mapping: pinned for every process), spread evenly over the access order, and the rest is
// streamed: read into the page cache just before its use, paged out just behind it. That reaches M - R bytes per token,
// Belady's minimum, less the window that is under way.
//
// The package takes events of package trace; it does not know how they are captured.
//
// Everything runs in the one goroutine that calls Controller's methods; none of its types is safe for concurrent use.
package prefetch
