// Package forecast says what a model would reach on a machine before anything runs: tokens per second alone, with
// prefetchd and at most, the first token, what more memory or a faster disk would change, and with which flags to start
// llama.cpp. It computes from what a model's file says ([PassOf]) and from what was measured of a machine ([Machine]).
//
// All of it is pure. The constants are those that runs of `lab pressure` had; docs/measurements has
// these runs, and each constant names what it was measured by.
package forecast
