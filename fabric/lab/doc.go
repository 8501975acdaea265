// Package lab is the room for experiments on ternary arithmetic; its packages are the directories below it.
//
// They answer questions about what such a device could do beside multiplying weights by activations: attention
// over ternary copies of keys (attention), hypervectors (hyper), numbers of several trits for exact edits
// (tryte, tryteplan), products of ternary vectors (popcount), and the speed of a device in hardware (roofline).
// The command lab (experiments/cmd/lab) runs them. The device and prefetchd need none of them: a test
// (internal/architecture) checks that prefetchd links no package of this directory.
package lab
